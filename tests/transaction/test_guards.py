"""The guard of a stage whose queue is in another database: a copy of a message that it handled.

A copy that comes with the first delivery looks like a new message. Its queue row does not recognise it, and the inbox
does.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from stagepost import App, Context, DeclarationError, Redelivery, Sink, Target
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.errors import IllegalCall, InvalidId
from stagepost.store.postgres.store import PostgresStore
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing import Harness, crash_everywhere
from stagepost.transaction.outcome import Buried, Completed, Duplicate, Lost
from stagepost.transaction.steps import Halt, Step
from tests.places import place
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.conftest import Inject, Ledger, NewApp

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True
IN_REAL_DATABASES = ["sqlite-outbox", "postgres-outbox"]
pytestmark = pytest.mark.longer_on_postgres


@pytest.fixture(params=["memory-outbox", "sqlite-outbox", "postgres-outbox"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    return place(request)


@dataclass
class Order:
    id: str


@dataclass
class Refund:
    id: str


@dataclass
class Chargeback:
    id: str


@dataclass
class Stage:
    """A stage under test. ``runs`` counts its runs; it sends to ``other`` while ``is_sending``."""

    target: Target[Order, None]
    runs: list[str]
    is_sending: bool = True
    error: Exception | None = None
    steps: list[Step] = field(default_factory=list)


@pytest.fixture(params=["proactive", "reactive", "none"])
def guard(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def stage(app: App, ledger: Ledger, guard: Any) -> Stage:
    other: Target[Order, None] = app.remote("other", Order)

    @app.endpoint("pay", guard=guard, redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        made.runs.append(order.id)
        ledger.write(ctx, order.id)
        if made.is_sending:
            ctx.send(other, order)
        if made.error is not None:
            raise made.error

    made = Stage(pay, [])
    return made


def handled(app: App, stage: Stage, worker: Harness) -> Claim:
    """Start a flow and run its message. Return its claim."""
    app.start(stage.target, Order("o1"), flow_id="flow")
    claim = worker.claim_one()
    assert claim is not None
    assert isinstance(worker.transaction.run(claim), Completed)
    return claim


def come_again(inject: Inject, claim: Claim) -> None:
    inject("pay", claim.envelope, message_id=claim.message_id, flow_id=claim.flow_id)


def sent(worker: Harness) -> list[str]:
    return [each.message_id for each in worker.access.claimer.claim(["other"], 100, "other/1", "test")]


def test_a_copy_sends_nothing_again_and_changes_nothing(
    app: App, stage: Stage, guard: str, ledger: Ledger, harness: NewHarness, inject: Inject
) -> None:
    told: list[BaseException | None] = []

    @app.sink
    class Told(Sink):
        def failure(self, error: BaseException | None) -> None:
            told.append(error)

    worker = harness()
    claim = handled(app, stage, worker)
    assert len(sent(worker)) == 1
    come_again(inject, claim)
    assert isinstance(worker.run_one(), Duplicate)
    assert (sent(worker), ledger.entries, worker.dead_letters()) == ([], ["o1"], [])
    assert len(stage.runs) == {"proactive": 1, "reactive": 2, "none": 2}[guard]
    assert told == [None]


def test_a_copy_of_a_run_that_did_not_send_yet_sends_the_stored_bytes(
    app: App, stage: Stage, ledger: Ledger, harness: NewHarness
) -> None:
    def listen(step: Step, claim: Claim) -> None:
        if step is Step.COMMITTED:
            raise Halt

    engine_of(app).listener = listen
    victim = harness(owner="victim/1")
    app.start(stage.target, Order("o1"), flow_id="flow")
    claim = victim.claim_one()
    assert claim is not None
    with pytest.raises(Halt):
        victim.transaction.run(claim)
    victim.access.rollback()
    engine_of(app).listener = lambda step, claim: None
    assert sent(victim) == []
    assert isinstance(victim.transaction.run(claim._replace(deliveries=1)), Duplicate)
    assert len(sent(victim)) == 1
    assert ledger.entries == ["o1"]


@pytest.mark.parametrize("guard", ["reactive"], indirect=True)
def test_a_copy_whose_run_fails_is_a_duplicate_and_no_failure(
    app: App, stage: Stage, ledger: Ledger, harness: NewHarness, inject: Inject
) -> None:
    """As where a unique key of the user's own fires before ours."""
    worker = harness()
    claim = handled(app, stage, worker)
    stage.error = ValueError("unique constraint failed")
    come_again(inject, claim)
    assert isinstance(worker.run_one(), Duplicate)
    assert (worker.dead_letters(), ledger.entries) == ([], ["o1"])
    app.start(stage.target, Order("o2"), flow_id="another")
    assert isinstance(worker.run_one(), Buried)


