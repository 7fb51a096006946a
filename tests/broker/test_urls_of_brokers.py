"""Broker URLs: their parts, their errors, and the drivers that they name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from stagepost.broker.memory import MemoryBroker
from stagepost.broker.url import Host, parse, seconds_of
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.ports import broker_registry
from stagepost.ports.broker_registry import broker_driver_of

PORTS = {"amqp": 5672, "amqps": 5671}


def test_a_url_has_hosts_credentials_a_path_and_parameters() -> None:
    url = parse("amqp://us%40er:p%3Aw%2F@one,two:99,[::1]:7/a%2Fb?heartbeat=3", PORTS, {"heartbeat"})
    assert (url.user, url.password, url.path) == ("us@er", "p:w/", "a/b")
    assert url.hosts == (Host("one", 5672), Host("two", 99), Host("::1", 7))
    assert [str(each) for each in url.hosts] == ["one:5672", "two:99", "[::1]:7"]
    assert url.parameters == {"heartbeat": "3"}


def test_a_url_may_have_a_host_alone() -> None:
    url = parse("amqps://one", PORTS)
    assert (url.hosts, url.user, url.password, url.path) == ((Host("one", 5671),), "", "", None)
    assert parse("amqps://one/", PORTS).path == ""


def test_a_url_is_shown_without_its_password() -> None:
    url = parse("amqp://user:secret@one,two:99/shop?heartbeat=3", PORTS, {"heartbeat"})
    assert url.shown == "amqp://user@one,two:99/shop"
    assert "secret" not in repr(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://one", "none of amqp://, amqps://"),
        ("amqp:one", "none of amqp://"),
        ("amqp://", "a host without a name"),
        ("amqp://one,,two", "a host without a name"),
        ("amqp://one:port", "a port that is not a number"),
        ("amqp://one:70000", "a port that is not a number"),
        ("amqp://user:sec/ret@one", "must be written with a %-sign"),
        ("amqp://user:secret@one?heartbeats=3", "the parameter 'heartbeats', and only heartbeat"),
    ],
)
def test_a_wrong_url_is_an_error_with_its_reason(url: str, reason: str) -> None:
    with pytest.raises(DeclarationError, match=reason) as wrong:
        parse(url, PORTS, {"heartbeat"})
    assert "sec" not in str(wrong.value).replace("scheme", "")


def test_a_parameter_that_is_no_number_of_seconds_is_an_error() -> None:
    assert seconds_of(parse("amqp://one?heartbeat=2.5", PORTS, {"heartbeat"}), "heartbeat", 10, 1) == 2.5
    assert seconds_of(parse("amqp://one", PORTS), "heartbeat", 10, 1) == 10
    for text in ("x", "0", "nan", "inf", "-1"):
        with pytest.raises(DeclarationError, match=f"heartbeat must be a number of seconds from 1 .* not '{text}'"):
            seconds_of(parse(f"amqp://one?heartbeat={text}", PORTS, {"heartbeat"}), "heartbeat", 10, 1)


# The registry.


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, for the metadata of installed packages."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    broker_registry.DRIVERS.forget()


def test_one_name_of_a_memory_broker_is_one_broker() -> None:
    driver = broker_driver_of("memory:shop")
    one, same, other = (
        driver.broker(url, SystemClock(), Random(0)) for url in ("memory:shop", "memory:shop", "memory:other")
    )
    assert isinstance(one, MemoryBroker)
    assert one is same
    assert one is not other
    assert one.url == "memory:shop"


def test_another_package_adds_a_broker_by_an_entry_point(packages: Path) -> None:
    metadata = packages / "thin_broker-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: thin-broker\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[stagepost.brokers]\nthin = stagepost.broker.memory.driver\n")
    with pytest.raises(DeclarationError, match="'thin://here' names no memory broker"):
        broker_driver_of("thin://here")


@pytest.mark.parametrize("url", ["shop", "kafka://user:secret@one", "sqlite:///shop.db"])
def test_an_unknown_broker_is_an_error_with_the_remedy(url: str) -> None:
    with pytest.raises(DeclarationError, match=r"is not a broker URL Stagepost knows\. Write amqp://user") as unknown:
        broker_driver_of(url)
    assert "secret" not in str(unknown.value)


def test_a_memory_broker_has_a_name() -> None:
    with pytest.raises(DeclarationError, match="'memory:' names no memory broker"):
        broker_driver_of("memory:")


def test_a_url_of_rabbitmq_is_checked_without_its_client() -> None:
    code = """
import sys
sys.modules["amqp"] = None
from random import Random
from stagepost.flow.clock import SystemClock
from stagepost.ports.broker_registry import broker_driver_of
driver = broker_driver_of("amqp://one")
try:
    driver.broker("amqp://one", SystemClock(), Random(0))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("DeclarationError the broker URL names RabbitMQ")
    assert "pip install 'stagepost[rabbitmq]'" in done.stdout
