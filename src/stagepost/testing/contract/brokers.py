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

from concurrent.futures import ThreadPoolExecutor

import pytest

from stagepost.flow.errors import BrokerMismatch
from stagepost.ports.broker import BrokerConnection, Publication
from stagepost.testing.contract.broker_addresses import BrokerAddressesContract
from stagepost.testing.contract.broker_givens import (
    STORE,
    WINDOW,
    BrokerFaults,
    Connect,
    drained,
    exchanged,
    published,
    received,
    some,
)
from stagepost.testing.contract.broker_losses import BrokerLossesContract
from stagepost.testing.contract.givens import LONG_ID, MEGABYTE, TOLD_SECONDS_MAX, eventually

__all__ = ["BrokerConnectionContract", "BrokerFaults"]

# A connection may confuse none of these signs with its own.
AWKWARD = "a:b\\c=d;e\"f'g\\n {} ünï 注文 🚚 \u00a0 %00 \r\n\t end"


class BrokerConnectionContract(BrokerAddressesContract, BrokerLossesContract):
    """The whole contract of a broker's connection. Provide ``broker`` and ``faults``."""

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
        ids: set[str] = set()

        def take() -> bool:
            ids.update(each.message_id for each in again.receive(1.0))
            return "m1" in ids

        assert eventually(take)

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
