"""The faults that a test can inject into the memory broker."""

from __future__ import annotations

import pytest

from stagepost.broker.memory import MemoryBroker
from stagepost.flow.errors import BrokerConnectionLost, BrokerDenied, BrokerUnavailable
from stagepost.ports.broker import BrokerConnection
from stagepost.testing.contract.broker_givens import STORE, drained, published, received, some

ADDRESS = "orders.place"


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def connection(broker: MemoryBroker) -> BrokerConnection:
    connection = broker.connect(1)
    connection.prepare([ADDRESS], STORE)
    return connection


def test_a_broker_that_is_down_or_denies_opens_no_connection(broker: MemoryBroker) -> None:
    broker.is_down = True
    with pytest.raises(BrokerUnavailable):
        broker.connect(1)
    broker.is_down, broker.denies = False, True
    with pytest.raises(BrokerDenied):
        broker.connect(1)


def test_a_missing_confirm_loses_the_connection_and_leaves_the_message(
    broker: MemoryBroker, connection: BrokerConnection
) -> None:
    connection.prepare(["quiet"], STORE)
    broker.silent = {"quiet"}
    window = [*some(ADDRESS, 1), *some("quiet", 1), *some(ADDRESS, 1)]
    assert connection.publish(window, 1) == ["confirmed", "unconfirmed", "confirmed"]
    with pytest.raises(BrokerConnectionLost, match="no answer to a publication within 1 s"):
        connection.receive(0)
    assert [each.message_id for each in broker.waiting("quiet")] == ["m0"]


def test_a_cut_in_mid_window_leaves_the_first_messages_and_one_whose_answer_is_lost(
    broker: MemoryBroker, connection: BrokerConnection
) -> None:
    broker.cut_after = 2
    assert connection.publish(some(ADDRESS, 5), 1) == ["confirmed"] * 2 + ["lost"] * 3
    assert not connection.is_alive(0)
    assert len(drained(broker.connect(1), ADDRESS, 3)) == 3


def test_a_doubled_message_is_delivered_twice(broker: MemoryBroker, connection: BrokerConnection) -> None:
    broker.doubling = 1
    published(connection, *some(ADDRESS, 2))
    arrived = drained(connection, ADDRESS, 3)
    assert [each.message_id for each in arrived] == ["m0", "m0", "m1"]
    assert not any(each.redelivered for each in arrived)


def test_a_cut_returns_what_is_unsettled_to_its_old_place(broker: MemoryBroker, connection: BrokerConnection) -> None:
    published(connection, *some(ADDRESS, 4))
    connection.subscribe({ADDRESS: 2})
    received(connection, 2)
    broker.cut()
    arrived = drained(broker.connect(1), ADDRESS, 4)
    assert [(each.message_id, each.redelivered) for each in arrived] == [
        ("m0", True), ("m1", True), ("m2", False), ("m3", False)
    ]  # fmt: skip
