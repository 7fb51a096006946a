"""Contract of ``ports.broker``: the queues of addresses, the subscribers of topics, and the store of an address."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stagepost.flow.errors import AddressTaken, BrokerMismatch
from stagepost.ports.broker import BrokerConnection, Publication, refused_address, subscriber_address, topic_address
from stagepost.testing.contract.broker_givens import (
    OTHER_STORE,
    STORE,
    BrokerFaults,
    BrokerGiven,
    Connect,
    drained,
    published,
    received,
    some,
)
from stagepost.testing.contract.givens import TOLD_SECONDS_MAX, eventually


class BrokerAddressesContract(BrokerGiven):
    """A part of the contract of a broker's connection."""

    # Topics.

    def test_each_subscriber_of_a_topic_gets_a_copy(
        self, connection: BrokerConnection, connect: Connect, address: str
    ) -> None:
        topic = topic_address(address)
        queues = [subscriber_address(address, each) for each in ("billing", "stock.room")]
        connection.prepare(queues, STORE)
        published(connection, Publication(topic, "news", b"body", {"kind": "price"}), *some(address, 1))
        for each in queues:
            [arrived] = drained(connect(), each, 1)
            assert (arrived.address, arrived.message_id, arrived.body) == (each, "news", b"body")
            assert arrived.headers["kind"] == "price"
        # The queue with the topic's name is another address.
        assert [each.message_id for each in drained(connection, address, 1)] == ["m0"]

    def test_a_topic_without_subscribers_is_unroutable(self, connection: BrokerConnection, address: str) -> None:
        if not connection.features.finds_unroutable:
            pytest.skip("the broker does not tell")
        unknown, known = Publication(f"@{address}.u", "x", b"", {}), Publication(f"@{address}.k", "x", b"", {})
        connection.prepare([known.address], STORE)
        window = [*some(address, 1), unknown, known, *some(address, 1)]
        results = connection.publish(window, TOLD_SECONDS_MAX)
        assert results == ["confirmed", "unroutable", "unroutable", "confirmed"]

    # Addresses and their stores.

    def test_a_store_prepares_its_addresses_at_each_connect(
        self, connection: BrokerConnection, connect: Connect, address: str
    ) -> None:
        published(connection, *some(address, 2))
        again = connect()
        again.prepare([address], STORE)
        # A look at the queue is no delivery. A message that seems redelivered is never consumed directly.
        found = [(each.message_id, each.redelivered) for each in drained(again, address, 2)]
        assert found == [("m0", False), ("m1", False)]

    def test_an_address_has_a_queue_for_messages_that_the_store_refuses(
        self, connection: BrokerConnection, address: str
    ) -> None:
        beside = refused_address(address)
        assert published(connection, *some(beside, 1)) == ["confirmed"]
        assert [each.message_id for each in drained(connection, beside, 1)] == ["m0"]

    def test_a_second_store_is_refused_and_changes_nothing(
        self, connection: BrokerConnection, connect: Connect, address: str
    ) -> None:
        other = connect()
        with pytest.raises(AddressTaken) as refused:
            other.prepare([address], OTHER_STORE)
        assert address in str(refused.value)
        assert STORE in str(refused.value)
        # The connection lives, and the first store still has the address.
        other.prepare([f"{address}.other"], OTHER_STORE)
        connection.prepare([address], STORE)

    def test_one_of_two_stores_that_come_at_once_is_refused(self, connect: Connect, address: str) -> None:
        stores = [STORE, OTHER_STORE]
        connections = [connect() for _ in stores]
        together = threading.Barrier(len(stores))

        def prepare(number: int) -> bool:
            together.wait()
            try:
                connections[number].prepare([address], stores[number])
            except AddressTaken:
                return False
            return True

        with ThreadPoolExecutor(len(stores)) as pool:
            assert sorted(pool.map(prepare, range(len(stores)))) == [False, True]

    def test_an_address_is_released_for_another_store(self, connection: BrokerConnection, address: str) -> None:
        assert not connection.release(address, OTHER_STORE)
        assert not connection.release(f"{address}.unknown", STORE)
        assert connection.release(address, STORE)
        assert not connection.release(address, STORE)
        connection.prepare([address], OTHER_STORE)
        with pytest.raises(AddressTaken):
            connection.prepare([address], STORE)

    def test_a_queue_with_other_arguments_is_an_error_with_the_argument(
        self, connection: BrokerConnection, faults: BrokerFaults, address: str
    ) -> None:
        foreign = f"{address}.foreign"
        argument = faults.declare_otherwise(foreign)
        if argument is None:
            pytest.skip("the broker's queues have no arguments")
        with pytest.raises(BrokerMismatch) as mismatch:
            connection.prepare([foreign], STORE)
        assert foreign in str(mismatch.value)
        assert argument in str(mismatch.value)
        assert published(connection, *some(address, 1)) == ["confirmed"]

    def test_the_depth_is_that_which_waits(self, connection: BrokerConnection, address: str) -> None:
        if connection.depth(address) is None:
            pytest.skip("the broker does not tell it")
        # A broker that makes a queue as it is named finds an empty one.
        missing = connection.depth(f"{address}.missing")
        assert missing is None or (missing == 0 and not connection.features.finds_unroutable)
        published(connection, *some(address, 3))
        assert eventually(lambda: connection.depth(address) == 3)
        connection.subscribe({address: 2})
        received(connection, 2)
        assert eventually(lambda: connection.depth(address) == 1)
