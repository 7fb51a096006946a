"""Sinks around the handling of one envelope: their order, their isolation, and the effect of their errors."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import (
    App,
    Context,
    DeclarationError,
    IncomingEnvelope,
    OutgoingEnvelope,
    Redelivery,
    Refuse,
    Sink,
    StoreContention,
    StoreUnavailable,
    Target,
    TimeLimitExceeded,
)
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.gateway.out import Delivery, deliver
from stagepost.runtime.watchdog import ThreadWatch
from stagepost.testing import Harness, ManualClock
from stagepost.transaction.outcome import Abandoned, AnsweredWithFailure, Buried, Completed, Lost, Redelivered
from stagepost.transaction.steps import Halt, Step
from stagepost.transaction.unit_of_work import EXIT_FORKED
from tests.deliveries.consumer import Consumer, answer

if TYPE_CHECKING:
    from tests.conftest import Ledger, NewApp

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres

CALLS = ("initialize", "before_commit", "success", "failure", "dispose")
WELL = ["a initialize", "b initialize", "handler", "b before_commit", "a before_commit"]
ENDED_WELL = [*WELL, "b success", "a success", "b dispose", "a dispose"]
FAILED = ["b failure", "a failure", "b dispose", "a dispose"]


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    id: str


class Recorder(Sink):
    """Writes its calls into ``calls``. ``act`` is called with the name of each of them."""

    def __init__(self, name: str, calls: list[str], act: Callable[[str], None] = lambda call: None) -> None:
        self.name = name
        self.calls = calls
        self.act = act
        self.errors: list[BaseException | None] = []

    def initialize(self, incoming: IncomingEnvelope) -> None:
        self._note("initialize")

    def before_commit(self, outgoing: Sequence[OutgoingEnvelope]) -> None:
        self._note("before_commit")

    def success(self) -> None:
        self._note("success")

    def failure(self, error: BaseException | None) -> None:
        self.errors.append(error)
        self._note("failure")

    def dispose(self) -> None:
        self._note("dispose")

    def _note(self, call: str) -> None:
        self.calls.append(f"{self.name} {call}")
        self.act(call)


def raising(at: str, error: BaseException) -> Callable[[str], None]:
    def act(call: str) -> None:
        if call == at:
            raise error

    return act


@pytest.fixture
def calls(app: App) -> list[str]:
    return []


@pytest.fixture
def register(app: App, calls: list[str]) -> Callable[..., None]:
    """Register recorders, by name, each with what it does in its calls."""

    def make(**acts: Callable[[str], None]) -> None:
        for name, act in acts.items():
            app.sink(lambda name=name, act=act: Recorder(name, calls, act))

    return make


def nothing(call: str) -> None: ...


def drain(app: App, harness: NewHarness, target: Target[Order, Any]) -> list[Any]:
    app.start(target, Order("o1"), flow_id="flow")
    worker = harness()
    outcomes = worker.drain()
    worker.close()
    return outcomes


@pytest.fixture(params=["handler", pytest.param("delivery", marks=pytest.mark.in_one_database)])
def declare_pay(
    request: pytest.FixtureRequest, app: App, ledger: Ledger, calls: list[str]
) -> Iterator[Callable[..., Target[Order, Any]]]:
    """Declare the stage ``pay``, a handler or a gateway's delivery. It raises the given error at its first attempt."""

    def as_handler(error: BaseException | None = None) -> Target[Order, Any]:
        @app.endpoint("pay")
        def pay(ctx: Context, order: Order) -> None:
            calls.append("handler")
            ledger.write(ctx, order.id)
            if error is not None and ctx.attempt == 1:
                raise error

        return pay

    def as_delivery(error: BaseException | None = None) -> Target[Order, Any]:
        consumer.script = [] if error is None else [answer(503)]
        consumer.on_request = lambda request: calls.append("handler")
        return deliver(app, "pay", Delivery(url=consumer.url, allow_private=["localhost"]), message=Order)

    with Consumer() as consumer:
        yield as_handler if request.param == "handler" else as_delivery


