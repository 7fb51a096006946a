"""Several handlers of one message, and several messages in one envelope: one transaction, one scope, one fate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from stagepost import App, Context, DeclarationError, IdConflict, IllegalCall, Redelivery, StagedEndpoint, Target
from stagepost.app.app import engine_of
from stagepost.flow.codec import encode_envelope
from stagepost.flow.envelope import Envelope, Message
from stagepost.flow.ids import derived
from stagepost.recovery.editing import EditRefused
from stagepost.testing import Harness, crash_everywhere
from stagepost.transaction.editing import check_fits
from stagepost.transaction.outcome import Buried, Completed, Redelivered
from tests.transaction.containers import WithDictionary, noted

if TYPE_CHECKING:
    from tests.conftest import Inject, Ledger, NewApp

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres


@dataclass
class Order:
    id: str


@dataclass
class Refund:
    id: str
    amount: int = 0


@dataclass
class Receipt:
    id: str


@dataclass
class Basket:
    seen: list[str]

    def __init__(self, seen: list[str] | None = None) -> None:
        self.seen = seen or []


class Tally:
    handlers = 0


def together(app: App, target: Target[Any, Any], *messages: Any, **options: Any) -> None:
    with app.initiate() as out:
        out.together(target, messages, flow_id="flow", **options)


# Several handlers


def test_handlers_run_in_the_order_of_their_declaration_and_commit_together(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"paid {order.id}")

    @pay.handler
    def note(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"noted {order.id} {ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Redelivered, Completed]
    assert ledger.entries == ["paid o1", "noted o1 2"]


@pytest.mark.parametrize("way", ["refuse", "fail_with"])
def test_one_handler_that_rolls_back_undoes_all_and_the_later_ones_do_not_run(
    app: App, harness: NewHarness, ledger: Ledger, way: str
) -> None:
    ran: list[str] = []

    @app.endpoint("done")
    def done(ctx: Context, receipt: Receipt) -> None:
        ran.append(receipt.id)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> Receipt:
        ledger.write(ctx, "first")
        return Receipt("first")

    @pay.handler
    def second(ctx: Context, order: Order) -> None:
        if way == "refuse":
            ctx.refuse("no")
        ctx.fail_with(Receipt("second"))

    @pay.handler
    def third(ctx: Context, order: Order) -> None:
        ran.append("third")

    app.start(pay, Order("o1"), flow_id="flow", reply_to=done)
    harness().drain()
    assert ledger.entries == []
    assert ran == ([] if way == "refuse" else ["second"])


def test_handlers_share_state_properties_and_scope(new_app: NewApp, harness_of: NewHarness) -> None:
    notes: list[str] = []
    container = WithDictionary()
    container.provide(Tally, lambda scope: noted(Tally(), "tally", notes))
    app = new_app(scopes=container.scopes)
    seen: list[object] = []
    pay: StagedEndpoint[Order, None] = app.staged("pay")

    @pay.stage
    def first(ctx: Context, state: Basket, order: Order, *, tally: Tally) -> None:
        tally.handlers += 1
        state.seen.append("first")
        ctx.properties["tenant"] = "a"

    @pay.handler
    def beside(ctx: Context, state: Basket, order: Order, *, tally: Tally) -> None:
        tally.handlers += 1
        seen.append((tally.handlers, dict(ctx.properties)))
        state.seen.append("beside")
        ctx.next(order)

    @pay.stage
    def last(ctx: Context, state: Basket, order: Order) -> None:
        seen.append((state.seen, dict(ctx.properties)))

    app.start(pay, Order("o1"), flow_id="flow")
    harness_of(app).drain()
    assert seen == [(2, {"tenant": "a"}), (["first", "beside"], {"tenant": "a"})]
    assert notes == ["tally made", "tally released"]


def declared_pay(app: App, ship: Target[Order, None], sent: list[str], *, has_added: bool) -> Target[Order, None]:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        sent.extend(ctx.send(ship, order) for _ in range(2))

    if has_added:

        @pay.handler
        def audit(ctx: Context, order: Order) -> None:
            sent.append(ctx.send(ship, order))
            if ctx.attempt == 1:
                raise ValueError

        @pay.handler
        def report(ctx: Context, order: Order) -> None:
            sent.append(ctx.send(ship, order))

    return pay


def test_two_handlers_that_send_the_same_thing_send_two_messages_and_repeat_their_ids(
    new_app: NewApp, harness_of: NewHarness
) -> None:
    ids: dict[bool, list[str]] = {}
    for has_added in (False, True):
        app = new_app()
        sent = ids[has_added] = []
        started = app.start(
            declared_pay(app, app.remote("ship", Order), sent, has_added=has_added), Order("o1"), flow_id="flow"
        )
        worker = harness_of(app)
        worker.drain()
    first, second = ids[True][:3], ids[True][3:]
    assert first == second[:3]
    assert len(set(second)) == 4
    # An added handler changes no id of the stage's own handler.
    assert second[:2] == ids[False] == [derived(started.message_id, "pay", 0, "send", "ship", n) for n in range(2)]
    place = (started.message_id, "pay", 0, "send", "ship", 0)
    assert second[2:] == [derived(*place, "audit"), derived(*place, "report")]
    # The audit takes messages with equal places for doubled ones.
    lines = [each for each in worker.history("flow") if each.waypoint == "sent"]
    assert sorted(each.message_id for each in lines) == sorted(second)
    assert sorted(each.ordinal or 0 for each in lines) == [0, 1, 2, 3]


def test_the_handlers_of_a_message_answer_once(app: App, harness: NewHarness, ledger: Ledger) -> None:
    @app.endpoint("done")
    def done(ctx: Context, receipt: Receipt) -> None: ...

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> Receipt:
        ledger.write(ctx, "answered")
        return Receipt("first")

    @pay.handler
    def again(ctx: Context, order: Order) -> None:
        ctx.reply(Receipt("second"))

    app.start(pay, Order("o1"), flow_id="flow", reply_to=done)
    (outcome,) = harness().drain()
    assert isinstance(outcome, Buried)
    assert "called ctx.reply and then ctx.reply" in str(outcome.error)
    assert ledger.entries == []


def test_an_added_handler_may_answer_for_the_stages_own(app: App, harness: NewHarness) -> None:
    answers: list[str] = []

    @app.endpoint("done")
    def done(ctx: Context, receipt: Receipt) -> None:
        answers.append(receipt.id)

    pay: StagedEndpoint[Order, Receipt] = app.staged("pay", reply=Receipt)

    @pay.stage
    def own(ctx: Context, order: Order) -> None: ...

    @pay.handler
    def answer(ctx: Context, order: Order) -> Receipt:
        return Receipt(order.id)

    app.start(pay, Order("o1"), flow_id="flow", reply_to=done)
    harness().drain()
    assert answers == ["o1"]


def test_a_context_is_for_its_own_handler_alone(app: App, harness: NewHarness) -> None:
    ship: Target[Order, None] = app.remote("ship", Order)
    kept: list[Context] = []

    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        kept.append(ctx)

    @pay.handler
    def late(ctx: Context, order: Order) -> None:
        kept[0].send(ship, order)

    app.start(pay, Order("o1"), flow_id="flow")
    (outcome,) = harness().drain()
    assert isinstance(outcome, Buried)
    assert "after the handler" in str(outcome.error)


def test_async_handlers_run_one_after_the_other(app: App, harness: NewHarness, ledger: Ledger) -> None:
    pay = app.staged("pay")

    @pay.stage
    async def own(ctx: Context, order: Order) -> None:
        await asyncio.sleep(0)
        ledger.write(ctx, "own")

    @pay.handler
    async def added(ctx: Context, order: Order) -> None:
        await asyncio.sleep(0)
        ledger.write(ctx, "added")

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert ledger.entries == ["own", "added"]


# Several messages


def declared_by_type(app: App, ledger: Ledger) -> Target[Any, Any]:
    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> Receipt:
        ledger.write(ctx, f"order {order.id}")
        return Receipt(f"order {order.id}")

    @pay.handler
    def refund(ctx: Context, refund: Refund) -> Receipt:
        if refund.amount < 0:
            raise ValueError
        ledger.write(ctx, f"refund {refund.id}")
        return Receipt(f"refund {refund.id}")

    @pay.handler
    def audit(ctx: Context, refund: Refund) -> None:
        ledger.write(ctx, f"audit {refund.id}")

    return pay


def test_messages_find_their_handlers_by_type_and_each_gets_its_reply(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    answers: list[str] = []

    @app.endpoint("done")
    def done(ctx: Context, receipt: Receipt) -> None:
        answers.append(receipt.id)

    pay = declared_by_type(app, ledger)
    together(app, pay, Order("1"), Refund("2"), Order("1"), reply_to=done)
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Completed] * 4
    assert ledger.entries == ["order 1", "refund 2", "audit 2", "order 1"]
    assert sorted(answers) == ["order 1", "order 1", "refund 2"]
    lines = [each for each in worker.history("flow") if each.waypoint == "sent"]
    assert len({each.message_id for each in lines}) == 3
    assert sorted(each.ordinal or 0 for each in lines) == [0, 1, 2]


def test_one_message_that_fails_undoes_the_whole_envelope(app: App, harness: NewHarness, ledger: Ledger) -> None:
    pay = declared_by_type(app, ledger)
    together(app, pay, Order("1"), Refund("2", -5), Order("3"))
    (outcome,) = harness().drain()
    assert isinstance(outcome, Buried)
    assert ledger.entries == []


def test_a_single_message_of_an_added_type_is_sent_as_any_other(app: App, harness: NewHarness, ledger: Ledger) -> None:
    declared_by_type(app, ledger)

    @app.endpoint("shop")
    def shop(ctx: Context, order: Order) -> None:
        ctx.send(app.target("pay"), Refund("inside"))

    app.start(shop, Order("o1"), flow_id="f1")
    app.start(app.target("pay"), Refund("outside"), flow_id="f2")
    harness().drain()
    assert sorted(ledger.entries) == ["audit inside", "audit outside", "refund inside", "refund outside"]


def test_each_message_has_a_state_of_its_own(app: App, harness: NewHarness) -> None:
    seen: list[tuple[str, list[str]]] = []

    @app.endpoint("bank")
    def bank(ctx: Context, order: Order) -> Receipt:
        return Receipt(order.id)

    pay: StagedEndpoint[Any, None] = app.staged("pay")

    @pay.stage
    def ask(ctx: Context, state: Basket, order: Order) -> None:
        state.seen.append(order.id)
        ctx.request(bank, order)

    @pay.stage
    def take(ctx: Context, state: Basket, receipt: Receipt) -> None:
        seen.append((receipt.id, state.seen))

    together(app, pay, Order("a"), Order("b"))
    harness().drain()
    assert sorted(seen) == [("a", ["a"]), ("b", ["b"])]


def test_a_repeat_starts_nothing_and_other_content_or_another_order_is_a_conflict(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    pay = declared_by_type(app, ledger)
    for _ in range(2):
        together(app, pay, Order("1"), Refund("2"))
    for other in ([Refund("2"), Order("1")], [Order("1")], [Order("1"), Refund("2", 1)], [Refund("1"), Refund("2")]):
        with pytest.raises(IdConflict):
            together(app, pay, *other)
    harness().drain()
    assert ledger.entries == ["order 1", "refund 2", "audit 2"]


def test_one_message_alone_is_the_same_content_as_a_plain_send(app: App, ledger: Ledger) -> None:
    pay = declared_by_type(app, ledger)
    assert app.start(pay, Refund("2"), flow_id="flow").is_new
    with app.initiate() as out:
        started = out.together(pay, [Refund("2")], flow_id="flow")
    assert not started.is_new


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "one or more messages"),
        ("ab", "one or more messages"),
        (Order("1"), "one or more messages"),
        ([Order("1"), Receipt("2")], "pay takes a Order or Refund, not a Receipt"),
    ],
)
def test_messages_that_the_endpoint_does_not_take_are_refused_when_they_are_sent(
    app: App, ledger: Ledger, messages: Any, problem: str
) -> None:
    pay = declared_by_type(app, ledger)
    with app.initiate() as out, pytest.raises(IllegalCall, match=problem):
        out.together(pay, messages, flow_id="flow")


@pytest.mark.parametrize("has_two_types", [False, True])
def test_a_reply_of_a_subtype_goes_only_to_an_endpoint_that_finds_its_handler(
    app: App, ledger: Ledger, has_two_types: bool
) -> None:
    @dataclass
    class Voucher(Receipt): ...

    done = app.staged("done")

    @done.stage
    def take(ctx: Context, receipt: Receipt) -> None: ...

    if has_two_types:

        @done.handler
        def refund(ctx: Context, refund: Refund) -> None: ...

    pay = app.remote("pay", Order, Voucher)
    if has_two_types:
        with pytest.raises(IllegalCall, match=r"replies with a .*Voucher, but done takes a Receipt or Refund"):
            app.start(pay, Order("a"), flow_id="flow", reply_to=done)
    else:
        app.start(pay, Order("a"), flow_id="flow", reply_to=done)


def envelope(*messages: Message) -> Envelope:
    return Envelope(
        message_id="m1", flow_id="flow", kind="send", to="pay", sender="s", messages=messages, origin_at=1, sent_at=2
    )


def test_a_message_without_a_handler_is_a_dead_letter_at_once(
    app: App, harness: NewHarness, ledger: Ledger, inject: Inject
) -> None:
    declared_by_type(app, ledger)
    body = msgspec.Raw(b'{"id":"1"}')
    inject("pay", encode_envelope(envelope(Message("Order", body), Message("Gift", body))))
    (outcome,) = harness().drain()
    assert isinstance(outcome, Buried)
    assert "'Gift', and pay takes Order, Refund" in str(outcome.error)
    assert ledger.entries == []


def test_a_stage_of_one_type_takes_it_under_any_name(
    app: App, harness: NewHarness, ledger: Ledger, inject: Inject
) -> None:
    """A foreign sender's class may have another name."""

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)

    inject("pay", encode_envelope(envelope(Message("Bestellung", msgspec.Raw(b'{"id":"1"}')))))
    harness().drain()
    assert ledger.entries == ["1"]