@pytest.mark.parametrize("new_database", IN_REAL_DATABASES, indirect=True)
@pytest.mark.parametrize("guard", ["reactive"], indirect=True)
def test_a_unique_key_of_the_users_own_that_fires_first_makes_no_failure(
    app: App, stage: Stage, ledger: Ledger, harness: NewHarness, inject: Inject
) -> None:
    make_unique(app)
    worker = harness()
    claim = handled(app, stage, worker)
    assert len(sent(worker)) == 1
    come_again(inject, claim)
    assert isinstance(worker.run_one(), Duplicate)
    assert (stage.runs, ledger.entries, sent(worker), worker.dead_letters()) == (["o1", "o1"], ["o1"], [], [])


def make_unique(app: App) -> None:
    store = engine_of(app).databases.business
    if isinstance(store, PostgresStore):
        with psycopg.connect(store.url) as server:
            server.execute("CREATE UNIQUE INDEX one_entry ON ledger (entry)")
        return
    assert isinstance(store, SqliteStore)
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("CREATE UNIQUE INDEX one_entry ON ledger (entry)")


@pytest.mark.parametrize("new_database", IN_REAL_DATABASES, indirect=True)
@pytest.mark.parametrize("guard", ["proactive", "reactive"], indirect=True)
def test_of_two_copies_at_once_one_does_the_work(
    app: App, guard: Any, ledger: Ledger, harness: NewHarness, harness_of: NewHarness
) -> None:
    """Two owners run the message, because the first one was taken for dead."""
    both = threading.Barrier(2)
    runs: list[str] = []
    other: Target[Order, None] = app.remote("other", Order)

    @app.endpoint("pay", guard=guard)
    def pay(ctx: Context, order: Order) -> None:
        runs.append(ctx.flow_id)
        if guard == "reactive" and len(runs) < 3:
            # Both run before either has begun its transaction.
            both.wait(PATIENCE_SECONDS)
        ledger.write(ctx, order.id)
        ctx.send(other, order)

    app.start(pay, Order("o1"), flow_id="flow")
    slow, heir = harness(owner="slow/1"), harness(owner="heir/1")
    first = slow.claim_one()
    assert first is not None
    heir.access.claimer.release([first], "test")
    second = heir.claim_one()
    assert second is not None

    def run(claim: Claim) -> object:
        with closing(Harness(app, owner=claim.owner)) as worker:
            return type(worker.transaction.run(claim))

    with ThreadPoolExecutor(2) as pool:
        of_slow, of_heir = pool.map(run, [first, second])
    assert (of_slow, of_heir in (Completed, Duplicate)) == (Lost, True)
    assert ledger.entries == ["o1"]
    assert len(runs) == 1 if guard == "proactive" else len(runs) > 1
    assert len(sent(heir)) == 1
    assert heir.dead_letters() == []


@pytest.mark.parametrize(
    "new_database",
    [
        "memory-outbox",
        pytest.param("sqlite-outbox", marks=pytest.mark.more),
        pytest.param("postgres-outbox", marks=pytest.mark.soak),
    ],
    indirect=True,
)
def test_each_message_is_handled_and_sent_once_wherever_its_process_dies(
    new_app: NewApp, ledger_of: Callable[[App], Ledger], guard: Any
) -> None:
    ledgers: list[Ledger] = []

    def make_app() -> App:
        app = new_app()
        ledgers.append(ledger_of(app))
        ledger = ledgers[-1]

        @app.endpoint("book")
        def book(ctx: Context, order: Order) -> None:
            ledger.write(ctx, f"booked {order.id}")

        @app.endpoint("pay", guard=guard)
        def pay(ctx: Context, order: Order) -> None:
            ledger.write(ctx, f"paid {order.id}")
            ctx.send(book, order)

        return app

    def scenario(app: App) -> None:
        app.start(app.target("pay"), Order("o1"), flow_id="flow")

    found = crash_everywhere(make_app, scenario, lambda app: sorted(ledgers[-1].entries))
    assert [str(each) for each in found if not each.is_exactly_once] == []
    assert found[0].expected == ["booked o1", "paid o1"]


def test_only_what_sent_something_is_remembered_without_a_guard(
    app: App, stage: Stage, guard: str, ledger: Ledger, harness: NewHarness, inject: Inject
) -> None:
    stage.is_sending = False
    engine_of(app).listener = lambda step, claim: stage.steps.append(step)
    worker = harness()
    claim = handled(app, stage, worker)
    found = worker.access.work.inbox.find("pay", claim.message_id)
    assert (found is None) == (guard == "none")
    # A run without a row has nothing to mark, and commits nothing more.
    assert (Step.MARKED in stage.steps) == (guard != "none")
    come_again(inject, claim)
    outcome = worker.run_one()
    assert isinstance(outcome, Completed if guard == "none" else Duplicate)
    assert len(ledger.entries) == (2 if guard == "none" else 1)


# Several messages in one envelope


def together(app: App, target: Target[Any, Any], flow_id: str, *messages: Any) -> None:
    with app.initiate() as out:
        out.together(target, messages, flow_id=flow_id, message_ids=[each.id for each in messages])


