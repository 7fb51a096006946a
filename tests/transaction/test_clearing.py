"""The three ways in which the stored bytes of a message go after it was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stagepost import App, Context, DeclarationError, Target
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.errors import StoreUnavailable
from stagepost.ports.inbox import InboxRow
from stagepost.ports.queue import Pending
from stagepost.ports.retention import FIRST_HANDLED
from stagepost.runtime.assembly import relay_of
from stagepost.runtime.loop import work
from stagepost.runtime.prefetch import Prefetcher
from stagepost.runtime.service import NeverStops
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing import Harness, ManualClock
from stagepost.testing.contract.givens import NOW, committed
from stagepost.transaction import sent_marks
from stagepost.transaction.inbox_guard import LEASE
from stagepost.transaction.sent_marks import CLEARINGS, BatchedMarks, Clearing
from stagepost.transaction.steps import Halt, Step


@dataclass
class Order:
    number: int


@dataclass
class Packed:
    number: int


@dataclass
class Shop:
    """An app in two databases; ``packed`` has the orders whose messages arrived."""

    app: App
    pay: Target[Order, None]
    clock: ManualClock
    packed: list[int]
    fails: Callable[[Step], None]

    def order(self, *numbers: int) -> None:
        for number in numbers:
            self.app.start(self.pay, Order(number), flow_id=f"order:{number}")

    def unmarked(self, harness: Harness) -> int:
        return harness.access.work.inbox.backlog().size


Make = Callable[[Clearing], Shop]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    made: Callable[[], str] | None = request.getfixturevalue("new_postgres") if request.param == "postgres" else None
    apps: list[App] = []

    def new(clearing: Clearing) -> Shop:
        urls = [made() if made else f"sqlite:///{tmp_path}/{name}.db" for name in ("data", "queue")]
        clock, packed = ManualClock(NOW), list[int]()
        halted: list[Step] = []

        def listen(step: Step, claim: Claim) -> None:
            if halted and step is halted[0] and claim.stage == "shop.pay":
                halted.clear()
                raise Halt

        app = App("shop", database=urls[0], queue=urls[1], clock=clock, clearing=clearing, listener=listen)

        @app.endpoint("shop.pack")
        def pack(ctx: Context, message: Packed) -> None:
            packed.append(message.number)

        @app.endpoint("shop.pay")
        def pay(ctx: Context, order: Order) -> None:
            ctx.send(pack, Packed(order.number))

        apps.append(app)
        return Shop(app, pay, clock, packed, halted.append)

    yield new
    for each in apps:
        each.close()


def a_claim(message_id: str) -> Claim:
    return Claim(1, "w1", 1, "pay", message_id, "flow", 0, 0, 0, b"")


@pytest.mark.parametrize("clearing", CLEARINGS)
def test_the_bytes_go_after_they_were_sent_and_the_ids_stay(make: Make, clearing: Clearing) -> None:
    shop = make(clearing)
    shop.order(1, 2)
    with closing(Harness(shop.app)) as harness:
        harness.drain()
        rows = {"worker": 0, "message": 0, "sweep": 4}[clearing]
        assert shop.unmarked(harness) == rows
        shop.clock.advance(LEASE / 1_000_000 + 1)
        harness.drain()
        assert shop.unmarked(harness) == 0
        work = harness.access.work
        assert len(work.retention.old_handled("shop.pay", 9, FIRST_HANDLED, 9)) == 2
        assert sorted(shop.packed) == [1, 2]
        assert not harness.dead_letters()


@pytest.mark.parametrize("clearing", CLEARINGS)
@pytest.mark.parametrize("step", [Step.COMMITTED, Step.DISPATCHED, Step.CONFIRMED])
def test_the_bytes_go_after_a_crash_and_each_message_is_sent_once(make: Make, clearing: Clearing, step: Step) -> None:
    shop = make(clearing)
    shop.order(1)
    with closing(Harness(shop.app)) as first:
        shop.fails(step)
        with pytest.raises(Halt):
            first.drain()
        assert first.running is not None
        first.access.rollback()
        first.access.claimer.release([first.running], first.node)
    with closing(Harness(shop.app)) as second:
        second.drain()
        shop.clock.advance(LEASE / 1_000_000 + 1)
        second.drain()
        assert shop.packed == [1]
        assert shop.unmarked(second) == 0


def test_the_marking_message_is_in_the_flow(make: Make) -> None:
    shop = make("message")
    shop.order(1)
    with closing(Harness(shop.app)) as harness:
        harness.drain()
        stages = {each.stage for each in harness.history("order:1")}
    assert stages == {"shop.pay", "shop.pack", "shop.stagepost.dispatched"}


def test_a_busy_thread_marks_in_batches_of_a_maximum_age(tmp_path: Path) -> None:
    clock, marked = ManualClock(NOW), list[str]()
    with closing(SqliteStore(tmp_path / "store.db").session()) as session:
        marks = BatchedMarks(session, clock, lambda claim: marked.append(claim.message_id))
        for number in range(5):
            with committed(session):
                session.inbox.admit(InboxRow("pay", f"m{number}", "digest", NOW, NOW))
            if number == 4:
                clock.advance(sent_marks.MARKS_SECONDS)
            marks.sent(a_claim(f"m{number}"))
            # The first one is marked at once. The others do not put the next commit off.
            assert len(marked) == (1 if number < 4 else 5)
        marks.flush()
        assert session.inbox.backlog().size == 0


def test_a_thread_without_a_message_at_hand_marks_what_it_put_off(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the idle thread's part, all but the first row would wait for the next message.
    monkeypatch.setattr(sent_marks, "MARKS_SECONDS", 3600.0)
    shop = make("worker")
    shop.order(1, 2, 3)
    engine = engine_of(shop.app)
    with closing(Harness(shop.app)) as harness:
        access, left = harness.access, list[int]()
        relay = relay_of(engine, access, "here")
        assert relay is not None
        relay.turn()

        def is_done(pending: Pending) -> bool:
            left.append(access.work.inbox.backlog().size)
            return True

        prefetcher = Prefetcher(dict.fromkeys(engine.modes(), 1), "harness/1", "here", 1, shop.clock, is_done=is_done)
        assert work(prefetcher, access, harness.transaction, shop.clock, NeverStops()) == 6
        assert left == [0]


def test_marks_that_a_database_refuses_are_left_to_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(SqliteStore(tmp_path / "store.db").session()) as session:
        marks = BatchedMarks(session, ManualClock(NOW), lambda _: None)

        def refuse(*_: object) -> None:
            raise StoreUnavailable("away")

        monkeypatch.setattr(session.inbox, "mark", refuse)
        marks.sent(a_claim("m1"))
        assert [each.event for each in caplog.records if hasattr(each, "event")] == ["not-marked"]


@pytest.mark.parametrize("clearing", ["message", "sweep", "never"])
def test_a_way_of_clearing_that_cannot_work_is_refused(tmp_path: Path, clearing: Any) -> None:
    app = App("shop", database=f"sqlite:///{tmp_path}/shop.db", clearing=clearing)
    with pytest.raises(DeclarationError, match="one of worker, message and sweep" if clearing == "never" else "queue="):
        engine_of(app).modes()


def test_the_address_of_the_marking_stage_is_taken() -> None:
    app = App("shop", clearing="message")
    with pytest.raises(DeclarationError, match="declared twice: at clearing='message'"):

        @app.endpoint("shop.stagepost.dispatched")
        def other(ctx: Context, order: Order) -> None: ...
