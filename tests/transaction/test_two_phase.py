"""The mode two_phase: two PostgreSQL databases, of which both commit or neither does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from time import time_ns
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from stagepost import App, Context, DeclarationError, Target
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.errors import CommitUnknown, StoreError, StoreUnavailable
from stagepost.runtime.assembly import check_databases, relay_of
from stagepost.store.postgres.decisions import PostgresDecisions
from stagepost.store.postgres.session import PostgresSession
from stagepost.testing import Harness, ManualClock
from stagepost.transaction import relay as relay_module
from stagepost.transaction import two_phase
from stagepost.transaction.outcome import Abandoned, Completed, Duplicate, Lost, Outcome, Redelivered
from stagepost.transaction.steps import Halt, Step
from tests.places import InTwo

if TYPE_CHECKING:
    from tests.conftest import Ledger

    NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True


@pytest.fixture(params=["postgres-two_phase"])
def new_database(new_postgres: Callable[[], str]) -> Callable[[], str]:
    return InTwo(new_postgres, "two_phase")


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    id: str


@pytest.fixture
def pay(app: App, ledger: Ledger) -> Target[Order, None]:
    other: Target[Receipt, None] = app.remote("other", Receipt)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        ctx.send(other, Receipt(order.id))

    return pay


@pytest.fixture
def worker(app: App, pay: Target[Order, None], harness: NewHarness) -> Harness:
    app.start(pay, Order("o1"), flow_id="flow")
    return harness()


def claimed(worker: Harness) -> Claim:
    claim = worker.claim_one()
    assert claim is not None
    return claim


def released(app: App, worker: Harness, owner: str) -> None:
    worker.access.claimer.release(worker.access.session.queue.owned(owner, is_unattended=True), "test")


def in_doubt(app: App) -> list[str]:
    with psycopg.connect(engine_of(app).store.address) as server:
        found = server.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        return [gid for (gid,) in found]


def decisions(app: App) -> list[tuple[str, bool]]:
    business = engine_of(app).databases.business
    assert business is not None
    with psycopg.connect(business.address) as server:
        return server.execute("SELECT gid, is_commit FROM stagepost_decision").fetchall()


def waypoints(worker: Harness) -> list[tuple[str, str]]:
    return [(each.waypoint, each.stage) for each in worker.history("flow")]


def arrived(worker: Harness) -> int:
    return len(worker.access.claimer.claim(["other"], 100, "other/1", "test"))


def dies_at(app: App, step: Step, harness: NewHarness) -> Claim:
    """Somebody handles the message, and is gone."""

    def listen(current: Step, claim: Claim) -> None:
        if current is step:
            raise Halt

    engine_of(app).listener = listen
    victim = harness(owner="victim/1")
    claim = claimed(victim)
    with pytest.raises(Halt):
        victim.transaction.run(claim)
    victim.access.rollback()
    engine_of(app).listener = lambda step, claim: None
    return claim


def test_both_commit(app: App, worker: Harness, ledger: Ledger) -> None:
    assert isinstance(worker.run_one(), Completed)
    assert ledger.entries == ["o1"]
    assert waypoints(worker) == [("accepted", "pay"), ("received", "pay"), ("committed", "pay"), ("sent", "other")]
    assert in_doubt(app) == []
    assert arrived(worker) == 1
    assert [is_commit for _, is_commit in decisions(app)] == [True]


def test_the_steps_are_passed_in_this_order(app: App, pay: Target[Order, None], harness: NewHarness) -> None:
    passed: list[str] = []
    engine_of(app).listener = lambda step, claim: passed.append(step.value)
    app.start(pay, Order("o1"), flow_id="flow")
    harness().run_one()
    assert passed == [
        "claimed",
        "begun",
        "admitted",
        "handled",
        "recorded",
        "committing",
        "prepared",
        "decided",
        "committed",
        "after_commit",
    ]


def test_decisions_that_were_carried_out_are_forgotten_with_the_next_and_at_the_end(
    app: App, pay: Target[Order, None], worker: Harness
) -> None:
    for number in range(2, 5):
        app.start(pay, Order(f"o{number}"), flow_id=f"flow:{number}")
    assert len(worker.drain()) == 4
    assert len(decisions(app)) == 1
    worker.transaction.close()
    assert decisions(app) == []


@pytest.mark.parametrize("step", [Step.PREPARED, Step.DECIDED])
def test_whoever_dies_in_between_leaves_it_in_doubt_and_the_next_attempt_settles_it_first(
    app: App, pay: Target[Order, None], harness: NewHarness, ledger: Ledger, step: Step
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    claim = dies_at(app, step, harness)
    assert len(in_doubt(app)) == 1
    worker = harness()
    outcome = worker.transaction.run(claim._replace(deliveries=claim.deliveries + 1))
    if step is Step.DECIDED:
        assert isinstance(outcome, Duplicate)
        assert ledger.entries == ["o1"]
        assert arrived(worker) == 1
    else:
        # The claim was made up: the message is where it was, and free.
        assert isinstance(outcome, Lost)
        assert ledger.entries == []
        released(app, worker, "victim/1")
        assert isinstance(worker.run_one(), Completed)
        assert ledger.entries == ["o1"]
    assert in_doubt(app) == []
    assert worker.access.claimer.pending(["pay"]).is_drained


@pytest.mark.parametrize("step", [Step.PREPARED, Step.DECIDED])
def test_what_is_in_doubt_for_long_is_settled_by_whoever_relays(
    app: App,
    pay: Target[Order, None],
    harness: NewHarness,
    ledger: Ledger,
    step: Step,
    monkeypatch: pytest.MonkeyPatch,
    clock: ManualClock,
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    dies_at(app, step, harness)
    worker = harness()
    relay = relay_of(engine_of(app), worker.access, "relay")
    assert relay is not None
    assert relay.turn() == 0
    assert len(in_doubt(app)) == 1
    # Nobody waits for them meanwhile, but for the one message.
    assert worker.access.session.queue.owned("victim/1", is_unattended=True) == []
    monkeypatch.setattr(two_phase, "DOUBT_SECONDS", -1.0)
    assert relay.turn() == 0
    clock.advance(6)
    assert relay.turn() == 1
    assert in_doubt(app) == []
    released(app, worker, "victim/1")
    worker.drain()
    assert ledger.entries == ["o1"]
    assert arrived(worker) == 1
    assert [each for each, _ in waypoints(worker)].count("committed") == 1


def test_a_coordinator_that_is_too_late_fails_and_does_not_disagree(
    app: App, pay: Target[Order, None], harness: NewHarness, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused between the two: somebody decided against it meanwhile, and another attempt is under way."""
    app.start(pay, Order("o1"), flow_id="flow")
    heir = harness(owner="heir/1")
    monkeypatch.setattr(two_phase, "DOUBT_SECONDS", -1.0)
    relay = relay_of(engine_of(app), heir.access, "relay")
    assert relay is not None
    heirs: list[Outcome | None] = []

    def pause(step: Step, claim: Claim) -> None:
        if step is Step.PREPARED and claim.owner == "slow/1":
            assert relay.turn() == 1
            released(app, heir, "slow/1")
            heirs.append(heir.run_one())

    engine_of(app).listener = pause
    slow = harness(owner="slow/1")
    assert isinstance(slow.transaction.run(claimed(slow)), Abandoned | Lost)
    assert isinstance(heirs[0], Completed)
    assert ledger.entries == ["o1"]
    assert in_doubt(app) == []
    assert arrived(heir) == 1


