"""The mode outbox: the stages' data in one database, the messages in another, and no commit that has both."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from stagepost import App, Context, DeclarationError, IdConflict, Target
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.errors import CommitUnknown, StoreError, StoreUnavailable, WorkerDied
from stagepost.flow.ids import node_name
from stagepost.ports.dead_letters import DeadLetter
from stagepost.ports.inbox import InboxRow
from stagepost.runtime.assembly import queue_commit_of, relay_of
from stagepost.store.postgres.store import PostgresStore
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing import Harness, ManualClock
from stagepost.transaction.inbox_guard import LEASE
from stagepost.transaction.outcome import Buried, Completed, Duplicate, Lost
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.relay import ATTEMPTS_MAX
from stagepost.transaction.relay import LEASE as RELAY_LEASE
from stagepost.transaction.settling import Settlement, dead_letter
from stagepost.transaction.steps import Halt, Step
from tests.places import InTwo, place
from tests.toy_store.queue import ToyQueue
from tests.toy_store.store import ToyStore

if TYPE_CHECKING:
    from stagepost.store.postgres.session import PostgresSession
    from tests.conftest import Ledger

    NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True


@pytest.fixture(params=["memory-outbox", "sqlite-outbox", "postgres-outbox"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    return place(request)


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    id: str


@pytest.fixture
def other(app: App) -> Target[Receipt, None]:
    return app.remote("other", Receipt)


@pytest.fixture
def pay(app: App, ledger: Ledger, other: Target[Receipt, None]) -> Target[Order, None]:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        ctx.send(other, Receipt(order.id))

    return pay


@pytest.fixture
def worker(pay: Target[Order, None], harness: NewHarness) -> Harness:
    return harness()


def claimed(worker: Harness) -> Claim:
    claim = worker.claim_one()
    assert claim is not None
    return claim


def waypoints(worker: Harness, flow_id: str = "flow") -> list[tuple[str, str]]:
    return [(each.waypoint, each.stage) for each in worker.history(flow_id)]


def arrived(worker: Harness, stage: str = "other") -> list[str]:
    found = worker.access.claimer.claim([stage], 100, "other/1", "test")
    return [each.message_id for each in found]


def stop_at(app: App, step: Step) -> None:
    """Dies there, once."""

    def listen(current: Step, claim: Claim) -> None:
        if current is step:
            raise Halt

    engine_of(app).listener = listen


def dies_at(app: App, step: Step, harness: NewHarness) -> Claim:
    """Somebody handles the message, and is gone."""
    stop_at(app, step)
    victim = harness(owner="victim/1")
    claim = claimed(victim)
    with pytest.raises(Halt):
        victim.transaction.run(claim)
    victim.access.rollback()
    engine_of(app).listener = lambda step, claim: None
    return claim


def end_connection(app: App, worker: Harness) -> None:
    """The one to the queue's database, by the server."""
    session = cast("PostgresSession", worker.access.session)
    with psycopg.connect(engine_of(app).store.address, autocommit=True) as another:
        another.execute("SELECT pg_terminate_backend(%s, 60000)", (session._connection.info.backend_pid,))


def backlog(worker: Harness) -> tuple[int, int]:
    """How much was handled and is not marked, and how much is held to be sent."""
    work = worker.access.work
    return work.inbox.backlog().size, work.outbox.backlog().size


