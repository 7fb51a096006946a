"""A broker with several hosts: which ones are tried, when, and what is said when none answers."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from stagepost.broker.failover import CAP_SECONDS, FIRST_SECONDS, HOST_SECONDS, JITTER, FailoverBroker
from stagepost.broker.memory import MemoryBroker
from stagepost.broker.url import Host, parse
from stagepost.flow.errors import BrokerDenied, BrokerUnavailable
from stagepost.ports.broker import BrokerConnection
from stagepost.testing import ManualClock


class Hosts:
    """Some hosts, of which those in ``up`` answer. ``tried`` has each try, with its moment."""

    def __init__(self, clock: ManualClock) -> None:
        self.up: set[str] = set()
        self.denying: set[str] = set()
        self.tried: list[tuple[str, float]] = []
        self._clock = clock
        self._memory = MemoryBroker()

    def open(self, host: Host, seconds: float) -> BrokerConnection:
        # A caller that looks for its stop signal often has no less time for a host.
        assert seconds == HOST_SECONDS
        self.tried.append((host.name, round(self._clock.monotonic(), 3)))
        if host.name in self.denying:
            raise BrokerDenied("wrong password")
        if host.name not in self.up:
            raise BrokerUnavailable(f"{host.name} is down")
        return self._memory.connect(seconds)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.tried]


@pytest.fixture
def hosts(clock: ManualClock) -> Hosts:
    return Hosts(clock)


@pytest.fixture
def broker(hosts: Hosts, clock: ManualClock) -> FailoverBroker:
    url = parse("amqp://user:secret@one,two,three", {"amqp": 5672})
    return FailoverBroker(url, hosts.open, clock, Random(0), clock.advance)


def test_the_first_host_that_answers_is_taken(broker: FailoverBroker, hosts: Hosts) -> None:
    hosts.up = {"two", "three"}
    broker.connect(10)
    assert hosts.names == ["one", "two"]


def test_the_host_that_answered_last_is_tried_first(broker: FailoverBroker, hosts: Hosts) -> None:
    hosts.up = {"two"}
    broker.connect(10)
    hosts.up = {"one"}
    broker.connect(10)
    assert hosts.names == ["one", "two", "two", "three", "one"]


def test_rounds_are_separated_by_a_growing_delay_with_jitter(broker: FailoverBroker, hosts: Hosts) -> None:
    with pytest.raises(BrokerUnavailable):
        broker.connect(300)
    moments = [moment for name, moment in hosts.tried if name == "one"]
    delays = [later - earlier for earlier, later in pairwise(moments)]
    for number, delay in enumerate(delays):
        base = min(FIRST_SECONDS * 2**number, CAP_SECONDS)
        assert base <= delay <= base * (1 + JITTER)
    assert len(delays) > 8
    assert any(delay > min(FIRST_SECONDS * 2**n, CAP_SECONDS) * 1.05 for n, delay in enumerate(delays))


def test_a_caller_that_tries_again_at_once_does_not_try_the_hosts_more_often(
    broker: FailoverBroker, hosts: Hosts, clock: ManualClock
) -> None:
    start = clock.monotonic()
    while clock.monotonic() < start + 60:
        with pytest.raises(BrokerUnavailable):
            broker.connect(0.1)
    assert hosts.names.count("one") <= 9


def test_a_broker_that_drops_its_connections_is_not_asked_in_a_tight_loop(
    broker: FailoverBroker, hosts: Hosts, clock: ManualClock
) -> None:
    hosts.up = {"one"}
    start = clock.monotonic()
    for _ in range(10):
        broker.connect(10).close()
    assert clock.monotonic() - start >= 9 * FIRST_SECONDS


def test_the_delay_starts_anew_after_an_answer(broker: FailoverBroker, hosts: Hosts, clock: ManualClock) -> None:
    with pytest.raises(BrokerUnavailable):
        broker.connect(100)
    hosts.up = {"one"}
    broker.connect(100)
    hosts.up = set()
    before = clock.monotonic()
    with pytest.raises(BrokerUnavailable):
        broker.connect(1)
    assert [moment for _, moment in hosts.tried if moment > before + FIRST_SECONDS]


def test_the_error_names_each_host_and_its_reason(broker: FailoverBroker) -> None:
    with pytest.raises(BrokerUnavailable) as none:
        broker.connect(0)
    assert str(none.value) == (
        "no host of the broker amqp://user@one,two,three answers: one:5672 (one is down), two:5672 (two is down), "
        "three:5672 (three is down). Start the broker, or correct the URL."
    )


def test_wrong_credentials_are_not_tried_again(broker: FailoverBroker, hosts: Hosts) -> None:
    hosts.denying = {"one", "two", "three"}
    with pytest.raises(BrokerDenied, match="wrong password"):
        broker.connect(100)
    assert hosts.names == ["one", "two", "three"]


def test_a_host_that_denies_does_not_keep_from_the_next_one(broker: FailoverBroker, hosts: Hosts) -> None:
    hosts.denying = {"one"}
    hosts.up = {"two"}
    broker.connect(10)
    assert hosts.names == ["one", "two"]


def test_a_host_that_is_away_beside_one_that_denies_is_waited_for(broker: FailoverBroker, hosts: Hosts) -> None:
    hosts.denying = {"one"}
    with pytest.raises(BrokerUnavailable, match="wrong password"):
        broker.connect(0)
