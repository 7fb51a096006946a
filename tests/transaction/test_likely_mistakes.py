"""What a newcomer gets wrong: said at once, with what to write instead, and a dead letter at the first attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stagepost import App, Context, IdConflict, IllegalCall, Target
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried, Completed, Outcome

IN_EVERY_MODE = True


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    id: str


@pytest.fixture
def new_database(new_sqlite: Callable[[], str]) -> Callable[[], str]:
    return new_sqlite


def untyped(value: object) -> Any:
    """Past the type checker, as in a program that has none."""
    return value


def run_one(app: App) -> Outcome:
    harness = Harness(app)
    outcome = harness.run_one()
    harness.close()
    assert outcome is not None
    return outcome


def elsewhere(ctx: Context) -> None:
    errors: list[BaseException] = []

    def write() -> None:
        try:
            ctx.sql("SELECT 1")
        except BaseException as error:  # noqa: BLE001 - it is raised where it is looked at
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    raise errors[0]


MISTAKES: dict[str, tuple[Callable[[Context], object], list[str]]] = {
    "without a name": (
        lambda ctx: ctx.sql("SELECT :a", 5),
        ["was given 5 without a name", "ctx.sql('… WHERE id = :id'"],
    ),
    "a dict": (lambda ctx: ctx.sql("SELECT :a", {"a": 5}), ["without a name"]),
    "another name": (lambda ctx: ctx.sql("SELECT :a", b=5), [":a", "parameters given: b"]),
    "no parameter": (lambda ctx: ctx.sql("SELECT :a"), [":a", "parameters given: none"]),
    "a question mark": (lambda ctx: ctx.sql("SELECT ?", a=5), ["with :name for each parameter"]),
    "two statements": (lambda ctx: ctx.sql("SELECT 1; SELECT 2"), ["one statement"]),
    "a type of its own": (lambda ctx: ctx.sql("SELECT :a", a=Order("o")), ["types that SQLite knows"]),
    "in another thread": (elsewhere, ["another thread than its handler's", "write and send in the handler"]),
    "a target's name": (
        lambda ctx: ctx.send(untyped("pay"), Order("o")),
        ["'pay' is no endpoint to send to", "app.target(name)"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_handler_is_told_with_its_remedy_at_the_first_attempt(app: App, mistake: str) -> None:
    make, told = MISTAKES[mistake]

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        make(ctx)

    app.start(pay, Order("o1"), flow_id="flow")
    outcome = run_one(app)
    assert isinstance(outcome, Buried)
    for part in told:
        assert part in str(outcome.error)


def test_a_plain_handler_that_returns_a_coroutine_is_told_to_be_async(app: App) -> None:
    async def work() -> Receipt:
        return Receipt("r")

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> Receipt:
        return untyped(work())  # type: ignore[no-any-return]

    app.start(pay, Order("o1"), flow_id="flow")
    outcome = run_one(app)
    assert isinstance(outcome, Buried)
    assert "pay returned a coroutine, which is not awaited: make its handler `async def`" in str(outcome.error)


def test_a_reply_of_another_type_is_told_as_one(app: App) -> None:
    done: Target[Receipt, None] = app.remote("done", Receipt)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> Receipt:
        return untyped(Order("o"))  # type: ignore[no-any-return]

    for reply_to in (done, None):
        app.start(pay, Order("o1"), flow_id=f"flow {reply_to}", reply_to=reply_to)
        outcome = run_one(app)
        assert isinstance(outcome, Buried)
        assert "pay replies with a Receipt, not a Order" in str(outcome.error)


# A promised reply


def test_a_handler_that_falls_through_while_somebody_waits_is_told_who(app: App) -> None:
    done: Target[Receipt, None] = app.remote("done", Receipt)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> Receipt:
        if order.id == "good":
            return Receipt("r")
        return untyped(None)  # type: ignore[no-any-return]

    app.start(pay, Order("bad"), flow_id="bad", reply_to=done)
    outcome = run_one(app)
    assert isinstance(outcome, Buried)
    assert "pay returned None, and done waits for the Receipt" in str(outcome.error)
    assert "annotate `-> Receipt | None`" in str(outcome.error)
    app.start(pay, Order("good"), flow_id="good", reply_to=done)
    assert isinstance(run_one(app), Completed)


def test_where_nobody_waits_there_is_nobody_to_keep_waiting(app: App) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> Receipt:
        return untyped(None)  # type: ignore[no-any-return]

    app.start(pay, Order("o1"), flow_id="flow")
    assert isinstance(run_one(app), Completed)


def test_silence_can_be_meant(app: App) -> None:
    done: Target[Receipt, None] = app.remote("done", Receipt)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> Receipt | None:
        return None

    app.start(pay, Order("o1"), flow_id="flow", reply_to=done)
    assert isinstance(run_one(app), Completed)


def test_a_promise_is_kept_by_ctx_reply_and_by_what_will_lead_to_one(app: App) -> None:
    done: Target[Receipt, None] = app.remote("done", Receipt)
    bank = app.remote("bank", Order, Receipt)
    pay = app.staged("pay")

    @pay.stage
    def ask(ctx: Context, order: Order) -> Receipt:
        ctx.request(bank, order)
        return untyped(None)  # type: ignore[no-any-return]

    @pay.stage
    def answer(ctx: Context, receipt: Receipt) -> Receipt:
        ctx.reply(receipt)
        return untyped(None)  # type: ignore[no-any-return]

    app.start(pay, Order("o1"), flow_id="flow", reply_to=done)
    assert isinstance(run_one(app), Completed)


# Outside handlers


def test_an_endpoints_name_is_no_target_to_start_at(app: App) -> None:
    pay = app.remote("pay", Order, Receipt)
    with pytest.raises(IllegalCall, match="'pay' is no endpoint to send to"):
        app.start(untyped("pay"), Order("o1"), flow_id="flow")
    with pytest.raises(IllegalCall, match="'done' is no endpoint to send to"):
        app.start(pay, Order("o1"), flow_id="flow", reply_to=untyped("done"))


def test_a_conflict_names_the_flow_that_was_to_be_started(app: App) -> None:
    pay: Target[Order, None] = app.remote("pay", Order)
    app.start(pay, Order("o1"), flow_id="order:1")
    with pytest.raises(IdConflict, match=r"flow 'order:1'") as caught:
        app.start(pay, Order("o2"), flow_id="order:1")
    assert caught.value.flow_id == "order:1"


def test_tasks_that_an_async_handler_did_not_await_are_told_of(app: App, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []

    async def later() -> None:
        await asyncio.sleep(3600)
        ran.append("later")

    @app.endpoint("pay")
    async def pay(ctx: Context, order: Order) -> Receipt:
        ran.append(asyncio.create_task(later()).get_name())
        return Receipt("r")

    app.start(pay, Order("o1"), flow_id="flow")
    assert isinstance(run_one(app), Completed)
    assert len(ran) == 1
    assert "returned before 1 tasks that it had started; they are cancelled: await every task you start" in caplog.text