class NotedScopes:
    """Notes when a scope is opened and closed. It is the one scope of all envelopes."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def open(self) -> NotedScopes:
        self._calls.append("scope opened")
        return self

    def get(self, wanted: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        self._calls.append("scope closed")


def in_scopes(*attempts: Sequence[str]) -> list[str]:
    return [call for attempt in attempts for call in ("scope opened", *attempt, "scope closed")]


class TestAnyStage:
    """The scope and the sinks are around an attempt of any stage, a handler's or a delivery's."""

    @pytest.fixture
    def calls(self) -> list[str]:
        return []

    @pytest.fixture
    def app(self, new_app: NewApp, calls: list[str]) -> App:
        return new_app(scopes=NotedScopes(calls))

    def test_sinks_are_initialized_in_order_and_all_later_calls_come_in_reverse(
        self,
        app: App,
        harness: NewHarness,
        calls: list[str],
        register: Callable[..., None],
        declare_pay: Callable[..., Any],
    ) -> None:
        register(a=nothing, b=nothing)
        assert [type(each) for each in drain(app, harness, declare_pay())] == [Completed]
        assert calls == in_scopes(ENDED_WELL)

    def test_a_failed_attempt_is_told_to_all_sinks(
        self,
        app: App,
        harness: NewHarness,
        calls: list[str],
        register: Callable[..., None],
        declare_pay: Callable[..., Any],
    ) -> None:
        register(a=nothing, b=nothing)
        pay = declare_pay(ValueError("no"))
        assert [type(each) for each in drain(app, harness, pay)] == [Redelivered, Completed]
        assert calls == in_scopes(["a initialize", "b initialize", "handler", *FAILED], ENDED_WELL)

    def test_a_veto_of_a_sink_holds(
        self,
        app: App,
        harness: NewHarness,
        calls: list[str],
        register: Callable[..., None],
        declare_pay: Callable[..., Any],
    ) -> None:
        vetoes = [ValueError("not yet")]

        def veto(call: str) -> None:
            if call == "before_commit" and vetoes:
                raise vetoes.pop()

        register(a=nothing, b=veto)
        assert [type(each) for each in drain(app, harness, declare_pay())] == [Redelivered, Completed]
        vetoed = ["a initialize", "b initialize", "handler", "b before_commit", *FAILED]
        assert calls == in_scopes(vetoed, ENDED_WELL)


def test_success_comes_between_the_commit_of_the_work_and_the_step_committed(
    app: App, harness: NewHarness, ledger: Ledger, calls: list[str]
) -> None:
    seen: list[tuple[str, list[str]]] = []
    app.sink(lambda: Recorder("a", calls, lambda call: seen.append((call, ledger.entries))))
    engine_of(app).listener = lambda step, claim: calls.append(f"step {step}")

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)

    drain(app, harness, pay)
    assert [entries for call, entries in seen if call == "success"] == [["o1"]]
    before = calls.index("a success")
    assert "step committing" in calls[:before]
    assert calls[before : before + 3] == ["a success", "a dispose", "step committed"]
    assert calls.index("a before_commit") < calls.index("step handled")


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, MemoryError])
def test_a_failing_handler_is_told_to_all_sinks_and_the_next_attempt_has_new_ones(
    app: App,
    harness: NewHarness,
    ledger: Ledger,
    calls: list[str],
    register: Callable[..., None],
    error: type[BaseException],
) -> None:
    made: list[Recorder] = []

    def make() -> Recorder:
        made.append(Recorder("a", calls))
        return made[-1]

    app.sink(make)
    register(b=nothing)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        calls.append("handler")
        ledger.write(ctx, order.id)
        if ctx.attempt == 1:
            raise error("no")

    assert [type(each) for each in drain(app, harness, pay)] == [Redelivered, Completed]
    assert calls == ["a initialize", "b initialize", "handler", *FAILED, *ENDED_WELL]
    first, second = made
    assert [type(each) for each in first.errors] == [error]
    assert second.errors == []
    assert ledger.entries == ["o1"]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)])
def test_a_failing_initialize_fails_the_attempt_and_ends_the_sinks_that_were_initialized(
    app: App,
    harness: NewHarness,
    calls: list[str],
    register: Callable[..., None],
    error: BaseException,
) -> None:
    register(a=nothing, b=nothing, c=raising("initialize", error), d=nothing)

    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        calls.append("handler")

    (outcome,) = drain(app, harness, pay)
    assert isinstance(outcome, Buried)
    assert outcome.error is error
    assert calls == ["a initialize", "b initialize", "c initialize", *FAILED]


def test_a_veto_is_a_counted_failure_and_no_outer_sink_is_asked(
    app: App, harness: NewHarness, ledger: Ledger, calls: list[str], register: Callable[..., None]
) -> None:
    vetoes = [ValueError("not yet"), ValueError("not yet")]

    def veto(call: str) -> None:
        if call == "before_commit" and vetoes:
            raise vetoes.pop()

    register(a=nothing, b=veto)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        calls.append("handler")
        ledger.write(ctx, f"{order.id} {ctx.attempt}")

    outcomes = drain(app, harness, pay)
    assert [type(each) for each in outcomes] == [Redelivered, Redelivered, Completed]
    vetoed = ["a initialize", "b initialize", "handler", "b before_commit", *FAILED]
    assert calls == [*vetoed, *vetoed, *ENDED_WELL]
    assert ledger.entries == ["o1 3"]


def test_a_veto_that_refuses_makes_a_dead_letter_at_once(
    app: App, harness: NewHarness, ledger: Ledger, register: Callable[..., None]
) -> None:
    register(a=raising("before_commit", Refuse("not on Sundays")))

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)

    (outcome,) = drain(app, harness, pay)
    assert isinstance(outcome, Buried)
    assert outcome.reason == "refused"
    assert ledger.entries == []


@pytest.mark.parametrize("way", ["refuse", "fail_with"])
def test_no_sink_is_asked_for_its_veto_where_the_handler_rolls_back_and_caught_its_own_error(
    app: App, harness: NewHarness, calls: list[str], register: Callable[..., None], way: str
) -> None:
    register(a=nothing, b=nothing)

    @app.endpoint("done")
    def done(ctx: Context, receipt: Receipt) -> None: ...

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> Receipt:
        with suppress(Exception):
            if way == "refuse":
                ctx.refuse("no")
            ctx.fail_with(Receipt("no"))
        return Receipt("caught")

    app.start(pay, Order("o1"), flow_id="flow", reply_to=done)
    outcome = harness().run_one()
    assert isinstance(outcome, Buried if way == "refuse" else AnsweredWithFailure)
    assert calls == ["a initialize", "b initialize", *FAILED]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
@pytest.mark.parametrize("at", ["success", "dispose"])
def test_errors_after_the_commit_are_logged_and_change_nothing(
    app: App,
    harness: NewHarness,
    ledger: Ledger,
    calls: list[str],
    register: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    at: str,
    error: BaseException,
) -> None:
    register(a=nothing, b=raising(at, error))

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        calls.append("handler")
        ledger.write(ctx, order.id)

    with caplog.at_level(logging.ERROR):
        assert [type(each) for each in drain(app, harness, pay)] == [Completed]
    assert calls == ENDED_WELL
    assert ledger.entries == ["o1"]
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{at} of Recorder raised {type(error).__name__} at pay")
    assert (record.__dict__["event"], record.__dict__["flow_id"]) == ("sink-failed", "flow")


def test_an_error_of_failure_keeps_no_sink_from_its_calls_and_the_attempts_own_error_is_kept(
    app: App, harness: NewHarness, calls: list[str], register: Callable[..., None]
) -> None:
    register(a=nothing, b=raising("failure", SystemExit(2)))

    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        raise ValueError("the handler's own")

    (outcome,) = drain(app, harness, pay)
    assert isinstance(outcome, Buried)
    assert str(outcome.error) == "the handler's own"
    assert calls == ["a initialize", "b initialize", *FAILED]


def test_a_refused_commit_is_a_failure_and_the_handlers_run_again_inside_new_sinks(
    app: App,
    harness: NewHarness,
    calls: list[str],
    register: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(a=nothing, b=nothing)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        calls.append("handler")

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    session = worker.access.work
    commit = session.commit
    refusals = [StoreContention("busy")]

    def refuse_once() -> None:
        if refusals:
            raise refusals.pop()
        commit()

    monkeypatch.setattr(worker.transaction, "_stop", Patient())
    claim = worker.claim_one()
    assert claim is not None
    monkeypatch.setattr(session, "commit", refuse_once)
    assert isinstance(worker.transaction.run(claim), Completed)
    assert calls == [*WELL, *FAILED, *ENDED_WELL]


def test_the_sinks_of_an_owner_that_lost_its_message_are_told_of_no_error(
    app: App, calls: list[str], harness_of: NewHarness
) -> None:
    made: list[Recorder] = []

    def make() -> Recorder:
        made.append(Recorder(f"{len(made)}", calls))
        return made[-1]

    app.sink(make)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    app.start(pay, Order("o1"), flow_id="flow")
    slow, heir = harness_of(app, owner="slow/1"), harness_of(app, owner="heir/1")
    claim = slow.claim_one()
    assert claim is not None
    heir.access.claimer.release([claim], "test")
    assert isinstance(heir.run_one(), Completed)
    assert isinstance(slow.transaction.run(claim), Lost)
    assert [each.errors for each in made] == [[], [None]]


def test_an_interrupt_at_the_commit_rolls_back_and_ends_the_sinks(
    app: App,
    harness: NewHarness,
    calls: list[str],
    register: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(a=nothing, b=nothing)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        calls.append("handler")

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    claim = worker.claim_one()
    assert claim is not None

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(worker.access.work, "commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            worker.transaction.run(claim)
    assert calls == [*WELL, *FAILED]
    worker.access.claimer.release([claim], "test")
    worker.drain()
    assert calls == [*WELL, *FAILED, *ENDED_WELL]


class Patient:
    def wait(self, seconds: float) -> bool:
        return True


@pytest.mark.parametrize("new_database", ["memory-outbox", "sqlite-outbox"], indirect=True)
def test_an_outage_after_the_commit_of_the_work_is_no_failure_and_a_duplicate_has_no_sinks(
    app: App,
    harness: NewHarness,
    calls: list[str],
    register: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(a=nothing, b=nothing)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        calls.append("handler")

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    claim = worker.claim_one()
    assert claim is not None

    def refuse() -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(worker.access.session, "commit", refuse)
        assert isinstance(worker.transaction.run(claim), Abandoned)
    assert calls == ENDED_WELL
    worker.access.claimer.release([claim], "test")
    worker.drain()
    assert calls == ENDED_WELL


def test_headers_go_from_the_senders_sinks_to_the_receiver_and_no_further(app: App, harness: NewHarness) -> None:
    seen: dict[str, tuple[dict[str, str], dict[str, Any]]] = {}
    shown: list[tuple[str, str]] = []

    @app.sink
    class Outer(Sink):
        def before_commit(self, outgoing: Sequence[OutgoingEnvelope]) -> None:
            for each in outgoing:
                each.headers["order"] = f"{each.headers['order']}, outer"
                each.headers.pop("unwanted")

    @app.sink
    class Inner(Sink):
        def initialize(self, incoming: IncomingEnvelope) -> None:
            self.incoming = incoming

        def before_commit(self, outgoing: Sequence[OutgoingEnvelope]) -> None:
            for each in outgoing:
                shown.append((each.kind, each.to))
                each.headers |= {"order": f"by {self.incoming.stage}", "unwanted": "x"}

        def dispose(self) -> None:
            seen[self.incoming.stage] = (dict(self.incoming.headers), dict(self.incoming.properties))

    @app.endpoint("last")
    def last(ctx: Context, order: Order) -> None:
        assert ctx.headers == {"order": "by ship, outer"}

    @app.endpoint("ship")
    def ship(ctx: Context, order: Order) -> None:
        assert ctx.headers == {"order": "by pay, outer"}
        ctx.send(last, order)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        assert ctx.headers == {}
        ctx.properties["tenant"] = "a"
        ctx.send(ship, order)

    assert [type(each) for each in drain(app, harness, pay)] == [Completed] * 3
    assert seen == {
        "pay": ({}, {}),
        "ship": ({"order": "by pay, outer"}, {"tenant": "a"}),
        "last": ({"order": "by ship, outer"}, {"tenant": "a"}),
    }
    assert shown == [("send", "ship"), ("send", "last")]


@pytest.mark.parametrize("header", [("", "x"), ("trace", 5), (7, "x"), ("trace", "a\nb"), ("trace", "x" * 1001)])
def test_a_header_that_not_every_store_or_broker_carries_is_refused(
    app: App, harness: NewHarness, header: tuple[Any, Any]
) -> None:
    @app.sink
    class Wrong(Sink):
        def before_commit(self, outgoing: Sequence[OutgoingEnvelope]) -> None:
            outgoing[0].headers[header[0]] = header[1]

    ship: Target[Order, None] = app.remote("ship", Order)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.send(ship, order)

    (outcome,) = drain(app, harness, pay)
    assert isinstance(outcome, Buried)
    assert "Wrong wrote" in str(outcome.error)


tenant: ContextVar[str] = ContextVar("tenant", default="none")


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_context_variables_reach_the_handlers_of_their_envelope_and_no_other(
    app: App, harness: NewHarness, *, is_async: bool
) -> None:
    seen: list[str] = []

    @app.sink
    class Tenant(Sink):
        def initialize(self, incoming: IncomingEnvelope) -> None:
            seen.append(f"before: {tenant.get()}")
            self.token = tenant.set(incoming.flow_id)

        def success(self) -> None:
            seen.append(f"after: {tenant.get()}")
            tenant.reset(self.token)

    pay = app.staged("pay")
    if is_async:

        @pay.stage
        async def later(ctx: Context, order: Order) -> None:
            await asyncio.sleep(0)
            seen.append(tenant.get())

    else:

        @pay.stage
        def now(ctx: Context, order: Order) -> None:
            seen.append(tenant.get())

    for name in ("f1", "f2"):
        app.start(pay, Order(name), flow_id=name)
    harness().drain()
    runs = [seen[:3], seen[3:]]
    assert sorted(runs) == [["before: none", each, f"after: {each}"] for each in ("f1", "f2")]
    assert tenant.get() == "none"


@pytest.mark.in_one_database
@pytest.mark.parametrize("fails", [False, True], ids=["that commits", "that is undone"])
def test_the_sinks_of_a_batch_end_after_the_shared_commit_or_the_shared_rollback(
    app: App, harness: NewHarness, ledger: Ledger, calls: list[str], *, fails: bool
) -> None:
    @app.sink
    class Counted(Sink):
        def initialize(self, incoming: IncomingEnvelope) -> None:
            self.flow_id = incoming.flow_id
            self.token = tenant.set(incoming.flow_id)
            calls.append(f"{self.flow_id} begins")

        def success(self) -> None:
            assert tenant.get() == self.flow_id
            calls.append(f"{self.flow_id} success with {len(ledger.entries)}")

        def failure(self, error: BaseException | None) -> None:
            calls.append(f"{self.flow_id} failure {error}")

        def dispose(self) -> None:
            tenant.reset(self.token)
            calls.append(f"{self.flow_id} disposed")

    @app.endpoint("pay", batch=10, redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        assert tenant.get() == ctx.flow_id
        ledger.write(ctx, order.id)
        if fails and order.id == "f2":
            raise ValueError("no")

    for name in ("f1", "f2"):
        app.start(pay, Order(name), flow_id=name)
    worker = harness()
    claims = sorted(worker.access.claimer.claim(["pay"], 10, "w1", "test"), key=lambda each: each.flow_id)
    worker.transaction.run_batch(claims)
    if fails:
        assert calls == [
            *("f1 begins", "f2 begins", "f1 failure no", "f1 disposed", "f2 failure no", "f2 disposed"),
            *("f1 begins", "f1 success with 1", "f1 disposed"),
            *("f2 begins", "f2 failure no", "f2 disposed"),
        ]
    else:
        assert calls == [
            *("f1 begins", "f2 begins"),
            *("f1 success with 2", "f1 disposed", "f2 success with 2", "f2 disposed"),
        ]
    assert tenant.get() == "none"


@pytest.mark.in_one_database
@pytest.mark.parametrize(
    ("step", "stopped", "ends"),
    [
        (Step.COMMITTING, Halt(), []),
        (Step.COMMITTING, KeyboardInterrupt("Ctrl-C"), ["f1 failure Ctrl-C", "f2 failure Ctrl-C"]),
        (Step.COMMITTED, KeyboardInterrupt("Ctrl-C"), ["f1 success", "f2 success"]),
    ],
    ids=["killed before the commit", "interrupted before the commit", "interrupted after the commit"],
)
def test_what_stops_a_batch_tells_its_sinks_what_became_of_it(
    app: App, harness: NewHarness, ledger: Ledger, *, step: Step, stopped: BaseException, ends: list[str]
) -> None:
    told: list[str] = []

    @app.sink
    class Counted(Sink):
        def initialize(self, incoming: IncomingEnvelope) -> None:
            self.flow_id = incoming.flow_id

        def success(self) -> None:
            told.append(f"{self.flow_id} success")

        def failure(self, error: BaseException | None) -> None:
            told.append(f"{self.flow_id} failure {error}")

    @app.endpoint("pay", batch=10)
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)

    errors = [stopped]

    def stop(passed: Step, claim: Claim) -> None:
        if passed is step and errors:
            raise errors.pop()

    engine_of(app).listener = stop
    for name in ("f1", "f2"):
        app.start(pay, Order(name), flow_id=name)
    worker = harness()
    claims = sorted(worker.access.claimer.claim(["pay"], 10, "w1", "test"), key=lambda each: each.flow_id)
    with pytest.raises(type(stopped)):
        worker.transaction.run_batch(claims)
    assert told == ends
    worker.access.rollback()
    assert len(ledger.entries) == (2 if step is Step.COMMITTED else 0)


def test_flows_that_a_sink_starts_join_the_stage_until_its_commit_and_are_its_own_after_it(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    log: Target[Order, None] = app.remote("log", Order)

    @app.sink
    class Starter(Sink):
        def initialize(self, incoming: IncomingEnvelope) -> None:
            self.attempt = incoming.attempt
            app.start(log, Order("x"), flow_id="in initialize")

        def before_commit(self, outgoing: Sequence[OutgoingEnvelope]) -> None:
            app.start(log, Order("x"), flow_id="in before_commit")

        def success(self) -> None:
            app.start(log, Order("x"), flow_id="in success")

        def failure(self, error: BaseException | None) -> None:
            app.start(log, Order("x"), flow_id="in failure")

    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        if order.id == "bad":
            raise ValueError

    worker = harness()
    app.start(pay, Order("bad"), flow_id="bad")
    worker.drain()
    assert flows(worker) == ["in failure"]
    app.start(pay, Order("good"), flow_id="good")
    worker.drain()
    assert flows(worker) == ["in before_commit", "in failure", "in initialize", "in success"]


def flows(worker: Harness) -> list[str]:
    known = ("in before_commit", "in failure", "in initialize", "in success")
    return [each for each in known if worker.history(each)]


def test_one_sink_may_serve_all_envelopes(app: App, harness: NewHarness, calls: list[str]) -> None:
    module = Recorder("m", calls)
    app.sink(lambda: module)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    for name in ("f1", "f2"):
        app.start(pay, Order(name), flow_id=name)
    harness().drain()
    assert calls == [f"m {each}" for each in CALLS if each != "failure"] * 2


class FakeIncarnation:
    def note(self, slot: int, claim: object) -> None: ...


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("at", CALLS)
def test_the_time_limit_interrupts_each_call_of_a_sink(
    app: App,
    harness: NewHarness,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    calls: list[str],
    at: str,
    *,
    is_async: bool,
) -> None:
    def spin(call: str) -> None:
        if call == at:
            clock.advance(601)
            watch.check()
            while True:
                pass

    app.sink(lambda: Recorder("a", calls))
    app.sink(lambda: Recorder("b", calls, spin))
    pay = app.staged("pay", redelivery=Redelivery.none())
    error = ValueError("failed") if at == "failure" else None
    if is_async:

        @pay.stage
        async def later(ctx: Context, order: Order) -> None:
            if error:
                raise error

    else:

        @pay.stage
        def now(ctx: Context, order: Order) -> None:
            if error:
                raise error

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    watch = ThreadWatch(FakeIncarnation(), 0, clock, lambda: None)  # type: ignore[arg-type]
    worker.transaction._monitor = watch
    outcome = worker.run_one()
    if at in ("initialize", "before_commit"):
        assert isinstance(outcome, Buried)
        assert isinstance(outcome.error, TimeLimitExceeded)
        assert "600 s" in str(outcome.error)
    else:
        assert isinstance(outcome, Buried if error else Completed)
        assert [each.__dict__["event"] for each in caplog.records if each.levelno >= logging.ERROR] == ["sink-failed"]
    assert calls[-1] == "a dispose"
    assert not watch.is_stuck


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("at", CALLS)
def test_a_child_that_a_sink_forks_and_that_comes_back_is_ended_and_settles_nothing(
    app: App, harness: NewHarness, ledger: Ledger, at: str
) -> None:
    codes: list[int] = []

    def fork(call: str) -> None:
        if call == at and (child := os.fork()):
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    app.sink(lambda: Recorder("a", [], fork))

    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        if at == "failure":
            raise ValueError

    (outcome,) = drain(app, harness, pay)
    assert isinstance(outcome, Buried if at == "failure" else Completed)
    assert codes == [EXIT_FORKED]
    assert ledger.entries == ([] if at == "failure" else ["o1"])


class AsyncSink(Sink):
    async def success(self) -> None:  # type: ignore[override]
        pass


class Needy(Sink):
    def __init__(self, connection: object) -> None: ...


async def coroutine() -> Sink:
    return Sink()


@pytest.mark.parametrize(
    ("factory", "remedy"),
    [
        (Sink(), "and not the sink itself"),
        (7, "cannot make sinks"),
        (Order, "derive it from stagepost.Sink"),
        (AsyncSink, "plain functions"),
        (Needy, "needs connection"),
        (coroutine, "make it a plain function"),
    ],
)
@pytest.mark.in_one_database
def test_a_sink_that_cannot_work_is_refused_when_it_is_registered(app: App, factory: Any, remedy: str) -> None:
    with pytest.raises(DeclarationError, match=remedy):
        app.sink(factory)


@pytest.mark.in_one_database
@pytest.mark.parametrize("factory", [lambda: 7, lambda: Sink().initialize])
def test_a_factory_that_returns_no_sink_makes_a_dead_letter_that_says_so(
    app: App, harness: NewHarness, factory: Any
) -> None:
    app.sink(factory)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    (outcome,) = drain(app, harness, pay)
    assert isinstance(outcome, Buried)
    assert "sink" in str(outcome.error)


@pytest.mark.in_one_database
@pytest.mark.parametrize("order", ["sink first", "batch first"])
def test_a_sink_with_a_transaction_of_its_own_and_a_batch_exclude_each_other(app: App, order: str) -> None:
    def declare_batch() -> None:
        @app.endpoint("pay", batch=10)
        def pay(ctx: Context, order: Order) -> None: ...

    def declare_sink() -> None:
        @app.sink(owns_transaction=True)
        class Ledgers(Sink): ...

    first, second = (declare_sink, declare_batch) if order == "sink first" else (declare_batch, declare_sink)
    first()
    with pytest.raises(DeclarationError, match="Declare pay without batch="):
        second()