def test_an_owner_that_lost_its_message_changes_nothing(
    app: App, pay: Target[Order, None], harness: NewHarness, ledger: Ledger
) -> None:
    app.start(pay, Order("o1"), flow_id="flow")
    heir = harness(owner="heir/1")

    def lose(step: Step, claim: Claim) -> None:
        if step is Step.HANDLED and claim.owner == "slow/1":
            released(app, heir, "slow/1")

    engine_of(app).listener = lose
    slow = harness(owner="slow/1")
    assert isinstance(slow.transaction.run(claimed(slow)), Lost)
    assert ledger.entries == []
    assert isinstance(heir.run_one(), Completed)
    assert ledger.entries == ["o1"]


class Patient:
    """Goes on waiting, so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def wait(self, seconds: float) -> bool:
        self.left -= 1
        return self.left >= 0


def answer_lost(worker: Harness, patch: pytest.MonkeyPatch, *, stood: bool) -> None:
    """Of the next durable commit of the stages' database."""
    session = worker.access.work
    commit = session.commit
    is_lost: list[bool] = []

    def lose() -> None:
        if is_lost or not session.is_begun:
            commit()
            return
        is_lost.append(True)
        if stood:
            commit()
        else:
            session.rollback()
        raise CommitUnknown("the answer is lost")

    patch.setattr(session, "commit", lose)


@pytest.mark.parametrize("stood", [True, False])
def test_a_commit_whose_answer_was_lost_is_settled_by_its_decision(
    app: App, worker: Harness, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, stood: bool
) -> None:
    claim = claimed(worker)
    monkeypatch.setattr(worker.transaction, "_stop", Patient(3))
    answer_lost(worker, monkeypatch, stood=stood)
    assert isinstance(worker.transaction.run(claim), Completed | Duplicate)
    assert ledger.entries == ["o1"]
    assert in_doubt(app) == []
    assert arrived(worker) == 1


