"""Two receivers of one store on PostgreSQL: copies of the same messages, in opposite orders, and a key that is held."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from stagepost.broker.memory import MemoryBroker
from stagepost.ports.queue import QueueRow
from stagepost.testing.contract.givens import committed
from stagepost.transaction.receiver import AGAIN_SECONDS
from tests.edges.test_receiving import ADDRESS, Receiving, an_envelope
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.more


@pytest.fixture
def two(new_postgres: Callable[[], str]) -> Iterator[list[Receiving]]:
    url = new_postgres()
    receivers = [Receiving(url, MemoryBroker()) for _ in range(2)]
    yield receivers
    for each in receivers:
        each.close()


@contextmanager
def held(shop: Receiving, message_id: str) -> Iterator[None]:
    """Keep a transaction open that has stored a copy of the message, as a receiver in another process does."""
    other = Receiving(shop.app.database, MemoryBroker())
    other.arrive(an_envelope(message_id))
    other.connection.subscribe(other.windows)
    (delivery,) = other.connection.receive(1)
    with closing(other):
        arrival = other.receiver.read(delivery)
        other.session.begin()
        other.receiver._write([arrival])
        yield
        other.session.rollback()


def test_a_message_whose_id_is_held_waits_and_its_neighbours_are_stored(two: list[Receiving]) -> None:
    shop = two[0]
    shop.arrive(an_envelope("m1"), an_envelope("held"), an_envelope("m2"))
    with held(shop, "held"):
        assert shop.turn() == 2
        assert shop.depth() == {ADDRESS: 2}
    shop.clock.advance(AGAIN_SECONDS + 1)
    assert shop.turn() == 1
    assert (shop.depth(), shop.letters()) == ({ADDRESS: 3}, [])


def test_copies_in_opposite_orders_are_stored_once_without_a_deadlock(two: list[Receiving]) -> None:
    bodies = [an_envelope(f"m{n:03}") for n in range(60)]
    two[0].arrive(*bodies)
    two[1].arrive(*reversed(bodies))
    barrier = threading.Barrier(2)
    errors: list[BaseException] = []

    def receive(shop: Receiving) -> None:
        try:
            barrier.wait(PATIENCE_SECONDS)
            settled = 0
            while settled < len(bodies):
                settled += shop.turn()
                shop.clock.advance(AGAIN_SECONDS + 1)
        except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
            errors.append(error)

    threads = [threading.Thread(target=receive, args=(each,)) for each in two]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert errors == []
    assert two[0].depth() == {ADDRESS: len(bodies)}
    lines = [each.waypoint for n in range(60) for each in two[0].session.journal.history(f"flow-m{n:03}")]
    assert (lines.count("arrived"), lines.count("duplicate")) == (60, 60)


def test_a_value_that_postgresql_refuses_is_a_dead_letter_and_its_neighbours_are_stored(two: list[Receiving]) -> None:
    shop = two[0]
    enqueue = shop.session.queue.enqueue

    def out_of_range(rows: list[QueueRow]) -> None:
        enqueue([row._replace(failures=2**31) if row.message_id == "bad" else row for row in rows])

    shop.session.queue.enqueue = out_of_range  # type: ignore[method-assign,assignment]
    shop.arrive(an_envelope("m1"), an_envelope("bad"), an_envelope("m2"))
    assert shop.turn() == 3
    assert (shop.depth(), [each.message_id for each in shop.letters()]) == ({ADDRESS: 2}, ["bad"])


def test_the_dispatcher_of_one_process_leaves_the_claims_of_another_alone(two: list[Receiving]) -> None:
    sender = two[0]
    sender.send("f1", "f2")
    with committed(two[1].session):
        (claim,) = two[1].session.queue.claim(["@out/ledger.reserve"], 1, "shop/other", 0)
    broker = MemoryBroker()
    connection = broker.connect(1)
    connection.prepare(["ledger.reserve"], "another store")
    assert sender.dispatcher.turn(connection) == 1
    assert two[1].session.queue.owned("shop/other") == [claim]
