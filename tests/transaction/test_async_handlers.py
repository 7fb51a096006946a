"""``async def`` handlers: the same context, the thread's own event loop, and nothing left over for the next run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import App, Context, IllegalCall, Redelivery, StagedEndpoint
from stagepost.testing import Harness
from stagepost.transaction.event_loop import EventLoop
from stagepost.transaction.outcome import Buried, Completed, Redelivered

if TYPE_CHECKING:
    from tests.conftest import Ledger

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    id: str


@dataclass
class Basket:
    orders: int = 0


def start(app: App, *names: str) -> None:
    target = app.target("pay")
    for name in names:
        app.start(target, Order(name), flow_id=name)


def test_an_async_handler_does_what_any_handler_does(app: App, harness: NewHarness, ledger: Ledger) -> None:
    pay: StagedEndpoint[Order, Receipt] = app.staged("pay")

    bank_endpoint = app.staged("bank")

    @bank_endpoint.stage
    async def bank(ctx: Context, order: Order) -> Receipt:
        await asyncio.sleep(0)
        return Receipt(f"receipt of {order.id}")

    done_endpoint = app.staged("done")

    @done_endpoint.stage
    async def done(ctx: Context, receipt: Receipt) -> None:
        ledger.write(ctx, receipt.id)

    @pay.stage
    async def first(ctx: Context, state: Basket, order: Order) -> None:
        state.orders += 1
        await asyncio.sleep(0)
        ledger.write(ctx, order.id)
        ctx.request(bank_endpoint, order)

    @pay.stage
    async def second(ctx: Context, state: Basket, receipt: Receipt) -> Receipt:
        return Receipt(f"{state.orders} {receipt.id}")

    app.start(pay, Order("o1"), flow_id="flow", reply_to=done_endpoint)
    worker = harness()
    worker.drain()
    assert worker.dead_letters() == []
    assert ledger.entries == ["o1", "1 receipt of o1"]


@pytest.mark.parametrize(
    "error", [ValueError, SystemExit, KeyboardInterrupt, MemoryError, asyncio.CancelledError, asyncio.TimeoutError]
)
def test_what_an_async_handler_raises_undoes_its_attempt_and_the_loop_lives_on(
    app: App, harness: NewHarness, ledger: Ledger, error: type[BaseException]
) -> None:
    pay_endpoint = app.staged("pay")

    @pay_endpoint.stage
    async def pay(ctx: Context, order: Order) -> None:
        await asyncio.sleep(0)
        ledger.write(ctx, f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise error

    start(app, "flow")
    outcomes = harness().drain()
    assert [type(each) for each in outcomes] == [Redelivered, Completed]
    assert ledger.entries == ["attempt 2"]


def test_tasks_that_a_handler_did_not_await_are_cancelled_with_its_run(app: App, harness: NewHarness) -> None:
    seen: list[str] = []

    async def linger(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(f"{name} cancelled")

    pay_endpoint = app.staged("pay")

    @pay_endpoint.stage
    async def pay(ctx: Context, order: Order) -> None:
        task = asyncio.create_task(linger(order.id), name=order.id)
        await asyncio.sleep(0)
        seen.append(f"{order.id} returns")
        assert not task.done()

    start(app, "a", "b")
    harness().drain()
    runs = [seen[:2], seen[2:]]
    assert sorted(runs) == [["a returns", "a cancelled"], ["b returns", "b cancelled"]]


def test_a_task_that_was_left_over_cannot_use_the_context(app: App, harness: NewHarness, ledger: Ledger) -> None:
    refused: list[str] = []

    pay_endpoint = app.staged("pay")

    @pay_endpoint.stage
    async def pay(ctx: Context, order: Order) -> None:
        async def late() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                # It runs inside the handler's run still, and so it is undone or kept with it.
                ledger.write(ctx, "while it was cancelled")
                kept.append(ctx)

        kept: list[Context] = []
        leftover.append(asyncio.create_task(late()))
        ctx.after_commit(lambda: use(kept[0]))
        await asyncio.sleep(0)

    def use(ctx: Context) -> None:
        with pytest.raises(IllegalCall) as caught:
            ledger.write(ctx, "never")
        refused.append(str(caught.value))

    leftover: list[asyncio.Task[None]] = []
    start(app, "flow")
    harness().drain()
    assert ledger.entries == ["while it was cancelled"]
    assert len(refused) == 1
    assert "await what you start" in refused[0]


def test_what_a_cancelled_task_starts_in_turn_does_not_reach_the_next_run(app: App, harness: NewHarness) -> None:
    alive: dict[str, int] = {}
    started: list[asyncio.Task[None]] = []

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def stubborn() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        started.append(asyncio.create_task(wait_for_ever()))

    pay_endpoint = app.staged("pay")

    @pay_endpoint.stage
    async def pay(ctx: Context, order: Order) -> None:
        alive[order.id] = len(asyncio.all_tasks())
        started.append(asyncio.create_task(stubborn()))
        await asyncio.sleep(0)

    start(app, "a", "b", "c")
    harness().drain()
    assert alive == {"a": 1, "b": 1, "c": 1}


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


async def exits_at_once() -> None:
    raise SystemExit("from a child task")


async def exits_when_it_is_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise SystemExit("from a child task")


async def exits_and_clings_to_its_loop() -> None:
    async def cling() -> None:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        raise SystemExit("once more")

    clinging = asyncio.create_task(cling())
    await asyncio.sleep(0)
    assert not clinging.done()
    raise SystemExit("from a child task")


@pytest.mark.parametrize("child", [exits_at_once, exits_when_it_is_cancelled, exits_and_clings_to_its_loop])
def test_a_child_task_that_exits_fails_its_own_message_and_no_other(
    child: Callable[[], Coroutine[Any, Any, None]], app: App, harness: NewHarness, ledger: Ledger
) -> None:
    pay_endpoint = app.staged("pay", redelivery=Redelivery(redeliveries=0))
    kept: list[asyncio.Task[None]] = []

    @pay_endpoint.stage
    async def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        if order.id == "guilty":
            kept.append(asyncio.create_task(child()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    worker = harness()
    start(app, "guilty")
    (failed,) = worker.drain()
    assert isinstance(failed, Buried)
    assert str(failed.error) == "from a child task"
    start(app, "innocent", "later")
    assert [type(each) for each in worker.drain()] == [Completed, Completed]
    assert sorted(ledger.entries) == ["innocent", "later"]


def test_context_variables_are_those_around_the_worker_and_do_not_leak_from_run_to_run(
    app: App, harness: NewHarness
) -> None:
    seen: list[str] = []

    pay_endpoint = app.staged("pay")

    @pay_endpoint.stage
    async def pay(ctx: Context, order: Order) -> None:
        seen.append(tenant.get())
        tenant.set(order.id)
        await asyncio.sleep(0)
        assert tenant.get() == order.id

    start(app, "a", "b")
    worker = harness()
    worker.run_one()
    token = tenant.set("worker")
    worker.run_one()
    tenant.reset(token)
    assert seen == ["nobody", "worker"]


def test_code_that_an_async_handler_awaits_or_starts_joins_its_transaction(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    @app.endpoint("child")
    def child(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"child of attempt {order.id}")

    async def start_child(attempt: int) -> None:
        await asyncio.sleep(0)
        app.start(child, Order(str(attempt)), flow_id="child")

    pay_endpoint = app.staged("pay")

    @pay_endpoint.stage
    async def pay(ctx: Context, order: Order) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(start_child(ctx.attempt))
        if ctx.attempt == 1:
            raise ValueError

    start(app, "flow")
    worker = harness()
    worker.drain()
    assert worker.dead_letters() == []
    assert ledger.entries == ["child of attempt 2"]


def test_plain_and_async_handlers_run_on_one_thread_in_turn(app: App, harness: NewHarness) -> None:
    seen: list[str] = []
    pay: StagedEndpoint[Order, None] = app.staged("pay")

    @pay.stage
    def first(ctx: Context, order: Order) -> None:
        seen.append("plain")
        ctx.next(order)

    @pay.stage
    async def second(ctx: Context, order: Order) -> None:
        await asyncio.sleep(0)
        seen.append("async")
        ctx.next(order)

    @pay.stage
    def third(ctx: Context, order: Order) -> None:
        asyncio.run(asyncio.sleep(0))
        seen.append("plain with a loop of its own")

    start(app, "flow")
    harness().drain()
    assert seen == ["plain", "async", "plain with a loop of its own"]


def test_an_interrupt_between_two_handlers_of_an_attempt_cancels_the_second_one() -> None:
    """The time limit of the attempt ran out when no handler of it was running."""
    ran: list[str] = []

    async def handler(name: str) -> None:
        ran.append(name)

    loop = EventLoop()
    loop.begin_attempt()
    loop.run(handler, ("first",))
    loop.interrupt()
    with pytest.raises(asyncio.CancelledError):
        loop.run(handler, ("second",))
    loop.begin_attempt()
    loop.run(handler, ("of the next attempt",))
    loop.close()
    assert ran == ["first", "of the next attempt"]