def test_the_last_step_that_was_not_answered_is_found_done_or_is_done_again(
    app: App, worker: Harness, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claimed(worker)
    monkeypatch.setattr(worker.transaction, "_stop", Patient(3))
    session: Any = worker.access.session
    carry_out = session.commit_prepared
    tries: list[str] = []

    def fail_once(gid: str) -> None:
        tries.append(gid)
        if len(tries) == 1:
            raise StoreUnavailable("the queue's server is away")
        carry_out(gid)

    monkeypatch.setattr(session, "commit_prepared", fail_once)
    assert isinstance(worker.transaction.run(claim), Completed | Duplicate)
    assert ledger.entries == ["o1"]
    assert in_doubt(app) == []
    assert arrived(worker) == 1


def test_a_decision_that_was_not_carried_out_is_no_other_messages(
    app: App, pay: Target[Order, None], worker: Harness, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to stop while the queue's server was away, and then not."""
    claim = claimed(worker)
    with monkeypatch.context() as patch:
        session: Any = worker.access.session

        def refuse(gid: str) -> None:
            raise StoreUnavailable("the queue's server is away")

        patch.setattr(session, "commit_prepared", refuse)
        assert isinstance(worker.transaction.run(claim), Abandoned)
    app.start(pay, Order("o2"), flow_id="another")
    other = claimed(worker)
    assert isinstance(worker.transaction.run(other), Completed)
    worker.transaction._modes["pay"].recognise(other._replace(row=other.row + 1))
    assert ledger.entries == ["o1", "o2"]
    assert isinstance(worker.transaction.run(claim._replace(deliveries=claim.deliveries + 1)), Duplicate)
    assert in_doubt(app) == []


def test_a_commit_that_the_stages_database_refuses_undoes_the_queues_side_at_once(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    business = engine_of(app).databases.business
    assert business is not None
    with psycopg.connect(business.address) as server:
        server.execute("CREATE TABLE place (id int PRIMARY KEY)")
        server.execute("CREATE TABLE thing (place int REFERENCES place DEFERRABLE INITIALLY DEFERRED)")

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        if not ctx.redelivered:
            ctx.sql("INSERT INTO thing VALUES (1)")

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    outcome = worker.run_one()
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, StoreError)
    assert ledger.entries == []
    assert in_doubt(app) == []
    worker.drain()
    assert ledger.entries == ["o1"]


def test_what_a_stage_initiates_starts_with_it(app: App, harness: NewHarness, ledger: Ledger) -> None:
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
    assert [each.waypoint for each in worker.history("mail:2")] == ["accepted"]


def age_decisions(app: App, microseconds: int) -> None:
    """As if so much more time had passed on the server."""
    business = engine_of(app).databases.business
    assert business is not None
    with psycopg.connect(business.address) as server:
        server.execute("UPDATE stagepost_decision SET decided_at = decided_at - %s", (microseconds,))


def set_process_clock(monkeypatch: pytest.MonkeyPatch, microseconds: int) -> None:
    """Set the clock of this process so much ahead of the server's, or behind it."""
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + microseconds * 1000)


def test_decisions_that_nobody_forgot_are_swept_when_they_are_old_by_the_servers_clock(
    app: App,
    pay: Target[Order, None],
    harness: NewHarness,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_process_clock(monkeypatch, -2 * two_phase.KEPT_OVERRULED)
    app.start(pay, Order("o1"), flow_id="flow")
    dies_at(app, Step.COMMITTED, harness)
    app.start(pay, Order("o2"), flow_id="overruled")
    dies_at(app, Step.PREPARED, harness)
    monkeypatch.setattr(two_phase, "DOUBT_SECONDS", -1.0)
    worker = harness()
    relay = relay_of(engine_of(app), worker.access, "relay")
    assert relay is not None
    assert relay.turn() == 1
    # The process's own is no matter, however far it goes ahead.
    set_process_clock(monkeypatch, 2 * two_phase.KEPT_OVERRULED)
    clock.advance(two_phase.KEPT_OVERRULED / 1_000_000)
    relay.turn()
    assert sorted(is_commit for _, is_commit in decisions(app)) == [False, True]
    age_decisions(app, two_phase.KEPT_COMMITTED)
    clock.advance(relay_module.LOOK_SECONDS)
    relay.turn()
    assert [is_commit for _, is_commit in decisions(app)] == [False]
    age_decisions(app, two_phase.KEPT_OVERRULED)
    clock.advance(relay_module.LOOK_SECONDS)
    relay.turn()
    assert decisions(app) == []


@pytest.mark.parametrize("is_made_meanwhile", [False, True])
def test_a_decision_is_not_forgotten_while_its_transaction_is_prepared(
    app: App,
    pay: Target[Order, None],
    harness: NewHarness,
    ledger: Ledger,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    is_made_meanwhile: bool,
) -> None:
    """Whoever settles it would decide against it, and the stages' database has committed. It may be made while the old
    ones are looked for."""
    app.start(pay, Order("o1"), flow_id="flow")
    kept = PostgresDecisions.kept
    looked: list[bool] = []

    def dies_when_it_is_decided() -> None:
        dies_at(app, Step.DECIDED, harness)
        age_decisions(app, two_phase.KEPT_OVERRULED)

    def made_and_kept(looking: PostgresDecisions, age: int, limit: int, *, is_commit: bool) -> list[str]:
        if not looked:
            looked.append(True)
            dies_when_it_is_decided()
        return kept(looking, age, limit, is_commit=is_commit)

    if is_made_meanwhile:
        monkeypatch.setattr(PostgresDecisions, "kept", made_and_kept)
    else:
        dies_when_it_is_decided()
    relay = relay_of(engine_of(app), harness().access, "relay")
    assert relay is not None
    relay.turn()
    assert len(decisions(app)) == len(in_doubt(app)) == 1
    monkeypatch.setattr(two_phase, "DOUBT_SECONDS", -1.0)
    clock.advance(relay_module.LOOK_SECONDS)
    assert relay.turn() == 1
    assert in_doubt(app) == []
    worker = harness()
    assert ledger.entries == ["o1"]
    assert arrived(worker) == 1


def test_what_may_not_be_settled_from_here_keeps_nothing_else_in_doubt(
    app: App, pay: Target[Order, None], harness: NewHarness, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """As what another user has prepared."""
    for name in ("o1", "o2", "o3"):
        app.start(pay, Order(name), flow_id=name)
        dies_at(app, Step.PREPARED, harness)
    foreign = sorted(in_doubt(app))[0]
    undo = PostgresSession.rollback_prepared

    def refused(session: PostgresSession, gid: str) -> None:
        if gid == foreign:
            raise StoreError("permission denied to finish prepared transaction")
        undo(session, gid)

    monkeypatch.setattr(PostgresSession, "rollback_prepared", refused)
    monkeypatch.setattr(two_phase, "DOUBT_SECONDS", -1.0)
    relay = relay_of(engine_of(app), harness().access, "relay")
    assert relay is not None
    assert relay.turn() == 2
    assert in_doubt(app) == [foreign]
    monkeypatch.setattr(PostgresSession, "rollback_prepared", undo)
    clock.advance(6)
    assert relay.turn() == 1
    assert in_doubt(app) == []


def test_what_others_prepared_is_left_alone(
    app: App, worker: Harness, monkeypatch: pytest.MonkeyPatch, new_postgres: Callable[[], str]
) -> None:
    monkeypatch.setattr(two_phase, "DOUBT_SECONDS", -1.0)
    with psycopg.connect(engine_of(app).store.address, autocommit=True) as server:
        for gid in ("somebody's", "stagepost:another:0123:1.1"):
            server.execute("BEGIN")
            server.execute("SELECT pg_current_xact_id()")
            server.execute(f"PREPARE TRANSACTION '{gid.replace(chr(39), chr(39) * 2)}'".encode())
        relay = relay_of(engine_of(app), worker.access, "relay")
        assert relay is not None
        relay.turn()
        assert sorted(in_doubt(app)) == ["somebody's", "stagepost:another:0123:1.1"]
        for gid in ("somebody''s", "stagepost:another:0123:1.1"):
            server.execute(f"ROLLBACK PREPARED '{gid}'".encode())


def test_it_is_refused_where_one_of_the_two_is_not_postgresql(new_postgres: Callable[[], str]) -> None:
    app = App("shop", database="sqlite:///shop.db", queue=new_postgres(), mode="two_phase")

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    with pytest.raises(DeclarationError, match="needs PostgreSQL for both databases"):
        Harness(app)


def test_a_server_that_prepares_nothing_is_refused_with_what_to_set(
    app: App, pay: Target[Order, None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresSession, "prepared_max", 0)
    with pytest.raises(DeclarationError, match="max_prepared_transactions"):
        Harness(app)
    with pytest.raises(DeclarationError, match="max_prepared_transactions"):
        check_databases(engine_of(app))