def test_of_a_done_and_a_new_message_in_one_envelope_the_new_one_runs(
    app: App, stage: Stage, guard: str, ledger: Ledger, harness: NewHarness
) -> None:
    worker = harness()
    together(app, stage.target, "first", Order("a"), Order("b"))
    together(app, stage.target, "second", Order("b"), Order("c"))
    together(app, stage.target, "third", Order("c"), Order("a"))
    assert [type(each) for each in worker.drain()] == [Completed] * 3
    is_guarded = guard != "none"
    assert sorted(ledger.entries) == (["a", "b", "c"] if is_guarded else ["a", "a", "b", "b", "c", "c"])
    assert len(sent(worker)) == (3 if is_guarded else 6)
    details = {each.detail for flow in ("first", "second", "third") for each in worker.history(flow) if each.detail}
    assert ("id b" in " ".join(details)) == is_guarded


@pytest.mark.parametrize("guard", ["proactive", "reactive"], indirect=True)
def test_equal_ids_in_one_envelope_are_one_message_and_other_content_is_a_conflict(
    app: App, stage: Stage, ledger: Ledger, harness: NewHarness
) -> None:
    worker = harness()
    together(app, stage.target, "first", Order("a"), Order("a"))
    with app.initiate() as out:
        out.together(stage.target, [Order("x"), Order("y")], flow_id="second", message_ids=["n", "n"])
    worker.drain()
    assert ledger.entries == ["a"]
    assert [(each.flow_id, each.reason) for each in worker.dead_letters()] == [("second", "conflict")]


@pytest.mark.parametrize(
    ("message_ids", "error", "text"),
    [
        (["a"], IllegalCall, "1 ids for 2 messages"),
        ("ab", IllegalCall, "a list of texts"),
        (["a", ""], InvalidId, "message_ids must not be empty"),
    ],
)
@pytest.mark.parametrize("guard", ["proactive"], indirect=True)
def test_ids_that_cannot_name_the_messages_are_refused(
    app: App, stage: Stage, message_ids: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text), app.initiate() as out:
        out.together(stage.target, [Order("a"), Order("b")], flow_id="flow", message_ids=message_ids)


def test_each_type_of_an_endpoint_has_its_own_guard(app: App, ledger: Ledger, harness: NewHarness) -> None:
    runs: list[str] = []

    @app.endpoint("pay", guard={Order: "none", Refund: "proactive"})
    def pay(ctx: Context, order: Order) -> None:
        runs.append(order.id)

    @pay.handler
    def refund(ctx: Context, refund: Refund) -> None:
        runs.append(refund.id)

    worker = harness()
    for number in range(2):
        together(app, pay, f"flow-{number}", Order("o"), Refund("r"))
    worker.drain()
    assert sorted(runs) == ["o", "o", "r"]
    app.start(pay, Order("o"), flow_id="alone")
    app.start(app.target("pay"), Refund("r"), flow_id="refund")
    claims = []
    while (claim := worker.claim_one()) is not None:
        claims.append(claim)
        worker.transaction.run(claim)
    found = {each.flow_id: worker.access.work.inbox.find("pay", each.message_id) for each in claims}
    assert (found["alone"], found["refund"] is None) == (None, False)


def stages_with(guard: Any, **terms: Any) -> None:
    app = App("shop", database="memory:")

    @app.endpoint("pay", guard=guard, **terms)
    def pay(ctx: Context, order: Order) -> None: ...

    @pay.handler
    def refund(ctx: Context, refund: Refund) -> None: ...

    engine_of(app).stages()


def test_a_guard_of_a_type_that_no_handler_takes_is_refused() -> None:
    with pytest.raises(DeclarationError, match="names Chargeback, which none of its handlers takes"):
        stages_with({Order: "none", Refund: "none", Chargeback: "none"})


def test_a_guard_that_leaves_a_type_out_is_refused() -> None:
    with pytest.raises(DeclarationError, match="does not name Refund, which it takes too"):
        stages_with({Order: "proactive"})


@pytest.mark.parametrize("guard", [{}, {Order: "strict"}, {"Order": "none"}])
def test_a_guard_of_types_that_says_something_else_is_refused(guard: Any) -> None:
    with pytest.raises(DeclarationError, match=r"is not a guard|is no message type"):
        stages_with(guard)


def test_a_type_with_a_business_key_and_the_guard_none_is_refused() -> None:
    with pytest.raises(DeclarationError, match="would then recognise nothing"):
        stages_with({Order: "none", Refund: "proactive"}, key={Order: ("id",)})


@pytest.mark.parametrize("guard", ["none", "reactive", {Order: "proactive"}])
def test_two_phase_refuses_a_guard_of_the_messages_id(guard: Any) -> None:
    app = App("shop", database="postgresql:///shop", queue="postgresql:///queue")

    @app.endpoint("pay", mode="two_phase", guard=guard)
    def pay(ctx: Context, order: Order) -> None: ...

    with pytest.raises(DeclarationError, match="in mode two_phase its queue row is the guard"):
        engine_of(app).modes()
