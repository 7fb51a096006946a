"""Contract of ``ports.broker``: a connection to a broker. Run it against your own:

    from stagepost.testing.contract.brokers import BrokerConnectionContract

    class TestMyBroker(BrokerConnectionContract):
        @pytest.fixture
        def broker(self) -> Broker: ...                                # the tests use addresses of their own

        @pytest.fixture
        def faults(self) -> BrokerFaults: ...                          # does to that broker what a test asks for

A test is skipped where ``faults`` returns None for the fault that it needs: the broker does not know it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

import pytest

from stagepost.flow.errors import AddressTaken, BrokerConnectionLost, BrokerMismatch, BrokerUnavailable
from stagepost.ports.broker import (
    Broker,
    BrokerConnection,
    Delivery,
    Publication,
    refused_address,
    subscriber_address,
    topic_address,
)
from stagepost.testing.contract.givens import LONG_ID, MEGABYTE, TOLD_SECONDS_MAX, eventually

WINDOW = 100
STORE = "11111111-1111-7111-8111-111111111111"
OTHER_STORE = "22222222-2222-7222-8222-222222222222"
# A connection may confuse none of these signs with its own.
AWKWARD = "a:b\\c=d;e\"f'g\\n {} ünï 注文 🚚 \u00a0 %00 \r\n\t end"


class BrokerFaults(Protocol):
    """The faults of the broker under test."""

    def cut(self) -> None:
        """End all connections of clients, in mid-air."""

    def frozen(self) -> AbstractContextManager[object]:
        """Let the broker answer nothing during the block. Its connections may be lost after it."""

    def restart(self) -> None:
        """End the broker without warning, and start it again with its data."""

    def blocked(self) -> AbstractContextManager[object] | None:
        """Let the broker take no publications during the block, for lack of memory."""

    def refuse(self, address: str) -> bool | None:
        """Let the broker answer no to further publications to a prepared address."""

    def declare_otherwise(self, address: str) -> str | None:
        """Declare the queue with other arguments than the connection's. Returns the name of one that differs."""

    @property
    def oversized_bytes(self) -> int | None:
        """The size of a body that the broker never accepts."""

    @property
    def pause_seconds(self) -> float:
        """The time after which the broker drops a connection that writes nothing; 0 where it never does."""


Connect = Callable[[], BrokerConnection]


