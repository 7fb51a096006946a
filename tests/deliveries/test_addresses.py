"""The addresses that a delivery connects to: the checked one, and none of a private network that was not named."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Sequence

import pytest

from stagepost.gateway.out import Delivery
from stagepost.gateway.out.addresses import is_public
from stagepost.gateway.out.client import Client, NoAnswer
from tests.deliveries.conftest import NewConsumer
from tests.deliveries.consumer import Consumer, answer, closing_answer

PRIVATE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "ff02::1", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::10.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::1", "2002:a00:1::", "2001::1", "fec0::1", "", "localhost",
    "2130706433", "0177.0.0.1",
]  # fmt: skip
PUBLIC = ["93.184.216.34", "8.8.8.8", "172.32.0.1", "2606:2800:220:1::1", "64:ff9b::808:808", "::ffff:8.8.8.8"]
# Each of them is 127.0.0.1 for the system's resolver.
ODD_HOSTS = ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "localhost"]


@pytest.mark.parametrize("address", PRIVATE)
def test_no_address_of_another_network_is_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_the_others_are(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ODD_HOSTS)
def test_a_private_address_is_refused_however_it_is_written(consumer: NewConsumer, host: str) -> None:
    shop = consumer()
    client = Client(Delivery(url=f"https://{host}:{shop.port}/"))
    with pytest.raises(NoAnswer, match="not reached") as caught:
        client.post({}, b"{}")
    assert not caught.value.may_be_taken
    assert not shop.requests


def test_the_checked_address_is_the_one_that_is_connected_to(consumer: NewConsumer) -> None:
    """The name resolves to a public address first, and to a private one at each later look."""
    shop = consumer()
    looks: list[str] = []

    def rebinding(host: str, port: int) -> Sequence[str]:
        looks.append(host)
        return ["203.0.114.1"] if len(looks) == 1 else ["127.0.0.1"]

    client = Client(Delivery(url=f"https://shop.example:{shop.port}/", connect_seconds=0.1), rebinding)
    with pytest.raises(NoAnswer, match="not reached"):
        client.post({}, b"{}")
    assert looks == ["shop.example"]
    with pytest.raises(NoAnswer, match="allow_private"):
        client.post({}, b"{}")
    assert not shop.requests


def test_only_public_addresses_of_a_name_are_tried(consumer: NewConsumer) -> None:
    shop = consumer()
    client = Client(
        Delivery(url=f"https://shop.example:{shop.port}/", connect_seconds=0.1),
        lambda host, port: ["127.0.0.1", "203.0.114.1", "::1"],
    )
    with pytest.raises(NoAnswer, match="not reached"):
        client.post({}, b"{}")
    assert not shop.requests


def test_the_host_header_keeps_the_name_and_no_proxy_of_the_environment_is_used(
    consumer: NewConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = consumer()
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    delivery = Delivery(url=f"http://shop.internal:{shop.port}/a?b=c", allow_private=["shop.internal"])
    answer = Client(delivery, lambda host, port: ["127.0.0.1"]).post({"X-One": "1"}, b"{}")
    assert answer.status == 200
    (request,) = shop.requests
    assert request.headers["host"] == f"shop.internal:{shop.port}"
    assert request.line == "POST /a?b=c HTTP/1.1"


def test_the_next_address_is_tried_where_one_refuses(consumer: NewConsumer) -> None:
    shop = consumer()
    delivery = Delivery(url=f"http://shop.internal:{shop.port}/", allow_private=["shop.internal"])
    assert Client(delivery, lambda host, port: ["127.0.0.9", "127.0.0.1"]).post({}, b"{}").status == 200


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".example"])
def test_a_name_that_cannot_be_resolved_was_not_reached(host: str) -> None:
    with pytest.raises(NoAnswer, match="not reached") as caught:
        Client(Delivery(url=f"https://{host}/")).post({}, b"{}")
    assert not caught.value.may_be_taken


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate of ``shop.internal`` that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = str(folder / "certificate.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", "/CN=shop.internal", "-addext", "subjectAltName=DNS:shop.internal"),
            *("-out", files[0], "-keyout", files[1]),
        ],
        check=True,
        capture_output=True,
    )
    return files


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize(
    ("host", "is_trusted", "is_reached"),
    [("shop.internal", True, True), ("other.internal", True, False), ("shop.internal", False, False)],
)
def test_a_certificate_is_checked_against_the_name(
    certificate: tuple[str, str], host: str, is_trusted: bool, is_reached: bool
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    names: list[str | None] = []
    context.sni_callback = lambda connection, name, settings: names.append(name)
    with Consumer(tls=context) as shop:
        delivery = Delivery(
            url=f"https://{host}:{shop.port}/",
            allow_private=[host],
            ca_file=certificate[0] if is_trusted else None,
            timeout_seconds=5,
        )
        client = Client(delivery, lambda host, port: ["127.0.0.1"])
        if is_reached:
            assert client.post({}, b"{}").status == 200
        else:
            with pytest.raises(NoAnswer, match="not reached") as caught:
                client.post({}, b"{}")
            assert not caught.value.may_be_taken
        assert names == [host]
        assert len(shop.requests) == is_reached


def test_connections_stay_open_between_deliveries_and_a_closed_one_is_replaced(consumer: NewConsumer) -> None:
    shop = consumer(answer(200), closing_answer, answer(200))
    client = Client(Delivery(url=shop.url, allow_private=["localhost"]))
    assert [client.post({}, b"{}").status for _ in range(3)] == [200, 200, 200]
    assert shop.accepted == 2