@pytest.mark.in_one_database
def test_an_edited_letter_is_checked_by_the_type_of_each_message(app: App, ledger: Ledger) -> None:
    declared_by_type(app, ledger)
    stage = engine_of(app).stages()["pay"]
    order, refund = Message("Order", msgspec.Raw(b'{"id":"1"}')), Message("Refund", msgspec.Raw(b'{"id":"2"}'))
    check_fits(stage, [order, Message("Refund", msgspec.Raw(b'{"id":"2","amount":7}'))], [order, refund])
    with pytest.raises(EditRefused, match="Order has no amount"):
        check_fits(stage, [Message("Order", msgspec.Raw(b'{"id":"1","amount":7}')), refund], [order, refund])


@pytest.mark.in_one_database
@pytest.mark.parametrize("new_database", ["memory", "sqlite"], indirect=True)
def test_a_crash_at_any_step_leaves_all_handlers_and_messages_done_once(
    new_database: Callable[[], str], tmp_path: Path, ledger_of: Callable[[App], Ledger]
) -> None:
    ledgers: dict[int, Ledger] = {}
    numbers = count()

    def make_app() -> App:
        app = App(f"shop{next(numbers)}", database=new_database())
        ledger = ledgers[id(app)] = ledger_of(app)
        pay = declared_by_type(app, ledger)

        @app.endpoint("done")
        def done(ctx: Context, receipt: Receipt) -> None:
            ledger.write(ctx, f"done {receipt.id}")

        assert pay
        apps.append(app)
        return app

    def scenario(app: App) -> None:
        together(app, app.target("pay"), Order("1"), Refund("2"), reply_to=app.target("done"))

    apps: list[App] = []
    crashes = crash_everywhere(make_app, scenario, lambda app: sorted(ledgers[id(app)].entries))
    for each in apps:
        each.close()
    assert len(crashes) > 10
    assert [str(each) for each in crashes if not each.is_exactly_once] == []


