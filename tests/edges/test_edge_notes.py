"""How a process sees its broker is in the store, at each moment, and in ``stagepost status``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.broker.memory import MemoryBroker
from stagepost.flow.errors import DeclarationError, StoreUnavailable
from stagepost.ports.broker import Publication
from stagepost.ports.edge import EdgeView
from stagepost.runtime import back_pressure, edge, edge_notes, edge_services
from stagepost.runtime.edge_threads import EdgeThreads
from stagepost.testing.clock import ManualClock
from stagepost.testing.contract.givens import NOW
from tests.edges.direct_service import broker_named
from tests.edges.service import ABROAD, SECONDS, Order, prepared
from tests.edges.test_receiving import ADDRESS, an_envelope
from tests.waiting import PATIENCE_SECONDS, wait_until


class Running:
    """An app whose receiver and dispatcher run in this process."""

    def __init__(self, url: str, broker: MemoryBroker) -> None:
        self.broker = broker
        self.app = App("shop", database=url, broker=broker.url, outbound_max=2)

        @self.app.endpoint(ADDRESS)
        def order(ctx: Context, order: Order) -> None: ...

        self.engine = engine_of(self.app)
        self.threads = EdgeThreads(self.engine, on_orphaned=lambda reason: None)

    def views(self) -> list[EdgeView]:
        with closing(self.engine.store.session()) as session:
            return session.edge.views()

    def seen(self, state: str) -> EdgeView:
        """Return the view once it has this state."""
        (view,) = wait_until(lambda: [each for each in self.views() if each.state == state], f"the broker is {state}")
        return view

    def start(self, *flow_ids: str) -> None:
        for each in flow_ids:
            self.app.start(self.app.remote(ABROAD, Order), Order(each), flow_id=each)


@pytest.fixture
def running(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    for module, name in (
        (edge, "RECONNECT_SECONDS"),
        (edge_services, "RECONNECT_SECONDS"),
        (edge_notes, "NOTE_SECONDS"),
        (back_pressure, "LOOK_SECONDS"),
        (back_pressure, "TOTAL_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.01)
    broker = broker_named(f"memory:{request.node.name}", is_atomic=False)
    running = Running(f"sqlite:///{tmp_path / 'shop.db'}", broker)
    prepared(broker, ABROAD)
    running.threads.start()
    yield running
    assert running.threads.stop(PATIENCE_SECONDS)
    assert running.threads.error is None
    # A process that ends in good order leaves no view behind.
    assert running.views() == []
    running.app.close()


def test_each_state_of_the_broker_is_noted_with_its_reason(running: Running) -> None:
    broker = running.broker
    assert running.seen("connected").broker == broker.url
    running.start("f1")
    with closing(broker.connect(SECONDS)) as connection:
        connection.publish([Publication(ADDRESS, "m1", an_envelope("m1"), {})], SECONDS)
    wait_until(lambda: [each[5:7] for each in running.views()] == [(1, 1)], "one message arrived, and one left")

    broker.is_down = True
    broker.cut()
    wait_until(lambda: "it is down" in running.seen("away").reason, "the reason is noted")
    since = running.seen("away").since
    wait_until(lambda: running.seen("away").seen_at > since, "the state is noted again")
    assert running.seen("away").since == since
    broker.is_down = False
    assert running.seen("connected").reason == ""

    broker.is_blocked = True
    assert "takes no publications" in running.seen("blocked").reason
    # They wait in the alarm, and behind it too, where the destination takes none.
    running.start("f2", "f3")
    broker.refusing = {ABROAD}
    broker.is_blocked = False
    assert "2 outbound messages wait" in running.seen("full").reason


def test_the_limit_of_outbound_messages_is_a_setting() -> None:
    with pytest.raises(DeclarationError, match="outbound_max must be a whole number above 0"):
        App("shop", outbound_max=0)


class Seen:
    """A receiver and a dispatcher, as their notes see them."""

    trouble = fullness = ""
    is_blocked = False
    arrived = dispatched = 0


def test_a_change_is_noted_at_once_and_counts_once_in_a_while(tmp_path: Path) -> None:
    clock, seen = ManualClock(NOW), Seen()
    engine = engine_of(App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}"))
    notes = edge_notes.EdgeNotes(seen, seen, "amqp://here", "broker@one:1", clock)
    with closing(engine.store.session()) as session:
        notes.turn(session)
        seen.arrived = 3
        clock.advance(edge_notes.NOTE_SECONDS - 1)
        notes.turn(session)
        assert [each.arrived for each in session.edge.views()] == [0]
        clock.advance(1)
        notes.turn(session)
        assert [each[4:] for each in session.edge.views()] == [("", 3, 0, clock.now())]
        seen.trouble = "it is down"
        clock.advance(1)
        notes.turn(session)
        away_since = clock.now()
        assert [each[2:5] for each in session.edge.views()] == [("away", away_since, "it is down")]
        # Another host of the broker is away for another reason, and the state goes on.
        seen.trouble = "no answer"
        clock.advance(1)
        notes.turn(session)
        assert [each[2:5] for each in session.edge.views()] == [("away", away_since, "no answer")]
        # A killed process leaves its view. Another one removes it, a day later.
        clock.advance(25 * 3600)
        edge_notes.EdgeNotes(seen, seen, "amqp://here", "broker@two:2", clock).end(session)
        assert session.edge.views() == []


def test_an_outage_of_the_store_beside_that_of_the_broker_ends_no_thread(tmp_path: Path) -> None:
    seen = Seen()
    seen.trouble = "it is down"
    engine = engine_of(App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}"))
    notes = edge_notes.EdgeNotes(seen, seen, "amqp://here", "broker@one:1", engine.clock)
    with closing(engine.store.session()) as session:
        note_view = session.edge.note_view

        def fail(view: EdgeView) -> None:
            raise StoreUnavailable("the database starts up")

        session.edge.note_view = fail  # type: ignore[method-assign]
        notes.turn_in_an_outage(session)
        assert session.edge.views() == []
        session.edge.note_view = note_view  # type: ignore[method-assign]
        notes.turn_in_an_outage(session)
        assert [(each.state, each.reason) for each in session.edge.views()] == [("away", "it is down")]
