"""Scopes: one container for each envelope, shared by its handlers, and released in reverse; on two containers."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import App, Context, DeclarationError, IllegalCall, IncomingEnvelope, Redelivery, Sink
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried, Completed, Redelivered
from tests.transaction.containers import Container, WithDictionary, WithSvcs, noted
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.conftest import Ledger, NewApp

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres


@dataclass
class Order:
    id: str


class Clock:
    pass


class Till:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock


class Missing:
    pass


@pytest.fixture(params=[WithSvcs, WithDictionary], ids=["svcs", "dictionary"])
def container(request: pytest.FixtureRequest) -> Container:
    made: Container = request.param()
    return made


@pytest.fixture
def app(new_app: NewApp, container: Container) -> App:
    return new_app(scopes=container.scopes)


@pytest.fixture
def notes(container: Container) -> list[str]:
    notes: list[str] = []
    container.provide(Clock, lambda scope: noted(Clock(), "clock", notes))
    container.provide(Till, lambda scope: noted(Till(scope.get(Clock)), "till", notes))
    return notes


def drain(app: App, harness: NewHarness, *flows: str) -> list[Any]:
    for flow in flows or ("flow",):
        app.start(app.target("pay"), Order(flow), flow_id=flow)
    worker = harness()
    outcomes = worker.drain()
    worker.close()
    return outcomes


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_handler_gets_its_services_by_parameter_and_by_call_and_each_is_made_once(
    app: App, harness: NewHarness, ledger: Ledger, notes: list[str], *, is_async: bool
) -> None:
    pay = app.staged("pay")

    def check(ctx: Context, order: Order, till: Till, clock: Clock) -> None:
        assert ctx.get(Till) is till
        assert till.clock is clock
        ledger.write(ctx, order.id)
        notes.append("handled")

    if is_async:

        @pay.stage
        async def later(ctx: Context, order: Order, *, till: Till, clock: Clock) -> None:
            await asyncio.sleep(0)
            check(ctx, order, till, clock)

    else:

        @pay.stage
        def now(ctx: Context, order: Order, *, till: Till, clock: Clock) -> None:
            check(ctx, order, till, clock)

    assert [type(each) for each in drain(app, harness)] == [Completed]
    assert notes == ["clock made", "till made", "handled", "till released", "clock released"]
    assert ledger.entries == ["flow"]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_services_are_released_after_a_failure_too_and_the_next_attempt_has_new_ones(
    app: App, harness: NewHarness, notes: list[str], error: type[BaseException]
) -> None:
    seen: list[Till] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order, *, till: Till) -> None:
        seen.append(till)
        if ctx.attempt == 1:
            raise error

    assert [type(each) for each in drain(app, harness)] == [Redelivered, Completed]
    assert notes == ["clock made", "till made", "till released", "clock released"] * 2
    assert seen[0] is not seen[1]


def test_the_services_outlive_every_sink_of_their_envelope(app: App, harness: NewHarness, notes: list[str]) -> None:
    @app.sink
    class Outer(Sink):
        def initialize(self, incoming: IncomingEnvelope) -> None:
            notes.append("sink begins")

        def before_commit(self, outgoing: Sequence[object]) -> None:
            notes.append("sink before_commit")

        def success(self) -> None:
            notes.append("sink success")

        def dispose(self) -> None:
            notes.append("sink disposed")

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order, *, clock: Clock) -> None: ...

    drain(app, harness)
    assert notes == [
        "sink begins",
        "clock made",
        "sink before_commit",
        "sink success",
        "sink disposed",
        "clock released",
    ]


def test_two_envelopes_that_are_handled_at_once_share_no_scope(app: App, harness: NewHarness, notes: list[str]) -> None:
    seen: dict[str, tuple[Till, Till]] = {}
    both = threading.Barrier(2)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order, *, till: Till) -> None:
        both.wait(PATIENCE_SECONDS)
        seen[order.id] = (till, ctx.get(Till))
        both.wait(PATIENCE_SECONDS)

    for flow in ("f1", "f2"):
        app.start(pay, Order(flow), flow_id=flow)
    ready = harness()
    claims = [ready.claim_one(), ready.claim_one()]

    def run(number: int) -> object:
        worker = Harness(app, owner=f"another/{number}")
        claim = claims[number]
        assert claim is not None
        try:
            return type(worker.transaction.run(claim))
        finally:
            worker.close()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [Completed, Completed]
    (first, again), (second, once_more) = seen["f1"], seen["f2"]
    assert first is again
    assert second is once_more
    assert first is not second
    assert first.clock is not second.clock
    assert sorted(notes) == sorted(["clock made", "till made", "till released", "clock released"] * 2)


@pytest.mark.in_one_database
def test_each_envelope_of_a_batch_has_a_scope_of_its_own(app: App, harness: NewHarness, notes: list[str]) -> None:
    seen: set[int] = set()
    kept: list[Clock] = []

    @app.endpoint("pay", batch=10)
    def pay(ctx: Context, order: Order, *, clock: Clock) -> None:
        kept.append(clock)
        seen.add(id(clock))

    for flow in ("f1", "f2", "f3"):
        app.start(pay, Order(flow), flow_id=flow)
    worker = harness()
    worker.transaction.run_batch(worker.access.claimer.claim(["pay"], 10, "w1", "test"))
    assert len(seen) == 3
    assert notes == ["clock made"] * 3 + ["clock released"] * 3


def test_a_service_that_cannot_be_made_fails_the_attempt_and_the_others_are_released(
    app: App, harness: NewHarness, container: Container, ledger: Ledger, notes: list[str]
) -> None:
    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order, *, clock: Clock) -> None:
        ledger.write(ctx, order.id)
        ctx.get(Missing)

    (outcome,) = drain(app, harness)
    assert isinstance(outcome, Buried)
    assert "Missing" in str(outcome.error)
    assert notes == ["clock made", "clock released"]
    assert ledger.entries == []


def test_an_error_of_a_release_is_logged_and_the_message_stays_committed(
    app: App, harness: NewHarness, container: Container, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    class Sticky:
        def __enter__(self) -> Clock:
            return Clock()

        def __exit__(self, *error: object) -> None:
            raise ValueError("still in use")

    container.provide(Clock, lambda scope: Sticky())

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order, *, clock: Clock) -> None:
        ledger.write(ctx, order.id)

    with caplog.at_level(logging.WARNING):
        assert [type(each) for each in drain(app, harness)] == [Completed]
    assert "still in use" in caplog.text
    assert ledger.entries == ["flow"]


def test_a_context_gives_no_service_after_its_run(app: App, harness: NewHarness, notes: list[str]) -> None:
    kept: list[Context] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        kept.append(ctx)

    drain(app, harness)
    with pytest.raises(IllegalCall, match="after the handler"):
        kept[0].get(Clock)
    assert notes == []


# Declarations


@pytest.mark.in_one_database
class TestWithoutScopes:
    @pytest.fixture
    def app(self, new_app: NewApp) -> App:
        return new_app()

    def test_a_service_parameter_is_refused_when_it_is_declared(self, app: App) -> None:
        with pytest.raises(DeclarationError, match=r"the service clock, .* App\(…, scopes=…\)"):

            @app.endpoint("pay")
            def pay(ctx: Context, order: Order, *, clock: Clock) -> None: ...

    def test_ctx_get_makes_a_dead_letter_that_names_the_remedy(self, app: App, harness: NewHarness) -> None:
        @app.endpoint("pay")
        def pay(ctx: Context, order: Order) -> None:
            ctx.get(Clock)

        (outcome,) = drain(app, harness)
        assert isinstance(outcome, Buried)
        assert "App(…, scopes=…)" in str(outcome.error)


@pytest.mark.in_one_database
def test_a_service_without_a_type_or_with_a_default_is_refused_when_it_is_declared(app: App) -> None:
    with pytest.raises(DeclarationError, match=r"parameter 'clock' .* annotate it"):

        @app.endpoint("pay")
        def pay(ctx: Context, order: Order, *, clock) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(DeclarationError, match=r"parameter 'clock' .* without a default"):

        @app.endpoint("pay2")
        def pay2(ctx: Context, order: Order, *, clock: Clock | None = None) -> None: ...


@pytest.mark.in_one_database
def test_a_handler_with_services_is_called_as_a_plain_function_in_a_users_own_tests(app: App) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order, *, clock: Clock) -> None:
        used.append(clock)

    used: list[Clock] = []
    clock = Clock()
    pay(None, Order("o1"), clock=clock)
    assert used == [clock]


@pytest.mark.in_one_database
def test_importing_stagepost_imports_no_svcs() -> None:
    script = "import sys, stagepost; print('svcs' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
