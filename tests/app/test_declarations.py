"""Everything wrong in a declaration fails where it is declared, and the error says what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import msgspec
import pytest

from stagepost import App, Context, DeclarationError, Endpoint, Redelivery, StagedEndpoint, Target
from stagepost.app.app import engine_of
from stagepost.app.endpoints import ADDRESS_LENGTH_MAX


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    id: str


@dataclass
class Basket:
    orders: int = 0


@dataclass
class OtherState:
    orders: int = 0


@dataclass
class NeedsSomething:
    value: int


class Plain:
    pass


class Message(msgspec.Struct):
    text: str


@pytest.fixture
def app() -> App:
    return App("shop", database="memory:")


def refused(declare: Callable[[], object], *texts: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare()
    for text in texts:
        assert text in str(caught.value)


# Names

BAD_NAMES = ["", " ", "pay now", "pay.", ".pay", "pay..settle", "pay/settle", "päy", "pay\n", "a" * 151, None, 17]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_cannot_be_an_address_is_refused(app: App, name: Any) -> None:
    declarations: list[Callable[[], object]] = [
        lambda: app.endpoint(name),
        lambda: app.staged(name),
        lambda: app.remote(name, Order),
        lambda: App(name),
    ]
    for declare in declarations:
        refused(declare, repr(name), "letters, digits, '_' and '-'", "150 characters", "payments.pay")


@pytest.mark.parametrize("name", ["pay", "payments.pay", "Pay-2.settle_all", "a" * ADDRESS_LENGTH_MAX])
def test_a_name_of_letters_digits_and_dots_is_an_address(app: App, name: str) -> None:
    assert app.remote(name, Order).address == name


def test_an_endpoint_that_is_declared_twice_is_refused_with_both_places(app: App) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    refused(lambda: app.endpoint("pay"), "endpoint 'pay' is declared twice", "test_declarations.py:", "another name")
    refused(lambda: app.staged("pay"), "endpoint 'pay' is declared twice")


def test_a_staged_endpoint_without_stages_yet_is_declared_all_the_same(app: App) -> None:
    app.staged("pay")
    refused(lambda: app.staged("pay"), "declared twice", "a place without stages yet")


def test_two_handlers_for_one_declared_endpoint_are_refused(app: App) -> None:
    declare = app.endpoint("pay")

    def one(ctx: Context, order: Order) -> None: ...

    def another(ctx: Context, order: Order) -> None: ...

    declare(one)
    refused(lambda: declare(another), "'pay' is declared twice")


def test_two_stages_of_the_same_name_are_refused(app: App) -> None:
    pay: StagedEndpoint[Order, None] = app.staged("pay")

    def settle(ctx: Context, order: Order) -> None: ...

    pay.stage(settle)
    pay.stage(settle)
    refused(lambda: pay.stage(settle), "'pay.settle' is declared twice", "test_declarations.py:")


def test_a_stage_whose_address_is_another_endpoints_is_refused(app: App) -> None:
    @app.endpoint("pay.settle")
    def other(ctx: Context, order: Order) -> None: ...

    pay: StagedEndpoint[Order, None] = app.staged("pay")

    @pay.stage
    def first(ctx: Context, order: Order) -> None: ...

    def settle(ctx: Context, order: Order) -> None: ...

    refused(lambda: pay.stage(settle), "'pay.settle' is declared twice")


def test_an_unknown_setting_of_a_stage_is_refused_with_the_known_ones(app: App) -> None:
    given: dict[str, Any] = {"retries": 3}
    for declare in (lambda: app.endpoint("orders.other", **given), lambda: app.staged("orders.place", **given)):
        with pytest.raises(TypeError, match="no setting 'retries'; its settings are redelivery, time_limit, mode"):
            declare()


def test_what_was_refused_can_be_declared_again_in_a_better_way(app: App) -> None:
    def wrong(ctx: Context, order) -> None: ...  # type: ignore[no-untyped-def]

    def right(ctx: Context, order: Order) -> None: ...

    refused(lambda: app.endpoint("pay")(wrong))
    app.endpoint("pay")(right)
    assert list(engine_of(app).stages()) == ["pay"]


# Signatures


def nothing() -> None: ...


def only_context(ctx: Context) -> None: ...


def four(ctx: Context, state: Basket, order: Order, more: Order) -> None: ...


def star(ctx: Context, *orders: Order) -> None: ...


def keyword_only(ctx: Context, *, order: Order) -> None: ...


def no_context(order: Order, state: Basket) -> None: ...


def bare_message(ctx: Context, order) -> None: ...  # type: ignore[no-untyped-def]


def bare_state(ctx: Context, state, order: Order) -> None: ...  # type: ignore[no-untyped-def]


def plain_message(ctx: Context, order: Plain) -> None: ...


def text_message(ctx: Context, order: str) -> None: ...


def optional_message(ctx: Context, order: Order | None) -> None: ...


def plain_state(ctx: Context, state: Plain, order: Order) -> None: ...


def needy_state(ctx: Context, state: NeedsSomething, order: Order) -> None: ...


def plain_reply(ctx: Context, order: Order) -> Plain: ...  # type: ignore[empty-body]


def several_replies(ctx: Context, order: Order) -> Receipt | Basket: ...  # type: ignore[empty-body]


def any_reply(ctx: Context, order: Order) -> Any: ...


def generator(ctx: Context, order: Order) -> Iterator[Receipt]:
    yield Receipt("r")


async def async_generator(ctx: Context, order: Order) -> Any:
    yield Receipt("r")


def unknown_type(ctx: Context, order: NoSuchOrder) -> None: ...  # type: ignore[name-defined] # noqa: F821


def broken_annotation(ctx: Context, order: Order[int]) -> None: ...  # type: ignore[type-arg]


class Callable_:  # noqa: N801 - a thing that is called, and no function
    def __call__(self, ctx: Context, order: Order) -> None: ...


EXAMPLE = "def handler(ctx: Context, order: Order) -> None"

SIGNATURES: list[tuple[Any, list[str]]] = [
    (nothing, ["the handler of pay, stage nothing takes ()", EXAMPLE]),
    (only_context, ["it must take the context and the message", EXAMPLE]),
    (four, ["it must take the context and the message, with the state between them", EXAMPLE]),
    (star, ["takes (ctx: 'Context', *orders: 'Order')", EXAMPLE]),
    (keyword_only, ["it must take the context and the message", EXAMPLE]),
    (no_context, ["takes 'order' first", "the first parameter is the context", EXAMPLE]),
    (bare_message, ["parameter 'order' of the handler of pay, stage bare_message has no annotation", EXAMPLE]),
    (bare_state, ["parameter 'state'", "has no annotation"]),
    (plain_message, ["parameter 'order' of pay, stage plain_message is Plain", "put @dataclass above its class"]),
    (text_message, ["is str, which is not a dataclass", "wrap the value in a class of its own"]),
    (optional_message, ["parameter 'order'", "which is not a dataclass"]),
    (plain_state, ["state 'state' of pay, stage plain_state is Plain"]),
    (needy_state, ["NeedsSomething() raises TypeError", "Give every field of a state a default"]),
    (plain_reply, ["the reply of pay, stage plain_reply is Plain"]),
    (several_replies, ["an endpoint replies with one type", "with a field that tells the cases apart"]),
    (any_reply, ["the reply of pay, stage any_reply is"]),
    (generator, ["yields, so calling it would run nothing", "ctx.send for more messages"]),
    (async_generator, ["yields, so calling it would run nothing"]),
    (unknown_type, ["names 'NoSuchOrder', which is not defined there", "not under `if TYPE_CHECKING`"]),
    (broken_annotation, ["the annotations of the handler of pay", "cannot be read"]),
    (Callable_(), ["must be a function, not <", EXAMPLE]),
    (Order("x"), ["must be a function, not Order(id='x')", EXAMPLE]),
    ("handler", ["must be a function, not 'handler'", EXAMPLE]),
]


@pytest.mark.parametrize(
    ("handler", "texts"), SIGNATURES, ids=[getattr(each[0], "__name__", repr(each[0])[:9]) for each in SIGNATURES]
)
def test_a_handler_of_a_wrong_signature_is_refused_when_it_is_declared(
    app: App, handler: Any, texts: list[str]
) -> None:
    refused(lambda: app.staged("pay").stage(handler), *texts)
    refused(lambda: app.endpoint("pay-2")(handler))
    assert list(app._addresses) == []


def test_what_a_handler_may_look_like(app: App) -> None:
    @app.endpoint("plain")
    def plain(ctx: Context, order: Order) -> None: ...

    @app.endpoint("bare-context")
    def bare_context(ctx, order: Order): ...  # type: ignore[no-untyped-def]

    @app.endpoint("state")
    def with_state(ctx: Context, state: Basket, order: Order) -> Receipt | None: ...

    @app.endpoint("positional")
    def positional(ctx: Context, order: Order, /) -> Receipt:
        return Receipt(order.id)

    @app.endpoint("async")
    async def asynchronous(ctx: Context, message: Message) -> Receipt:
        return Receipt(message.text)

    @app.endpoint("never")
    def never(ctx: Context, order: Order) -> NoReturn:
        ctx.refuse("on principle")

    replies = {name: app.target(name).reply_type for name in engine_of(app).stages()}
    assert replies == {
        "plain": None,
        "bare-context": None,
        "state": Receipt,
        "positional": Receipt,
        "async": Receipt,
        "never": None,
    }
    assert app.target("async").message_type is Message
    assert engine_of(app).stages()["state"].position.state_type is Basket
    assert (engine_of(app).stages()["async"].is_async, engine_of(app).stages()["plain"].is_async) == (True, False)


def test_types_that_are_defined_where_the_handler_is_are_found(app: App) -> None:
    @dataclass
    class Local:
        value: int

    staged: StagedEndpoint[Local, Local] = app.staged("staged")

    @app.endpoint("local")
    def local(ctx: Context, message: Local) -> Local:
        return message

    @staged.stage
    def first(ctx: Context, message: Local) -> Local:
        return message

    @staged.stage(time_limit=5)
    def second(ctx: Context, message: Local) -> None: ...

    assert [app.target(name).message_type for name in ("local", "staged")] == [Local, Local]


def test_an_endpoint_can_be_called_as_the_function_it_was_made_from(app: App) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> Receipt:
        return Receipt(order.id)

    assert isinstance(pay, Endpoint)
    assert pay(None, Order("o1")) == Receipt("o1")
    assert repr(pay) == "<Endpoint pay>"


def test_a_stage_stays_the_function_it_was(app: App) -> None:
    pay: StagedEndpoint[Order, Receipt] = app.staged("pay")

    @pay.stage
    def settle(ctx: Context, order: Order) -> Receipt:
        return Receipt(order.id)

    assert settle.__name__ == "settle"
    assert settle(None, Order("o1")) == Receipt("o1")  # type: ignore[arg-type]


# Stages that do not fit together


def test_stages_with_different_states_are_refused(app: App) -> None:
    pay: StagedEndpoint[Order, None] = app.staged("pay")

    @pay.stage
    def first(ctx: Context, state: Basket, order: Order) -> None: ...

    @pay.stage
    def second(ctx: Context, order: Order) -> None: ...

    def third(ctx: Context, state: OtherState, order: Order) -> None: ...

    refused(
        lambda: pay.stage(third),
        "stage third of pay has the state OtherState, an earlier handler has Basket",
        "give them the same type",
    )


def test_stages_with_different_replies_are_refused(app: App) -> None:
    pay: StagedEndpoint[Order, Receipt] = app.staged("pay")

    @pay.stage
    def first(ctx: Context, order: Order) -> Receipt | None: ...

    def second(ctx: Context, order: Order) -> Basket:
        return Basket()

    refused(
        lambda: pay.stage(second),
        "stage second of pay returns a Basket, but the endpoint replies with a Receipt",
        "one reply type, whichever of its handlers replies",
    )


def test_a_declared_reply_is_held_to_as_well(app: App) -> None:
    pay = app.staged("pay", reply=Receipt)

    def first(ctx: Context, order: Order) -> Basket:
        return Basket()

    refused(lambda: pay.stage(first), "replies with a Receipt")
    refused(lambda: app.staged("pay-2", reply=Plain), "reply= of pay-2 is Plain")
    refused(lambda: app.staged("pay-3", reply=Order("x")), "reply= of pay-3 is")  # type: ignore[call-overload]


def test_an_endpoint_without_a_stage_is_refused_when_it_is_used(app: App) -> None:
    empty: StagedEndpoint[Order, None] = app.staged("pay")
    for use in (
        engine_of(app).stages,
        lambda: app.start(empty, Order("o1"), flow_id="flow"),
        lambda: empty.message_type,
    ):
        refused(use, "endpoint 'pay' has no stage", "stage above a handler")


def test_stages_are_addressed_by_their_endpoint_and_then_by_their_handlers_names(app: App) -> None:
    pay: StagedEndpoint[Order, Receipt] = app.staged("payments.pay")

    @pay.stage
    def reserve(ctx: Context, state: Basket, order: Order) -> None: ...

    @pay.stage
    def settle(ctx: Context, order: Order) -> Receipt:
        return Receipt(order.id)

    stages = engine_of(app).stages()
    assert list(stages) == ["payments.pay", "payments.pay.settle"]
    assert {each.position.reply_type for each in stages.values()} == {Receipt}
    assert {each.position.state_type for each in stages.values()} == {Basket}
    assert stages["payments.pay"].position.next is not None
    assert stages["payments.pay"].position.next.address == "payments.pay.settle"
    assert stages["payments.pay.settle"].position.next is None
    assert stages["payments.pay"].declared_at.endswith(f"test_declarations.py:{reserve.__code__.co_firstlineno}")


# Others' endpoints


def test_a_remote_endpoint_is_checked_like_ones_own(app: App) -> None:
    refused(lambda: app.remote("bank", Plain), "the message of bank is Plain")
    refused(lambda: app.remote("bank", Order, Plain), "the reply of bank is Plain")
    bank: Target[Order, Receipt] = app.remote("bank", Order, Receipt)
    assert (bank.address, bank.message_type, bank.reply_type) == ("bank", Order, Receipt)
    assert repr(bank) == "<Target bank>"


def test_an_endpoint_that_is_not_there_is_an_error_that_names_those_that_are(app: App) -> None:
    refused(lambda: app.target("pay"), "app 'shop' has no endpoint 'pay'; it has: none", "imported")
    app.staged("ship")
    app.staged("bill")
    refused(lambda: app.target("pay"), "it has: bill, ship")


# Terms

BAD_LIMITS = [0, -1, float("nan"), float("inf"), True, "60", timedelta(0), timedelta(seconds=-1)]


@pytest.mark.parametrize("limit", BAD_LIMITS, ids=repr)
def test_a_time_limit_that_makes_no_sense_is_refused(app: App, limit: Any) -> None:
    for declare in (
        lambda: App("shop", time_limit=limit),
        lambda: app.endpoint("pay", time_limit=limit),
        lambda: app.staged("pay", time_limit=limit),
        lambda: app.staged("pay-2").stage(time_limit=limit),
    ):
        with pytest.raises(DeclarationError, match=r"time_limit must be a number of seconds above 0.* or a timedelta"):
            declare()
        app._endpoints.clear()


def test_a_stages_time_limit_goes_before_its_endpoints_and_that_before_the_apps() -> None:
    app = App("shop", database="memory:", time_limit=timedelta(minutes=2))
    pay: StagedEndpoint[Order, None] = app.staged("pay", time_limit=30)

    @pay.stage
    def first(ctx: Context, order: Order) -> None: ...

    @pay.stage(time_limit=timedelta(milliseconds=500))
    def second(ctx: Context, order: Order) -> None: ...

    @app.endpoint("ship")
    def ship(ctx: Context, order: Order) -> None: ...

    assert {name: stage.time_limit_seconds for name, stage in engine_of(app).stages().items()} == {
        "pay": 30,
        "pay.second": 0.5,
        "ship": 120,
    }


def test_the_time_limit_is_ten_minutes_unless_it_is_said(app: App) -> None:
    @app.endpoint("ship")
    def ship(ctx: Context, order: Order) -> None: ...

    assert engine_of(app).stages()["ship"].time_limit_seconds == 600


@pytest.mark.parametrize("name", ["max_hops", "max_depth"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10", None])
def test_a_limit_that_is_no_whole_number_above_0_is_refused(name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    refused(lambda: App("shop", **options), f"{name} must be a whole number above 0, not {value!r}")


@pytest.mark.parametrize("value", [3, "fixed", Redelivery])
def test_a_redelivery_that_is_no_policy_is_refused(app: App, value: Any) -> None:
    for declare in (
        lambda: App("shop", redelivery=value),
        lambda: app.endpoint("pay", redelivery=value),
        lambda: app.staged("pay", redelivery=value),
        lambda: app.staged("pay-2").stage(redelivery=value),
    ):
        with pytest.raises(DeclarationError, match="redelivery"):
            declare()
        app._endpoints.clear()


def test_a_decorator_without_a_name_is_told_to_have_one(app: App) -> None:
    with pytest.raises(DeclarationError, match=r'an endpoint needs a name: write @app.endpoint\("payments.pay"\)'):

        @app.endpoint  # type: ignore[arg-type]
        def pay(ctx: Context, order: Order) -> None: ...


def test_a_method_is_told_to_be_a_function(app: App) -> None:
    with pytest.raises(DeclarationError, match=r"takes 'self' before the context, as a method does"):

        class Shop:
            @app.endpoint("pay")  # type: ignore[arg-type]
            def pay(self, ctx: Context, order: Order) -> None: ...


def test_an_apps_name_is_told_to_be_one() -> None:
    with pytest.raises(DeclarationError, match="'a b' cannot be an app's name"):
        App("a b")


# Topics


def test_a_topic_is_checked_like_an_endpoint(app: App) -> None:
    plain: Any = Plain
    refused(lambda: app.topic("order placed", Order), "'order placed'", "a topic's name")
    refused(lambda: app.topic("orders", plain), "orders", "Plain", "dataclass")


def test_a_topic_that_is_declared_twice_is_one_topic_and_with_another_type_refused(app: App) -> None:
    orders = app.topic("orders", Order)
    assert app.topic("orders", Order) is orders
    refused(lambda: app.topic("orders", Receipt), "'orders' is declared twice", "Order", "Receipt")


def test_a_subscriber_that_takes_another_type_is_refused(app: App) -> None:
    orders = app.topic("orders", Order)

    def on_order(ctx: Context, receipt: Receipt) -> None: ...

    subscribe = app.subscribe(orders, "billing.on_order")
    refused(lambda: subscribe(on_order), "billing.on_order takes a Receipt", "published to 'orders' are of type Order")


def test_a_subscriber_that_is_declared_twice_is_refused(app: App) -> None:
    orders = app.topic("orders", Order)

    def on_order(ctx: Context, order: Order) -> None: ...

    app.subscribe(orders, "billing.on_order")(on_order)
    refused(lambda: app.subscribe(orders, "billing.on_order"), "'billing.on_order' is declared twice")
    refused(lambda: app.subscribe(app.topic("more", Order), "billing.on_order"), "is declared twice")
    refused(lambda: app.endpoint("billing.on_order"), "is declared twice")


def test_what_is_no_topic_cannot_be_subscribed_to(app: App) -> None:
    topic: Any = "orders"
    refused(lambda: app.subscribe(topic, "billing.on_order"), "'orders' is no topic", "app.topic")