class BrokerConnectionContract:
    """The whole contract of a broker's connection. Provide ``broker`` and ``faults``."""

    @pytest.fixture
    def connect(self, broker: Broker) -> Iterator[Connect]:
        """Opens connections, which are closed at the end."""
        with ExitStack() as opened:

            def open_one() -> BrokerConnection:
                connection = broker.connect(TOLD_SECONDS_MAX)
                opened.callback(connection.close)
                return connection

            yield open_one

    @pytest.fixture
    def patient_broker(self, broker: Broker) -> Broker:
        """The broker as its users have it: ``prepare`` waits until a kill loses nothing. ``broker`` may be faster."""
        return broker

    @pytest.fixture
    def address(self) -> str:
        return f"contract.{uuid.uuid4()}"

    @pytest.fixture
    def connection(self, connect: Connect, address: str) -> BrokerConnection:
        """A connection for which ``address`` is prepared."""
        connection = connect()
        connection.prepare([address], STORE)
        return connection

    # Messages in transit.

    def test_a_message_arrives_as_it_was_published(self, connection: BrokerConnection, address: str) -> None:
        headers = {"plain": "text", "Umlaut-ä 注": AWKWARD, "empty": "", "colon:name": "x", "long": "y" * 10_000}
        sent = Publication(address, LONG_ID, bytes(range(256)) * 3, headers)
        [arrived] = exchanged(connection, sent)
        assert (arrived.address, arrived.message_id, arrived.body) == (address, LONG_ID, sent.body)
        assert {name: arrived.headers.get(name) for name in headers} == headers
        assert not arrived.redelivered

    def test_bodies_of_any_size_and_kind_arrive(self, connection: BrokerConnection, address: str) -> None:
        bodies = [b"", b"\0", b"\r\n\r\n", "ünï".encode(), b"\xff\xfe", b"x" * MEGABYTE]
        arrived = exchanged(connection, *[Publication(address, f"m{n}", body, {}) for n, body in enumerate(bodies)])
        assert [each.body for each in arrived] == bodies

    def test_a_message_without_an_id_has_an_empty_one(self, connection: BrokerConnection, address: str) -> None:
        [arrived] = exchanged(connection, Publication(address, "", b"body", {}))
        assert arrived.message_id == ""

    def test_a_window_is_confirmed_as_a_whole_and_arrives_in_order(
        self, connection: BrokerConnection, address: str
    ) -> None:
        arrived = exchanged(connection, *some(address, WINDOW))
        assert [each.message_id for each in arrived] == [f"m{n}" for n in range(WINDOW)]

    def test_the_same_message_is_published_twice_if_it_is_asked_for(
        self, connection: BrokerConnection, address: str
    ) -> None:
        arrived = exchanged(connection, *some(address, 1), *some(address, 1))
        assert [each.message_id for each in arrived] == ["m0", "m0"]

    def test_the_features_name_the_broker(self, connection: BrokerConnection) -> None:
        assert connection.features.product
        assert connection.features.version

    # Receiving and settling.

    def test_receiving_returns_when_a_message_comes(
        self, connection: BrokerConnection, connect: Connect, address: str
    ) -> None:
        connection.subscribe({address: 1})
        assert connection.receive(0) == []
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(connection.receive, TOLD_SECONDS_MAX)
            published(connect(), *some(address, 1))
            assert [each.message_id for each in waiting.result()] == ["m0"]

    def test_no_more_than_a_window_is_handed_out(self, connection: BrokerConnection, address: str) -> None:
        published(connection, *some(address, 5))
        connection.subscribe({address: 2})
        first = received(connection, 2)
        assert connection.receive(0.1) == []
        connection.settle(first[1:])
        assert [each.message_id for each in received(connection, 1)] == ["m2"]
        assert connection.receive(0.1) == []

    def test_each_address_has_a_window_of_its_own(self, connection: BrokerConnection, address: str) -> None:
        other = f"{address}.other"
        connection.prepare([other], STORE)
        published(connection, *some(address, 3), *some(other, 3))
        connection.subscribe({address: 1, other: 2})
        assert sorted(each.address for each in received(connection, 3)) == [address, other, other]
        assert connection.receive(0.1) == []

    def test_each_delivery_is_settled_by_itself(
        self, connection: BrokerConnection, connect: Connect, address: str
    ) -> None:
        published(connection, *some(address, 3))
        connection.subscribe({address: 10})
        deliveries = received(connection, 3)
        connection.settle([deliveries[1]])
        connection.close()
        assert [each.message_id for each in drained(connect(), address, 2)] == ["m0", "m2"]

    def test_an_unsettled_delivery_comes_again_and_says_so(
        self, connection: BrokerConnection, connect: Connect, address: str
    ) -> None:
        published(connection, *some(address, 1))
        connection.subscribe({address: 1})
        [first] = received(connection, 1)
        assert not first.redelivered
        connection.close()
        [again] = drained(connect(), address, 1)
        assert (again.message_id, again.body, again.redelivered) == (first.message_id, first.body, True)
        # A broker may add a header that counts deliveries.
        assert first.headers.items() <= again.headers.items()

    def test_settled_deliveries_are_gone(self, connection: BrokerConnection, connect: Connect, address: str) -> None:
        exchanged(connection, *some(address, WINDOW))
        connection.close()
        other = connect()
        other.subscribe({address: 10})
        assert other.receive(0.2) == []

    def test_a_delivery_that_was_given_back_comes_again(self, connection: BrokerConnection, address: str) -> None:
        published(connection, *some(address, 2))
        connection.subscribe({address: 2})
        first, second = received(connection, 2)
        connection.give_back([first])
        [again] = received(connection, 1)
        assert (again.message_id, again.body) == ("m0", first.body)
        connection.settle([second, again])

    def test_settling_again_changes_nothing(self, connection: BrokerConnection, connect: Connect, address: str) -> None:
        published(connection, *some(address, 2))
        connection.subscribe({address: 2})
        first, second = received(connection, 2)
        connection.settle([first, first])
        connection.settle([first])
        connection.give_back([first])
        assert connection.depth(address) in (0, None)
        connection.settle([second])
        published(connection, Publication(address, "later", b"", {}))
        assert [each.message_id for each in received(connection, 1)] == ["later"]

    def test_a_delivery_of_another_connection_is_refused(
        self, connection: BrokerConnection, connect: Connect, address: str
    ) -> None:
        published(connection, *some(address, 2))
        connection.subscribe({address: 1})
        [mine] = received(connection, 1)
        other = connect()
        other.subscribe({address: 1})
        [theirs] = received(other, 1)
        for method in (other.settle, other.give_back):
            with pytest.raises(ValueError, match="another connection"):
                method([theirs, mine])
        for each in (connection, other):
            each.close()
        # A broker may notice the two ends in either order.
        assert {each.message_id for each in drained(connect(), address, 2)} == {"m0", "m1"}

    def test_two_connections_share_the_messages_of_an_address(
        self, connection: BrokerConnection, connect: Connect, address: str
    ) -> None:
        consumers = [connect(), connect()]
        for each in consumers:
            each.subscribe({address: 10})
        published(connection, *some(address, 20))
        got: list[str] = []

        def take() -> bool:
            for each in consumers:
                deliveries = each.receive(0)
                each.settle(deliveries)
                got.extend(delivery.message_id for delivery in deliveries)
            return len(got) >= 20

        assert eventually(take)
        assert sorted(got) == sorted(f"m{n}" for n in range(20))

    # Subscriptions.

    def test_an_address_that_is_left_out_hands_out_nothing_more(
        self, connection: BrokerConnection, connect: Connect, address: str
    ) -> None:
        other = f"{address}.other"
        connection.prepare([other], STORE)
        connection.subscribe({address: 10, other: 10})
        connection.subscribe({other: 10})
        published(connect(), *some(address, 1), *some(other, 1))
        assert [each.address for each in received(connection, 1)] == [other]
        assert connection.receive(0.1) == []
        connection.subscribe({address: 10, other: 10})
        assert [each.address for each in received(connection, 1)] == [address]

    def test_a_delivery_of_an_address_that_was_left_out_is_not_lost(
        self, connection: BrokerConnection, connect: Connect, address: str
    ) -> None:
        """It is settled, or it comes again."""
        published(connection, *some(address, 2))
        connection.subscribe({address: 2})
        first = received(connection, 2)[0]
        connection.subscribe({})
        connection.settle([first])
        connection.close()
        again = connect()
        again.subscribe({address: 10})
        ids = {each.message_id for each in received(again, 1)}
        assert "m1" in ids | {each.message_id for each in again.receive(0.2)}

    def test_another_window_takes_the_place_of_the_first(self, connection: BrokerConnection, address: str) -> None:
        connection.subscribe({address: 1})
        connection.subscribe({address: 3})
        published(connection, *some(address, 5))
        deliveries = received(connection, 3)
        assert connection.receive(0.1) == []
        connection.settle(deliveries)
        assert [each.message_id for each in received(connection, 2)] == ["m3", "m4"]

    def test_a_queue_that_does_not_exist_is_an_error_with_its_name(
        self, connection: BrokerConnection, address: str
    ) -> None:
        missing = f"{address}.missing"
        if not connection.features.finds_unroutable:
            pytest.skip("the broker makes queues as they are named")
        with pytest.raises(BrokerMismatch, match=missing):
            connection.subscribe({missing: 1})
        assert [each.message_id for each in exchanged(connection, *some(address, 1))] == ["m0"]

    # Answers to publications.

    def test_nothing_is_published_settled_or_prepared_without_complaint(self, connection: BrokerConnection) -> None:
        assert connection.publish([], TOLD_SECONDS_MAX) == []
        connection.settle([])
        connection.give_back([])
        connection.prepare([], STORE)
        connection.subscribe({})
        assert connection.receive(0) == []

    def test_answers_come_in_the_order_of_the_publications(
        self, connection: BrokerConnection, faults: BrokerFaults, address: str
    ) -> None:
        window = [*some(address, 2), Publication(f"{address}.nowhere", "x", b"", {}), *some(address, 2)]
        expected = ["confirmed", "confirmed", "unroutable", "confirmed", "confirmed"]
        if not connection.features.finds_unroutable:
            expected[2] = "confirmed"
        assert connection.publish(window, TOLD_SECONDS_MAX) == expected
        assert len(drained(connection, address, 4)) == 4

    def test_an_oversized_message_hinders_no_other(
        self, connection: BrokerConnection, faults: BrokerFaults, address: str
    ) -> None:
        if faults.oversized_bytes is None:
            pytest.skip("the broker accepts a body of any size")
        big = Publication(address, "big", b"x" * faults.oversized_bytes, {})
        window = [*some(address, 3), big, *some(address, 3)]
        results = connection.publish(window, TOLD_SECONDS_MAX)
        assert results == ["confirmed"] * 3 + ["oversized"] + ["confirmed"] * 3
        # A broker that closes a channel over the message gets copies of those without an answer.
        connection.subscribe({address: 50})
        ids: set[str] = set()

        def take() -> bool:
            ids.update(each.message_id for each in connection.receive(1.0))
            return len(ids) >= 3

        assert eventually(take)
        assert ids == {"m0", "m1", "m2"}

    def test_a_refused_message_hinders_no_other(
        self, connection: BrokerConnection, faults: BrokerFaults, address: str
    ) -> None:
        full = f"{address}.full"
        connection.prepare([full], STORE)
        if faults.refuse(full) is None:
            pytest.skip("the broker refuses no publication to one address")
        window = [*some(address, 1), *some(full, 1), *some(address, 1)]
        assert connection.publish(window, TOLD_SECONDS_MAX) == ["confirmed", "refused", "confirmed"]

    def test_a_blocked_broker_takes_nothing_and_goes_on_delivering(
        self, connection: BrokerConnection, connect: Connect, faults: BrokerFaults, address: str
    ) -> None:
        published(connection, *some(address, 2))
        consumer = connect()
        blocked = faults.blocked()
        if blocked is None:
            pytest.skip("the broker is never blocked")
        with blocked:
            publisher = connect()
            results = publisher.publish(some(address, 3), 0.5)
            assert "confirmed" not in results
            if "unconfirmed" not in results:
                assert results == ["refused"] * 3
                assert publisher.is_blocked
            assert len(drained(consumer, address, 2)) == 2
        if "unconfirmed" not in results:
            assert eventually(lambda: not publisher.is_blocked)
            assert published(publisher, *some(address, 1)) == ["confirmed"]

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

    # Loss.

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


def some(address: str, count: int) -> list[Publication]:
    return [Publication(address, f"m{n}", f"body {n}".encode(), {"n": str(n)}) for n in range(count)]


def published(connection: BrokerConnection, *publications: Publication) -> list[str]:
    results = connection.publish(publications, TOLD_SECONDS_MAX)
    assert results == ["confirmed"] * len(publications)
    return list(results)


def received(connection: BrokerConnection, count: int) -> list[Delivery]:
    """Receive so many deliveries, in the order of their arrival."""
    deliveries: list[Delivery] = []

    def take() -> bool:
        deliveries.extend(connection.receive(1.0))
        return len(deliveries) >= count

    assert eventually(take), f"{len(deliveries)} of {count} deliveries came"
    assert len(deliveries) == count
    return deliveries


def drained(connection: BrokerConnection, address: str, count: int) -> list[Delivery]:
    """Receive so many deliveries of one address, and settle them."""
    connection.subscribe({address: count})
    deliveries = received(connection, count)
    connection.settle(deliveries)
    return deliveries


def exchanged(connection: BrokerConnection, *publications: Publication) -> list[Delivery]:
    """Publish to one address, receive all of it and settle it."""
    published(connection, *publications)
    return drained(connection, publications[0].address, len(publications))


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