def test_a_message_is_handled_and_what_it_sends_arrives(
    app: App, pay: Target[Order, None], worker: Harness, ledger: Ledger
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    assert isinstance(worker.run_one(), Completed)
    assert ledger.entries == ["o1"]
    assert waypoints(worker) == [("accepted", "pay"), ("received", "pay"), ("committed", "pay"), ("sent", "other")]
    assert len(arrived(worker)) == 1
    assert backlog(worker) == (0, 0)


def test_the_steps_are_passed_in_this_order(
    app: App, pay: Target[Order, None], harness: NewHarness, ledger: Ledger
) -> None:
    passed: list[str] = []
    engine_of(app).listener = lambda step, claim: passed.append(step.value)
    worker = harness()
    app.start(pay, Order("o1"), flow_id="flow")
    worker.run_one()
    assert passed == [
        "claimed",
        "begun",
        "admitted",
        "handled",
        "recorded",
        "committing",
        "committed",
        "dispatched",
        "confirmed",
        "marked",
        "settled",
        "after_commit",
    ]


def test_no_transaction_is_open_in_the_stages_database_from_its_commit_on(
    app: App, pay: Target[Order, None], harness: NewHarness
) -> None:
    is_open: dict[Step, bool] = {}
    worker: Harness

    def note(step: Step, claim: Claim) -> None:
        is_open[step] = worker.access.work.is_begun

    engine_of(app).listener = note
    worker = harness()
    app.start(pay, Order("o1"), flow_id="flow")
    worker.run_one()
    assert is_open[Step.COMMITTING]
    later = list(is_open)[list(is_open).index(Step.COMMITTED) :]
    assert [is_open[step] for step in later] == [False] * len(later)


# Handled, and not yet sent


@pytest.mark.parametrize("step", [Step.COMMITTED, Step.DISPATCHED, Step.CONFIRMED])
def test_what_was_committed_and_not_sent_is_sent_as_it_was_and_no_handler_runs(
    app: App, pay: Target[Order, None], harness: NewHarness, ledger: Ledger, clock: ManualClock, step: Step
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    dies_at(app, step, harness)
    worker = harness()
    worker.access.claimer.release(worker.access.session.queue.owned("victim/1"), "test")
    outcome = worker.run_one()
    if step is Step.COMMITTED:
        assert isinstance(outcome, Duplicate)
    assert ledger.entries == ["o1"]
    assert len(arrived(worker)) == 1
    assert [each for each, _ in waypoints(worker)].count("committed") == 1
    clock.advance(LEASE / 1_000_000)
    relay = relay_of(engine_of(app), worker.access, "test")
    assert relay is not None
    relay.turn()
    assert backlog(worker) == (0, 0)


def test_what_was_committed_and_never_sent_because_its_processes_died_is_sent_by_a_replay(
    app: App, pay: Target[Order, None], harness: NewHarness, ledger: Ledger
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    claim = dies_at(app, Step.COMMITTED, harness)
    worker = harness()
    settlement = Settlement(QueueCommit(worker.access.session, engine_of(app).clock, "test", engine_of(app).listener))
    settlement.settle(engine_of(app).stages()["pay"], claim, Buried("worker-died", WorkerDied("killed, each time")))
    assert worker.drain() == []
    assert arrived(worker) == []
    (letter,) = worker.dead_letters()
    session = worker.access.session
    session.begin()
    QueueCommit(session, engine_of(app).clock, "test").revive(replace(letter, deaths=0))
    session.commit()
    assert isinstance(worker.run_one(), Duplicate)
    assert ledger.entries == ["o1"]
    assert len(arrived(worker)) == 1


def test_the_same_bytes_are_sent_though_the_code_is_another_by_then(
    app: App, pay: Target[Order, None], harness: NewHarness, ledger: Ledger
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    stop_at(app, Step.COMMITTED)
    victim = harness(owner="victim/1")
    with pytest.raises(Halt):
        victim.transaction.run(claimed(victim))
    victim.access.rollback()
    engine_of(app).listener = lambda step, claim: None
    sent_before = victim.access.work.inbox.find("pay", stage_message(victim))
    assert sent_before is not None
    assert sent_before.produced is not None
    worker = harness()
    worker.access.claimer.release(worker.access.session.queue.owned("victim/1"), "test")
    assert isinstance(worker.run_one(), Duplicate)
    (found,) = worker.access.claimer.claim(["other"], 1, "other/1", "test")
    assert found.envelope in sent_before.produced


def test_what_was_to_be_delayed_is_delayed_though_another_sends_it(
    app: App, ledger: Ledger, harness: NewHarness, clock: ManualClock, other: Target[Receipt, None]
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        ctx.send(other, Receipt(order.id), delay=60)

    app.start(pay, Order("o1"), flow_id="flow")
    stop_at(app, Step.COMMITTED)
    victim = harness(owner="victim/1")
    due_at = clock.now() + 60_000_000
    with pytest.raises(Halt):
        victim.transaction.run(claimed(victim))
    victim.access.rollback()
    engine_of(app).listener = lambda step, claim: None
    clock.advance(5)
    worker = harness()
    worker.access.claimer.release(worker.access.session.queue.owned("victim/1"), "test")
    assert isinstance(worker.run_one(), Duplicate)
    assert arrived(worker) == []
    assert worker.access.claimer.pending(["other"]).next_due_at == due_at


def stage_message(worker: Harness) -> str:
    (claim,) = worker.access.session.queue.owned("victim/1")
    return claim.message_id


def test_what_nobody_could_mark_is_marked_by_the_sweep_when_its_lease_is_over(
    app: App, pay: Target[Order, None], harness: NewHarness, clock: ManualClock
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    stop_at(app, Step.CONFIRMED)
    worker = harness()
    with pytest.raises(Halt):
        worker.transaction.run(claimed(worker))
    worker.access.rollback()
    relay = relay_of(engine_of(app), worker.access, "test")
    assert relay is not None
    assert relay.turn() == 0
    assert backlog(worker) == (1, 0)
    clock.advance(LEASE / 1_000_000)
    assert relay.turn() == 1
    assert backlog(worker) == (0, 0)


def test_what_is_in_the_queue_still_is_not_marked_by_the_sweep(
    app: App, pay: Target[Order, None], harness: NewHarness, clock: ManualClock
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    stop_at(app, Step.COMMITTED)
    worker = harness()
    with pytest.raises(Halt):
        worker.transaction.run(claimed(worker))
    worker.access.rollback()
    relay = relay_of(engine_of(app), worker.access, "test")
    assert relay is not None
    clock.advance(LEASE / 1_000_000)
    assert relay.turn() == 0
    assert backlog(worker) == (1, 0)
    assert worker.access.work.inbox.unsent(clock.now(), 10) == []


def test_an_owner_that_lost_its_message_after_its_commit_sends_nothing(
    app: App, pay: Target[Order, None], harness: NewHarness, ledger: Ledger
) -> None:
    """Paused between the two commits, and taken over: whoever has the message now sends what was kept."""
    app.start(pay, Order("o1"), flow_id="flow")
    heir = harness(owner="heir/1")

    def lose(step: Step, claim: Claim) -> None:
        if step is Step.COMMITTED and claim.owner == "slow/1":
            heir.access.claimer.release([claim], "test")
            assert isinstance(heir.run_one(), Duplicate)

    engine_of(app).listener = lose
    slow = harness(owner="slow/1")
    assert isinstance(slow.transaction.run(claimed(slow)), Lost)
    assert ledger.entries == ["o1"]
    assert len(arrived(heir)) == 1


@pytest.mark.parametrize("new_database", ["postgres-outbox"], indirect=True)
def test_an_owner_that_lost_its_message_and_its_connection_after_its_commit_leaves_what_it_produced_to_be_sent(
    app: App, pay: Target[Order, None], harness: NewHarness, ledger: Ledger
) -> None:
    """Whether its other commit stood it cannot tell by its claim, which was let go of either way."""
    app.start(pay, Order("o1"), flow_id="flow")
    heir = harness(owner="heir/1")

    def lose(step: Step, claim: Claim) -> None:
        if step is Step.COMMITTED and claim.owner == "slow/1":
            heir.access.claimer.release([claim], "test")
            end_connection(app, slow)

    engine_of(app).listener = lose
    slow = harness(owner="slow/1")
    assert isinstance(slow.transaction.run(claimed(slow)), Lost)
    assert backlog(heir) == (1, 0)
    assert isinstance(heir.run_one(), Duplicate)
    assert ledger.entries == ["o1"]
    assert len(arrived(heir)) == 1
    assert backlog(heir) == (0, 0)


def test_a_copy_that_comes_while_it_is_handled_changes_nothing(
    app: App, pay: Target[Order, None], harness: NewHarness, ledger: Ledger
) -> None:
    """Its owner was taken for dead before it wrote anything: the second to be admitted is told that it was handled."""
    app.start(pay, Order("o1"), flow_id="flow")
    heir = harness(owner="heir/1")
    has_run: list[object] = []

    def overtake(step: Step, claim: Claim) -> None:
        if step is Step.CLAIMED and claim.owner == "slow/1":
            heir.access.claimer.release([claim], "test")
            has_run.append(heir.run_one())

    engine_of(app).listener = overtake
    slow = harness(owner="slow/1")
    assert isinstance(slow.transaction.run(claimed(slow)), Lost)
    assert isinstance(has_run[0], Completed)
    assert ledger.entries == ["o1"]
    assert len(arrived(heir)) == 1


def test_the_same_id_with_other_content_is_a_dead_letter_and_changes_nothing(
    app: App, pay: Target[Order, None], worker: Harness, ledger: Ledger
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    claim = claimed(worker)
    work = worker.access.work
    work.begin()
    assert work.inbox.admit(InboxRow("pay", claim.message_id, "of something else", 1, 1))
    work.commit()
    outcome = worker.transaction.run(claim)
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, IdConflict)
    assert ledger.entries == []
    (letter,) = worker.dead_letters()
    assert letter.envelope == claim.envelope
    assert "of something" in letter.causes[0].message


def test_what_was_sent_already_is_a_duplicate_that_is_taken(
    app: App, pay: Target[Order, None], worker: Harness, ledger: Ledger
) -> None:
    """As after a restored backup of the queue's database."""
    app.start(pay, Order("o1"), flow_id="flow")
    claim = claimed(worker)
    assert isinstance(worker.transaction.run(claim), Completed)
    session = worker.access.session
    session.begin()
    QueueCommit(worker.access.session, engine_of(app).clock, "test").revive(letter_of(app, claim))
    session.commit()
    again = claimed(worker)
    assert isinstance(worker.transaction.run(again), Duplicate)
    assert ledger.entries == ["o1"]
    assert waypoints(worker)[-1] == ("duplicate", "pay")
    assert worker.access.claimer.pending(["pay"]).is_drained


def letter_of(app: App, claim: Claim) -> DeadLetter:
    return dead_letter(engine_of(app).stages()[claim.stage], claim, Buried("exhausted", ValueError("x")), 1, "test")


# The queue's database says no


class Outage:
    """The queue's commits fail until it is over."""

    def __init__(self, worker: Harness, patch: pytest.MonkeyPatch) -> None:
        self.tries = 0
        self.is_over = False
        commit = worker.access.session.commit

        def refuse() -> None:
            if self.is_over:
                commit()
                return
            self.tries += 1
            worker.access.session.rollback()
            raise StoreUnavailable("the queue's database is away")

        patch.setattr(worker.access.session, "commit", refuse)


def test_while_the_queues_database_is_away_the_work_stays_and_is_not_done_again(
    app: App, pay: Target[Order, None], worker: Harness, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    claim = claimed(worker)
    with monkeypatch.context() as patch:
        outage = Outage(worker, patch)
        worker.transaction.run(claim)
        assert outage.tries == 1
        assert ledger.entries == ["o1"]
        assert not worker.access.work.is_begun
    assert isinstance(worker.transaction.run(claim), Duplicate)
    assert ledger.entries == ["o1"]
    assert len(arrived(worker)) == 1


def refuse_messages_to(app: App, stage: str, patch: pytest.MonkeyPatch) -> None:
    """The queue takes none to that stage, for a reason that does not pass."""
    store = engine_of(app).store
    if isinstance(store, ToyStore):
        enqueue = ToyQueue.enqueue

        def choosy(self: ToyQueue, rows: Any) -> None:
            if any(row.stage == stage for row in rows):
                raise StoreError("refused")
            enqueue(self, rows)

        patch.setattr(ToyQueue, "enqueue", choosy)
    elif isinstance(store, SqliteStore):
        with closing(sqlite3.connect(store.path)) as connection:
            connection.execute(
                f"CREATE TRIGGER no BEFORE INSERT ON stagepost_ready WHEN NEW.stage = '{stage}' "
                "BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )
    else:
        assert isinstance(store, PostgresStore)
        with psycopg.connect(store.address) as server:
            server.execute(
                "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = 'P0001'; END $$"
            )
            server.execute(
                "CREATE TRIGGER no BEFORE INSERT ON stagepost_ready FOR EACH ROW "
                f"WHEN (NEW.stage = '{stage}') EXECUTE FUNCTION no()"
            )


def take_messages_again(app: App) -> None:
    store = engine_of(app).store
    if isinstance(store, SqliteStore):
        with closing(sqlite3.connect(store.path)) as connection:
            connection.execute("DROP TRIGGER no")
    elif isinstance(store, PostgresStore):
        with psycopg.connect(store.address) as server:
            server.execute("DROP TRIGGER no ON stagepost_ready")


def test_one_that_cannot_be_sent_is_a_dead_letter_and_its_siblings_go(
    app: App, ledger: Ledger, harness: NewHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    good: Target[Receipt, None] = app.remote("good", Receipt)
    bad: Target[Receipt, None] = app.remote("bad", Receipt)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        ctx.send(good, Receipt("1"))
        ctx.send(bad, Receipt("2"))
        ctx.send(good, Receipt("3"))

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    claim = claimed(worker)
    refuse_messages_to(app, "bad", monkeypatch)
    assert isinstance(worker.transaction.run(claim), Completed)
    assert ledger.entries == ["o1"]
    (letter,) = worker.dead_letters()
    assert (letter.stage, letter.reason, letter.flow_id) == ("bad", "unsendable", "flow")
    assert sorted(waypoints(worker)[2:]) == [
        ("committed", "pay"),
        ("dead", "bad"),
        ("sent", "bad"),
        ("sent", "good"),
        ("sent", "good"),
    ]
    assert len(arrived(worker, "good")) == 2
    assert worker.access.claimer.pending(["pay"]).is_drained
    assert backlog(worker) == (0, 0)


# Starting flows


@pytest.fixture
def relay(app: App, pay: Target[Order, None]) -> Iterator[Callable[[], int]]:
    """Turns it, in a session of its own."""
    access = engine_of(app).access()
    made = relay_of(engine_of(app), access, "relay")
    assert made is not None
    yield made.turn
    access.close()


def test_a_flow_is_started_without_the_queues_database(
    app: App, pay: Target[Order, None], worker: Harness, relay: Callable[[], int], clock: ManualClock
) -> None:
    assert app.start(pay, Order("o1"), flow_id="flow").is_new
    assert not app.start(pay, Order("o1"), flow_id="flow").is_new
    assert worker.history("flow") == []
    assert not worker.access.claimer.pending(["pay"]).is_drained
    started_at = clock.now()
    clock.advance(60)
    assert relay() == 1
    assert waypoints(worker) == [("accepted", "pay")]
    (accepted,) = worker.history("flow")
    assert (accepted.at, accepted.node) == (started_at, node_name("app"))
    assert relay() == 0
    assert backlog(worker) == (0, 0)


def test_a_flow_is_started_though_the_queues_database_cannot_be_opened(tmp_path: Path) -> None:
    queue = f"sqlite:///{tmp_path / 'missing' / 'queue.db'}"
    app = App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}", queue=queue, mode="outbox")
    assert app.start(app.remote("pay", Order), Order("o1"), flow_id="flow").is_new
    app.close()


def test_an_id_that_stood_for_other_content_is_told_at_once(app: App, pay: Target[Order, None]) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    with pytest.raises(IdConflict):
        app.start(pay, Order("o2"), flow_id="flow")


def test_an_initiation_that_fails_starts_nothing(
    app: App, pay: Target[Order, None], worker: Harness, relay: Callable[[], int]
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")

    def start_two() -> None:
        with app.initiate() as out:
            out.send(pay, Order("new"), flow_id="new")
            out.send(pay, Order("other"), flow_id="flow")

    with pytest.raises(IdConflict):
        start_two()
    assert relay() == 1
    assert worker.history("new") == []


def test_what_reached_the_queue_and_was_not_forgotten_is_not_started_again(
    app: App, pay: Target[Order, None], worker: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    die_before_it_is_forgotten(app, clock, monkeypatch)
    assert [type(each) for each in worker.drain()] == [Completed]
    assert [each for each, _ in waypoints(worker)].count("accepted") == 1
    assert backlog(worker) == (0, 0)


def die_before_it_is_forgotten(app: App, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay's turn that ends after the queue's commit. When it returns, its lease is over."""
    access = engine_of(app).access()
    made = relay_of(engine_of(app), access, "relay")
    assert made is not None
    with monkeypatch.context() as patch:

        def die(settled: object) -> None:
            if settled:
                raise Halt

        patch.setattr(made, "_forget", die)
        with pytest.raises(Halt):
            made.turn()
    access.close()
    clock.advance(RELAY_LEASE / 1_000_000)


def test_two_relays_send_it_once(app: App, pay: Target[Order, None], worker: Harness) -> None:
    for number in range(5):
        app.start(pay, Order(f"o{number}"), flow_id=f"flow:{number}")
    accesses = [engine_of(app).access(), engine_of(app).access()]
    relays = [relay_of(engine_of(app), each, "relay") for each in accesses]
    assert relays[0] is not None
    assert relays[1] is not None
    leased = relays[0]._lease()
    assert len(leased) == 5
    assert relays[1].turn() == 0
    relays[0]._forget(relays[0]._dispatch(leased))
    for each in accesses:
        each.close()
    assert len(worker.drain()) == 5


def test_while_the_queues_database_is_away_what_is_held_waits_uncounted(
    app: App, pay: Target[Order, None], worker: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    relay = relay_of(engine_of(app), worker.access, "relay")
    assert relay is not None
    with monkeypatch.context() as patch:
        Outage(worker, patch)
        for _ in range(ATTEMPTS_MAX + 1):
            with pytest.raises(StoreUnavailable):
                relay.turn()
    assert relay.turn() == 1
    assert worker.dead_letters() == []


def test_one_whose_arrival_is_never_answered_is_no_dead_letter(
    app: App, pay: Target[Order, None], worker: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    relay = relay_of(engine_of(app), worker.access, "relay")
    assert relay is not None
    session = worker.access.session
    commit = session.commit

    def lose_the_answer() -> None:
        commit()
        raise CommitUnknown("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(session, "commit", lose_the_answer)
        for _ in range(ATTEMPTS_MAX + 1):
            with pytest.raises(CommitUnknown):
                relay.turn()
            clock.advance(60)
    assert relay.turn() == 1
    assert worker.dead_letters() == []
    assert [each for each, _ in waypoints(worker)] == ["accepted"]


def test_one_that_the_queue_never_takes_ends_as_a_dead_letter_and_holds_up_nobody(
    app: App,
    pay: Target[Order, None],
    other: Target[Receipt, None],
    worker: Harness,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app.start(other, Receipt("never"), flow_id="bad")
    app.start(pay, Order("o1"), flow_id="flow")
    refuse_messages_to(app, "other", monkeypatch)
    relay = relay_of(engine_of(app), worker.access, "relay")
    assert relay is not None
    assert relay.turn() == 1
    assert waypoints(worker) == [("accepted", "pay")]
    for attempt in range(1, ATTEMPTS_MAX):
        assert worker.dead_letters() == []
        clock.advance(2 ** (attempt - 1))
        assert relay.turn() == (1 if attempt == ATTEMPTS_MAX - 1 else 0)
    (letter,) = worker.dead_letters()
    assert (letter.stage, letter.reason) == ("other", "unsendable")
    assert waypoints(worker, "bad") == [("accepted", "other"), ("dead", "other")]
    assert backlog(worker) == (0, 0)


def test_one_that_was_buried_and_not_forgotten_is_one_dead_letter_though_the_queue_would_take_it_now(
    app: App,
    other: Target[Receipt, None],
    worker: Harness,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    relay: Callable[[], int],
) -> None:
    app.start(other, Receipt("never"), flow_id="bad")
    with monkeypatch.context() as refusing:
        refuse_messages_to(app, "other", refusing)
        for _ in range(ATTEMPTS_MAX - 1):
            assert relay() == 0
            clock.advance(60)
        die_before_it_is_forgotten(app, clock, monkeypatch)
    take_messages_again(app)
    assert relay() == 1
    assert len(worker.dead_letters()) == 1
    assert arrived(worker) == []
    assert waypoints(worker, "bad") == [("accepted", "other"), ("dead", "other")]
    assert backlog(worker) == (0, 0)


@pytest.fixture
def theirs(app: App) -> Iterator[App]:
    """Another service on the same queue: their databases do not know of each other."""
    theirs = App("theirs", database=app.queue, clock=engine_of(app).clock)
    engine_of(theirs).databases._store = engine_of(app).store
    yield theirs
    theirs.close()


def test_a_conflict_that_was_buried_and_not_forgotten_is_one_dead_letter(
    app: App,
    theirs: App,
    pay: Target[Order, None],
    worker: Harness,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    relay: Callable[[], int],
) -> None:
    app.start(pay, Order("mine"), flow_id="flow")
    theirs.start(theirs.remote("pay", Order), Order("theirs"), flow_id="flow")
    die_before_it_is_forgotten(app, clock, monkeypatch)
    assert relay() == 1
    assert len(worker.dead_letters()) == 1
    assert backlog(worker) == (0, 0)


def test_an_id_that_the_queue_knows_for_other_content_is_a_dead_letter(
    app: App, theirs: App, pay: Target[Order, None], worker: Harness, relay: Callable[[], int]
) -> None:
    app.start(pay, Order("mine"), flow_id="flow")
    theirs.start(theirs.remote("pay", Order), Order("theirs"), flow_id="flow")
    assert relay() == 1
    (letter,) = worker.dead_letters()
    assert letter.reason == "unsendable"
    assert "other content" in letter.causes[0].message
    assert waypoints(worker) == [("accepted", "pay")]


def test_flows_are_started_in_the_callers_own_transaction(
    app: App, pay: Target[Order, None], worker: Harness, relay: Callable[[], int]
) -> None:
    business = engine_of(app).databases.business
    if isinstance(business, ToyStore):
        pytest.skip("the memory store has no connection to join")
    assert business is not None
    connection: Any = (
        sqlite3.connect(business.path) if isinstance(business, SqliteStore) else psycopg.connect(business.address)
    )
    with closing(connection):
        with app.initiate(connection=connection) as out:
            out.send(pay, Order("o1"), flow_id="flow")
        assert relay() == 0
        connection.rollback()
        assert relay() == 0
        with app.initiate(connection=connection) as out:
            out.send(pay, Order("o1"), flow_id="flow")
        connection.commit()
    assert relay() == 1
    assert waypoints(worker) == [("accepted", "pay")]


def test_what_a_stage_initiates_starts_with_its_commit_and_not_without_it(
    app: App, harness: NewHarness, ledger: Ledger, clock: ManualClock
) -> None:
    mail: Target[Receipt, None] = app.remote("mail", Receipt)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        app.start(mail, Receipt(order.id), flow_id=f"mail:{ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError("the first attempt fails")

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    worker.drain()
    assert worker.history("mail:1") == []
    assert waypoints(worker, "mail:2") == [("accepted", "mail")]
    assert ledger.entries == ["o1"]


# What cannot keep its promise


def test_single_is_refused_where_the_messages_are_elsewhere(new_database: InTwo) -> None:
    app = App("shop", database=new_database(), queue=new_database())

    @app.endpoint("pay", mode="single")
    def pay(ctx: Context, order: Order) -> None: ...

    with pytest.raises(DeclarationError, match="one commit cannot have both"):
        Harness(app)


def test_outbox_is_refused_where_the_messages_are_beside_the_data(new_database: InTwo) -> None:
    app = App("shop", database=new_database(), mode="outbox")

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    with pytest.raises(DeclarationError, match="single is stronger and cheaper"):
        Harness(app)


@pytest.mark.parametrize("mode", ["exactly-once", 1])
def test_a_mode_that_there_is_not_is_refused_when_it_is_declared(new_database: InTwo, mode: Any) -> None:
    with pytest.raises(DeclarationError, match=f"mode={mode!r}"):
        App("shop", database=new_database(), mode=mode)


def test_a_transport_that_is_the_database_itself_is_refused(new_database: InTwo) -> None:
    url = new_database()
    if url == "toy:":
        pytest.skip("each memory store is one of its own")
    app = App("shop", database=url, queue=url)
    with pytest.raises(DeclarationError, match="Leave it out"):
        engine_of(app).access()


def test_who_settles_without_having_worked_has_nothing_of_the_stages(
    app: App, pay: Target[Order, None], worker: Harness
) -> None:
    """Whoever takes over from the dead needs the queue's database alone."""
    app.start(pay, Order("o1"), flow_id="flow")
    claim = claimed(worker)
    queue_commit = queue_commit_of(engine_of(app), worker.access, "sweeper")
    settlement = Settlement(
        QueueCommit(queue_commit.session, queue_commit.clock, queue_commit.node, queue_commit.listener)
    )
    settlement.settle(engine_of(app).stages()["pay"], claim, Buried("exhausted", ValueError("x")))
    assert len(worker.dead_letters()) == 1
