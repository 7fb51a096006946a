"""Contract of ``ports.broker``: connections that are lost, and brokers that end, freeze or fall silent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from stagepost.flow.errors import BrokerConnectionLost, BrokerUnavailable
from stagepost.ports.broker import Broker, BrokerConnection, Delivery
from stagepost.testing.contract.broker_givens import (
    STORE,
    WINDOW,
    BrokerFaults,
    BrokerGiven,
    Connect,
    drained,
    published,
    received,
    some,
)
from stagepost.testing.contract.givens import TOLD_SECONDS_MAX


class BrokerLossesContract(BrokerGiven):
    """A part of the contract of a broker's connection."""

    def test_a_lost_connection_says_so_at_every_call_and_voids_its_deliveries(
        self, connection: BrokerConnection, connect: Connect, faults: BrokerFaults, address: str
    ) -> None:
        published(connection, *some(address, 2))
        connection.subscribe({address: 2})
        deliveries = received(connection, 2)
        faults.cut()
        with pytest.raises(BrokerConnectionLost):
            while True:
                assert connection.receive(TOLD_SECONDS_MAX) == []
        for each in calls(connection, address, deliveries):
            with pytest.raises(BrokerConnectionLost):
                each()
        assert not connection.is_alive(0.1)
        assert connection.is_blocked in (True, False)
        connection.close()
        again = drained(connect(), address, 2)
        assert [(each.message_id, each.redelivered) for each in again] == [("m0", True), ("m1", True)]

    def test_a_closed_connection_says_so_at_every_call(self, connection: BrokerConnection, address: str) -> None:
        connection.close()
        connection.close()
        for each in calls(connection, address, []):
            with pytest.raises(BrokerConnectionLost):
                each()
        assert not connection.is_alive(0.1)

    def test_confirmed_messages_survive_the_broker(
        self, patient_broker: Broker, connect: Connect, faults: BrokerFaults, address: str
    ) -> None:
        connection = patient_broker.connect(TOLD_SECONDS_MAX)
        connection.prepare([address], STORE)
        published(connection, *some(address, WINDOW))
        faults.restart()
        assert not connection.is_alive(0.1)
        connection.close()
        ids = [each.message_id for each in drained(connect(), address, WINDOW)]
        assert ids == [f"m{n}" for n in range(WINDOW)]

    @pytest.mark.parametrize("call", ["publish", "depth", "prepare", "settle", "receive", "is_alive"])
    def test_every_call_ends_while_the_broker_is_frozen(
        self, connection: BrokerConnection, connect: Connect, faults: BrokerFaults, address: str, call: str
    ) -> None:
        """It returns, or the connection is lost. pytest's time-out ends a call that does neither."""
        published(connection, *some(address, 2))
        connection.subscribe({address: 1})
        deliveries = received(connection, 1)
        attempts: dict[str, Callable[[], object]] = {
            "publish": lambda: connection.publish(some(address, 2), 0.5),
            "depth": lambda: connection.depth(address),
            "prepare": lambda: connection.prepare([address], STORE),
            "settle": lambda: connection.settle(deliveries),
            "receive": lambda: connection.receive(0.5),
            "is_alive": lambda: connection.is_alive(0.5),
        }
        with faults.frozen():
            try:
                result = attempts[call]()
            except BrokerConnectionLost:
                assert call in ("depth", "prepare", "settle", "receive")
            else:
                if call == "publish":
                    assert result == ["unconfirmed"] * 2
                    assert not connection.is_alive(0.5)
                assert call not in ("depth", "prepare")
            connection.close()
        [again] = drained(connect(), address, 1)
        assert again.message_id in ("m0", "m1")

    def test_no_host_answers_while_the_broker_is_frozen(self, broker: Broker, faults: BrokerFaults) -> None:
        with faults.frozen(), pytest.raises(BrokerUnavailable, match=r"no host of the broker"):
            broker.connect(0.5)
        broker.connect(TOLD_SECONDS_MAX).close()

    def test_a_long_pause_of_its_thread_loses_no_connection(
        self, connection: BrokerConnection, connect: Connect, faults: BrokerFaults, address: str
    ) -> None:
        published(connection, *some(address, 1))
        connection.subscribe({address: 1})
        deliveries = received(connection, 1)
        # As in a long commit: this thread does nothing with the connection.
        threading.Event().wait(faults.pause_seconds)
        assert connection.is_alive(TOLD_SECONDS_MAX)
        connection.settle(deliveries)
        connection.close()
        other = connect()
        other.subscribe({address: 1})
        assert other.receive(0.2) == []


def calls(connection: BrokerConnection, address: str, deliveries: Sequence[Delivery]) -> list[Callable[[], object]]:
    """Return one call of each method that a lost connection refuses."""
    return [
        lambda: connection.settle(deliveries),
        lambda: connection.give_back(deliveries),
        lambda: connection.receive(0.1),
        lambda: connection.publish(some(address, 1), 0.1),
        lambda: connection.subscribe({address: 1}),
        lambda: connection.prepare([address], STORE),
        lambda: connection.release(address, STORE),
        lambda: connection.depth(address),
    ]
