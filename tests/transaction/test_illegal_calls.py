"""What a stage cannot do: refused with a text that says what to do instead, a dead letter at once, nothing kept."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import App, Context, FlowTooLong, HandlerError, IllegalCall, Redelivery, StagedEndpoint, Target, Topic
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried, Completed

if TYPE_CHECKING:
    from tests.conftest import Ledger, NewApp

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    id: str


@dataclass
class Price:
    amount: Decimal
    factor: float = 1.0
    tags: list[str] | None = None


@dataclass
class Basket:
    price: Price | None = None


class Targets:
    """What the handlers below may send to; it stands for endpoints of another service."""

    asks: Target[Order, Receipt]
    asks_wrongly: Target[Order, Order]
    silent: Target[Order, None]
    prices: Target[Price, None]
    orders: Topic[Order]


@pytest.fixture
def targets(app: App) -> Targets:
    found = Targets()
    found.asks = app.remote("bank", Order, Receipt)
    found.asks_wrongly = app.remote("echo", Order, Order)
    found.silent = app.remote("log", Order)
    found.prices = app.remote("prices", Price)
    found.orders = app.topic("orders", Order)
    return found


Handle = Callable[[Context, Targets], object]


def untyped(value: object) -> Any:
    """Past the type checker, as a handler without annotations would pass it."""
    return value


def first_then(first: Handle, second: Handle) -> Handle:
    def both(ctx: Context, targets: Targets) -> object:
        first(ctx, targets)
        return second(ctx, targets)

    return both


def request(ctx: Context, targets: Targets) -> None:
    ctx.request(targets.asks, Order("o"))


def go_on(ctx: Context, targets: Targets) -> None:
    ctx.next(Receipt("r"))


def reply(ctx: Context, targets: Targets) -> None:
    ctx.reply(Receipt("r"))


def return_reply(ctx: Context, targets: Targets) -> Receipt:
    return Receipt("r")


# In the first of two stages; the second takes a Receipt, and the endpoint replies with one.
IN_A_FIRST_STAGE: dict[str, tuple[Handle, list[str]]] = {
    "request, then reply": (first_then(request, reply), ["pay called ctx.request and then ctx.reply", "either one or"]),
    "request, then return": (first_then(request, return_reply), ["pay called ctx.request and then returned a reply"]),
    "request, then next": (first_then(request, go_on), ["pay called ctx.request and then ctx.next"]),
    "next, then request": (first_then(go_on, request), ["pay called ctx.next and then ctx.request"]),
    "next, then reply": (first_then(go_on, reply), ["pay called ctx.next and then ctx.reply"]),
    "next, then return": (first_then(go_on, return_reply), ["pay called ctx.next and then returned a reply"]),
    "next twice": (first_then(go_on, go_on), ["pay called ctx.next and then ctx.next", "one next"]),
    "reply, then request": (first_then(reply, request), ["pay called ctx.reply and then ctx.request"]),
    "reply, then next": (first_then(reply, go_on), ["pay called ctx.reply and then ctx.next"]),
    "reply twice": (first_then(reply, reply), ["pay called ctx.reply and then ctx.reply", "one reply"]),
    "reply, then return": (first_then(reply, return_reply), ["pay called ctx.reply and then returned a reply"]),
    "request of one that never replies": (
        lambda ctx, targets: ctx.request(targets.silent, Order("o")),
        ["log never replies", "pay.settle would never run", "Use ctx.send", "return type"],
    ),
    "request of one that replies with another type": (
        lambda ctx, targets: ctx.request(targets.asks_wrongly, Order("o")),
        ["echo replies with a Order", "pay.settle takes a Receipt"],
    ),
    "request with a message of another type": (
        lambda ctx, targets: ctx.request(targets.asks, untyped(Receipt("r"))),
        ["bank takes a Order, not a Receipt", "Receipt(id='r')"],
    ),
    "send with a message of another type": (
        lambda ctx, targets: ctx.send(targets.silent, untyped("order")),
        ["log takes a Order, not a str"],
    ),
    "next with a message of another type": (
        lambda ctx, targets: ctx.next(Order("o")),
        ["pay.settle takes a Receipt, not a Order"],
    ),
    "reply with a message of another type": (
        lambda ctx, targets: ctx.reply(Order("o")),
        ["a Receipt, not a Order"],
    ),
    "return of a value of another type": (lambda ctx, targets: Order("o"), ["a Receipt, not a Order"]),
    "a wrong value in a field": (
        lambda ctx, targets: ctx.send(targets.silent, Order(17)),  # type: ignore[arg-type]
        ["a Order cannot be sent as it is", "Expected `str`, got `int`", "values of the types they declare"],
    ),
    "a wrong value deep in a field": (
        lambda ctx, targets: ctx.send(targets.prices, Price(Decimal(1), tags=["a", 2])),  # type: ignore[list-item]
        ["a Price cannot be sent as it is", "$.tags[1]"],
    ),
    "something that cannot be written": (
        lambda ctx, targets: ctx.send(targets.silent, Order(object())),  # type: ignore[arg-type]
        ["a Order cannot be sent as it is"],
    ),
    "a text that is none": (
        lambda ctx, targets: ctx.send(targets.silent, Order("caf\udce9")),
        ["a Order cannot be sent as it is"],
    ),
    "NaN": (
        lambda ctx, targets: ctx.send(targets.prices, Price(Decimal(1), factor=math.nan)),
        ["a Price cannot be sent as it is", "$.factor"],
    ),
    "infinity": (
        lambda ctx, targets: ctx.send(targets.prices, Price(Decimal(1), factor=-math.inf)),
        ["a Price cannot be sent as it is", "$.factor"],
    ),
    "a state with a wrong value": (
        first_then(lambda ctx, targets: setattr(ctx.state, "price", "cheap"), request),
        ["a Basket cannot be sent as it is", "$.price"],
    ),
    "a negative delay": (
        lambda ctx, targets: ctx.send(targets.silent, Order("o"), delay=-1),
        ["delay must be a number of seconds", "not -1"],
    ),
    "a negative delay of next": (
        lambda ctx, targets: ctx.next(Receipt("r"), delay=-0.5),
        ["delay must be a number of seconds", "not -0.5"],
    ),
    "a callback that cannot be called": (
        lambda ctx, targets: ctx.after_commit("call me"),  # type: ignore[arg-type]
        ["after_commit takes a function to call, not 'call me'"],
    ),
    "failing with a reply of another type": (
        lambda ctx, targets: ctx.fail_with(Order("o")),
        ["a Receipt, not a Order"],
    ),
}

# In the only stage of an endpoint that declares no reply.
IN_A_LAST_STAGE: dict[str, tuple[Handle, list[str]]] = {
    "request": (
        request,
        ["log-only is the last stage of log-only", "the reply of bank", "Use ctx.send, or add a stage"],
    ),
    "next": (go_on, ["log-only is the last stage of log-only", "Reply, or add a stage"]),
    "reply": (reply, ["log-only replied with a Receipt", "declares no reply", "`-> Receipt`", "return None"]),
    "return": (return_reply, ["log-only replied with a Receipt", "declares no reply"]),
    "fail_with": (lambda ctx, targets: ctx.fail_with(Receipt("r")), ["declares no reply"]),
}


def refused_at_once(worker: Harness, ledger: Ledger, texts: list[str]) -> None:
    assert len(worker.drain()) == 1
    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.deliveries) == ("hopeless", 1)
    for text in texts:
        assert text in letter.causes[0].message
    assert ledger.entries == []
    assert worker.access.claimer.pending(["bank", "echo", "log", "prices", "pay.settle", "pay"]).is_drained
    assert [each.waypoint for each in worker.history("flow")] == ["accepted", "received", "failed", "dead"]


@pytest.mark.parametrize("call", IN_A_FIRST_STAGE)
def test_an_illegal_call_in_a_stage_that_has_a_next_one(
    app: App, harness: NewHarness, ledger: Ledger, targets: Targets, call: str
) -> None:
    handle, texts = IN_A_FIRST_STAGE[call]
    pay: StagedEndpoint[Order, Receipt] = app.staged("pay")

    @pay.stage
    def first(ctx: Context, state: Basket, order: Order) -> Receipt:
        ledger.write(ctx, "never")
        ctx.send(targets.silent, order)
        return handle(ctx, targets)  # type: ignore[return-value]  # what it returns is what is tested

    @pay.stage
    def settle(ctx: Context, state: Basket, receipt: Receipt) -> None:
        ledger.write(ctx, "settled")

    app.start(pay, Order("o1"), flow_id="flow", reply_to=app.remote("somewhere", Receipt))
    refused_at_once(harness(), ledger, texts)


@pytest.mark.parametrize("call", IN_A_LAST_STAGE)
def test_an_illegal_call_in_the_last_stage_of_an_endpoint_without_a_reply(
    app: App, harness: NewHarness, ledger: Ledger, targets: Targets, call: str
) -> None:
    handle, texts = IN_A_LAST_STAGE[call]

    @app.endpoint("log-only")
    def log_only(ctx: Context, order: Order) -> None:
        ledger.write(ctx, "never")
        return handle(ctx, targets)  # type: ignore[return-value]  # what it returns is what is tested

    app.start(log_only, Order("o1"), flow_id="flow")
    refused_at_once(harness(), ledger, texts)


# A context that was kept

LATE: dict[str, Callable[[Context, Targets], object]] = {
    "sql": lambda ctx, targets: ctx.sql("SELECT 1"),
    "connection": lambda ctx, targets: ctx.connection,
    "request": request,
    "next": go_on,
    "reply": reply,
    "send": lambda ctx, targets: ctx.send(targets.silent, Order("o")),
    "initiate": lambda ctx, targets: ctx.initiate(),
    "after_commit": lambda ctx, targets: ctx.after_commit(print),
    "refuse": lambda ctx, targets: ctx.refuse("late"),
    "fail_with": lambda ctx, targets: ctx.fail_with(Receipt("r")),
    "publish": lambda ctx, targets: ctx.publish(targets.orders, Order("o")),
}


@pytest.mark.parametrize("call", [*LATE, "properties"])
def test_a_context_refuses_every_call_from_another_thread(
    app: App, harness: NewHarness, targets: Targets, call: str
) -> None:
    """Two threads would number what they send alike, and two messages have one id."""
    pay: StagedEndpoint[Order, Receipt] = app.staged("pay", redelivery=Redelivery(redeliveries=0))
    refused: list[BaseException] = []

    def use(ctx: Context) -> None:
        try:
            if call == "properties":
                ctx.properties["late"] = 1
            else:
                LATE[call](ctx, targets)
        except IllegalCall as error:
            refused.append(error)

    @pay.stage
    def first(ctx: Context, order: Order) -> Receipt | None:
        thread = threading.Thread(target=use, args=[ctx])
        thread.start()
        thread.join()
        return None

    @pay.stage
    def settle(ctx: Context, receipt: Receipt) -> None: ...

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Completed]
    assert len(refused) == 1
    assert "was used in another thread than its handler's" in str(refused[0])
    assert "write and send in the handler" in str(refused[0])
    assert worker.access.claimer.pending(["log", "bank", "pay.settle"]).is_drained


# A call whose error was caught


def request_in_vain(ctx: Context, targets: Targets) -> None:
    ctx.request(targets.asks, untyped(Receipt("r")))


def request_with_a_wrong_field(ctx: Context, targets: Targets) -> None:
    ctx.request(targets.asks, Order(id=untyped(math.nan)))


def next_in_vain(ctx: Context, targets: Targets) -> None:
    ctx.next(Receipt("r"), delay=-1)


@pytest.mark.parametrize("fail", [request_in_vain, request_with_a_wrong_field, next_in_vain])
@pytest.mark.parametrize("is_asked", [True, False], ids=["asked", "not asked"])
def test_a_stage_that_catches_the_error_of_a_call_and_goes_on_in_silence_is_refused_where_somebody_waits(
    fail: Callable[[Context, Targets], object], is_asked: bool, app: App, harness: NewHarness, targets: Targets
) -> None:
    pay: StagedEndpoint[Order, Receipt] = app.staged("pay", redelivery=Redelivery(redeliveries=0))

    @pay.stage
    def first(ctx: Context, order: Order) -> None:
        with suppress(HandlerError):
            fail(ctx, targets)

    @pay.stage
    def settle(ctx: Context, receipt: Receipt) -> Receipt:
        return receipt

    app.start(pay, Order("o1"), flow_id="flow", reply_to=app.remote("somewhere", Receipt) if is_asked else None)
    (outcome,) = harness().drain()
    if not is_asked:
        assert isinstance(outcome, Completed)
        return
    assert isinstance(outcome, Buried)
    assert "somewhere would wait forever" in str(outcome.error)
    assert isinstance(outcome.error.__cause__, HandlerError)


@pytest.mark.parametrize("call", LATE)
def test_a_context_that_was_kept_refuses_every_call(app: App, harness: NewHarness, targets: Targets, call: str) -> None:
    kept: list[Context] = []
    pay: StagedEndpoint[Order, Receipt] = app.staged("pay")

    @pay.stage
    def first(ctx: Context, order: Order) -> Receipt | None:
        kept.append(ctx)
        return None

    @pay.stage
    def settle(ctx: Context, receipt: Receipt) -> None: ...

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    worker.drain()
    with pytest.raises(IllegalCall, match=rf"ctx\.{call} was called after the handler of pay had returned"):
        LATE[call](kept[0], targets)
    assert worker.access.claimer.pending(["log", "bank", "pay.settle"]).is_drained


def test_a_context_of_a_failed_run_refuses_too(app: App, harness: NewHarness) -> None:
    kept: list[Context] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        kept.append(ctx)
        raise ValueError

    app.start(pay, Order("o1"), flow_id="flow")
    harness().run_one()
    with pytest.raises(IllegalCall, match="had returned"):
        kept[0].sql("SELECT 1")


# Flows that run in a circle


def circle_by_send(app: App) -> Target[Order, Any]:
    target: Target[Order, None] = app.remote("circle", Order)

    @app.endpoint("circle")
    def circle(ctx: Context, order: Order) -> None:
        ctx.send(target, order)

    return circle


def circle_by_next(app: App) -> Target[Order, Any]:
    back: Target[Order, None] = app.remote("circle", Order)
    circle: StagedEndpoint[Order, None] = app.staged("circle")

    @circle.stage
    def there(ctx: Context, order: Order) -> None:
        ctx.next(order)

    @circle.stage
    def and_back(ctx: Context, order: Order) -> None:
        ctx.send(back, order)

    return circle


def circle_by_request(app: App) -> Target[Order, Any]:
    itself: Target[Order, Receipt] = app.remote("circle", Order, Receipt)
    circle: StagedEndpoint[Order, Receipt] = app.staged("circle")

    @circle.stage
    def ask(ctx: Context, order: Order) -> Receipt | None:
        ctx.request(itself, order)
        return None

    @circle.stage
    def answer(ctx: Context, receipt: Receipt) -> Receipt:
        return receipt

    return circle


@pytest.mark.parametrize("declare", [circle_by_send, circle_by_next])
def test_a_flow_that_has_passed_too_many_stages_is_a_dead_letter(
    new_app: NewApp, harness_of: NewHarness, declare: Callable[[App], Target[Order, Any]]
) -> None:
    app = new_app(max_hops=10)
    app.start(declare(app), Order("o1"), flow_id="flow")
    worker = harness_of(app)
    outcomes = worker.drain()
    # The first has passed none; ten more are let on.
    assert len(outcomes) == 1 + 10
    (letter,) = worker.dead_letters()
    assert letter.reason == "hopeless"
    assert letter.causes[0].type == "stagepost.FlowTooLong"
    assert "more than the 10 this app allows" in letter.summary
    assert "max_hops" in letter.summary


def test_a_flow_that_asks_itself_too_deeply_is_a_dead_letter(new_app: NewApp, harness_of: NewHarness) -> None:
    app = new_app(max_depth=5)
    app.start(circle_by_request(app), Order("o1"), flow_id="flow")
    worker = harness_of(app)
    assert len(worker.drain()) == 1 + 5
    (letter,) = worker.dead_letters()
    assert letter.reason == "hopeless"
    assert "is 6 requests deep, more than the 5 this app allows" in letter.summary
    assert "max_depth" in letter.summary


@pytest.mark.parametrize(
    ("declare", "runs"), [(circle_by_send, 201), (circle_by_request, 36)], ids=["200 hops", "35 deep"]
)
def test_the_limits_are_those_of_the_field_unless_told_otherwise(
    app: App, harness: NewHarness, declare: Callable[[App], Target[Order, Any]], runs: int
) -> None:
    app.start(declare(app), Order("o1"), flow_id="flow")
    worker = harness()
    assert len(worker.drain()) == runs
    assert [letter.causes[0].type for letter in worker.dead_letters()] == [f"stagepost.{FlowTooLong.__name__}"]


def test_replies_may_unwind_a_stack_that_is_as_deep_as_allowed(new_app: NewApp, harness_of: NewHarness) -> None:
    app = new_app(max_depth=3)
    ended: list[int] = []
    itself: Target[Order, Receipt] = app.remote("down", Order, Receipt)
    down: StagedEndpoint[Order, Receipt] = app.staged("down")

    @down.stage
    def ask(ctx: Context, order: Order) -> Receipt | None:
        if order.id == "xxx":
            return Receipt("bottom")
        ctx.request(itself, Order(order.id + "x"))
        return None

    @down.stage
    def answer(ctx: Context, receipt: Receipt) -> Receipt:
        ended.append(1)
        return receipt

    app.start(down, Order(""), flow_id="flow")
    worker = harness_of(app)
    worker.drain()
    assert worker.dead_letters() == []
    assert len(ended) == 3