# Declarations


@pytest.mark.in_one_database
class TestDeclarations:
    def test_a_handler_needs_a_stage(self, app: App) -> None:
        pay = app.staged("pay")
        with pytest.raises(DeclarationError, match="no stage to add a handler to"):

            @pay.handler
            def added(ctx: Context, order: Order) -> None: ...

    def test_two_handlers_have_two_names(self, app: App) -> None:
        @app.endpoint("pay")
        def pay(ctx: Context, order: Order) -> None: ...

        def added(ctx: Context, order: Order) -> None: ...

        pay.handler(added)
        with pytest.raises(DeclarationError, match="two handlers with the name 'added'"):
            pay.handler(added)

    def test_two_types_have_two_names(self, app: App) -> None:
        @app.endpoint("pay")
        def pay(ctx: Context, order: Order) -> None: ...

        other = type("Order", (), {"__annotations__": {"id": int}})

        def added(ctx: Context, order: object) -> None: ...

        added.__annotations__["order"] = dataclass(other)
        with pytest.raises(DeclarationError, match="two types with the name Order"):
            pay.handler(added)

    def test_two_handlers_of_a_type_do_not_both_promise_a_reply(self, app: App) -> None:
        @app.endpoint("pay")
        def pay(ctx: Context, order: Order) -> Receipt:
            return Receipt(order.id)

        with pytest.raises(DeclarationError, match="its caller waits for one"):

            @pay.handler
            def added(ctx: Context, order: Order) -> Receipt:
                return Receipt(order.id)

    def test_all_handlers_reply_with_one_type(self, app: App) -> None:
        @app.endpoint("pay")
        def pay(ctx: Context, order: Order) -> Receipt:
            return Receipt(order.id)

        with pytest.raises(DeclarationError, match="handler added of pay returns a Order"):

            @pay.handler
            def added(ctx: Context, refund: Refund) -> Order:
                return Order(refund.id)

    def test_all_handlers_have_one_state_type(self, app: App) -> None:
        pay = app.staged("pay")

        @dataclass
        class Other:
            n: int = 0

        @pay.stage
        def own(ctx: Context, state: Basket, order: Order) -> None: ...

        with pytest.raises(DeclarationError, match="handler added of pay has the state"):

            @pay.handler
            def added(ctx: Context, state: Other, order: Order) -> None: ...

    def test_plain_and_async_handlers_are_not_mixed(self, app: App) -> None:
        @app.endpoint("pay")
        def pay(ctx: Context, order: Order) -> None: ...

        with pytest.raises(DeclarationError, match="Make added like the others"):

            @pay.handler
            async def added(ctx: Context, order: Order) -> None: ...

    def test_a_subscriber_to_a_subtype_takes_no_other_type(self, app: App) -> None:
        @dataclass
        class Voucher(Receipt): ...

        @app.subscribe(app.topic("vouchers", Voucher), "on_voucher")
        def on_voucher(ctx: Context, receipt: Receipt) -> None: ...

        @on_voucher.handler
        def same(ctx: Context, receipt: Receipt) -> None: ...

        with pytest.raises(DeclarationError, match="takes a Receipt or Order, but messages published to 'vouchers'"):

            @on_voucher.handler
            def other(ctx: Context, order: Order) -> None: ...
