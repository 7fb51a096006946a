"""Models of pydantic and classes of attrs as messages, states and replies: validated whenever bytes become values."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import msgspec
import pydantic
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from stagepost import App, Context, DeclarationError, HandlerError, Undecodable
from stagepost.flow import codec
from stagepost.flow.schemas import json_schemas
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried, Completed


@pytest.fixture
def new_database(new_sqlite: Callable[[], str]) -> Callable[[], str]:
    return new_sqlite


class Line(BaseModel):
    article: str
    price: Decimal = Decimal("1.50")


class Order(BaseModel):
    model_config = ConfigDict(strict=True)

    id: str
    amount: int = Field(gt=0)
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    ratio: float = 1.0
    maybe: float | None = None
    tags: set[str] = set()
    lines: list[Line] = []
    named: dict[str, frozenset[int]] = {}

    @field_validator("id")
    @classmethod
    def known(cls, value: str) -> str:
        if value == "unknown":
            raise ValueError("no such order")
        return value


class Seen(BaseModel):
    orders: list[Order] = []


@pydantic.dataclasses.dataclass
class Receipt:
    order_id: str
    amount: int = Field(gt=0)


@attrs.define
class Parcel:
    id: str
    weight: int = attrs.field(validator=attrs.validators.gt(0))
    items: list[str] = attrs.field(factory=list)


@attrs.define
class Packed:
    parcels: list[Parcel] = attrs.field(factory=list)


@dataclass
class Shipment:
    """A plain dataclass around both."""

    order: Order
    parcel: Parcel
    lines: list[Line] = field(default_factory=list)


ORDER = Order(id="o1", amount=3, tags={"b", "a"}, lines=[Line(article="x")], named={"n": frozenset({3, 1})})
VALUES = [
    ORDER,
    Receipt("o1", 3),
    Parcel("p1", 2, ["a"]),
    Shipment(ORDER, Parcel("p1", 2), [Line(article="y", price=Decimal("2.00"))]),
]
by_type = pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)


@by_type
def test_a_value_is_read_back_as_it_was_written(value: Any) -> None:
    declared = codec.check_record("message", type(value))
    body = codec.encode(value, declared)
    assert codec.decode(body, declared) == value
    assert codec.canonical(body, declared) == body


def test_bytes_do_not_depend_on_the_order_of_sets() -> None:
    names = [f"tag {n}" for n in range(20)]
    bodies = {
        bytes(codec.encode(Order(id="o1", amount=1, tags=set(each), named={"n": frozenset(range(9))}), Order))
        for each in (names, names[::-1], names[5:] + names[:5])
    }
    assert len(bodies) == 1
    told = msgspec.json.decode(bodies.pop())
    assert told["tags"] == sorted(names)
    assert told["named"]["n"] == list(range(9))


WRONG: list[tuple[type, bytes, str]] = [
    (Order, b'{"id":"o1","amount":0}', r"does not fit Order: amount: Input should be greater than 0"),
    (Order, b'{"id":"unknown","amount":1}', r"does not fit Order: id: Value error, no such order"),
    (Order, b'{"id":"o1","amount":1,"lines":[{}]}', r"does not fit Order: lines.0.article: Field required"),
    (Order, b"no JSON", r"does not fit Order"),
    (Receipt, b'{"order_id":"o1","amount":-1}', r"does not fit Receipt: amount"),
    (Parcel, b'{"id":"p","weight":0}', r"does not fit Parcel: 'weight' must be > 0"),
    (Shipment, b'{"order":{"id":"o1","amount":-7},"parcel":{"id":"p","weight":1}}', r"does not fit Shipment: amount"),
    (Shipment, b'{"order":{"id":"o1","amount":1},"parcel":{"id":"p","weight":0}}', r"does not fit Shipment: 'weight'"),
]


@pytest.mark.parametrize(("declared", "body", "said"), WRONG)
def test_validators_run_whenever_bytes_are_decoded(declared: type, body: bytes, said: str) -> None:
    with pytest.raises(Undecodable, match=said):
        codec.decode(body, declared)


def test_the_error_shows_no_value() -> None:
    with pytest.raises(Undecodable) as caught:
        codec.decode(b'{"id":["a secret"],"amount":1}', Order)
    assert "secret" not in str(caught.value)


def test_a_value_that_was_changed_past_its_validators_is_not_sent() -> None:
    order = Order(id="o1", amount=1)
    order.amount = -1
    with pytest.raises(HandlerError, match="a Order cannot be sent as it is"):
        codec.encode(order, Order)
    order.amount = "much"  # type: ignore[assignment]  # the mistake
    with pytest.raises(HandlerError, match="a Order cannot be sent as it is"):
        codec.encode(order, Order)
    parcel = Parcel("p", 1)
    object.__setattr__(parcel, "weight", 0)
    with pytest.raises(HandlerError, match="must be > 0"):
        codec.encode(parcel, Parcel)
    with pytest.raises(HandlerError, match="no number that JSON can hold"):
        codec.encode(Order(id="o1", amount=1, maybe=float("nan")), Order)


def test_a_row_of_a_file_is_converted_and_validated() -> None:
    row = {"id": "o1", "amount": "3", "at": "2026-01-01T00:00:00Z", "maybe": "", "ratio": "0.5"}
    assert codec.field_names(Order)[0] == ["id", "amount"]
    assert "tags" in codec.field_names(Order)[1]
    converted = codec.convert(codec.absent_as_default(Order)(row), Order)
    assert converted == Order(id="o1", amount=3, ratio=0.5)
    with pytest.raises(Undecodable, match="amount"):
        codec.convert({"id": "o1", "amount": "0"}, Order)
    assert codec.convert({"id": "p1", "weight": "2"}, Parcel) == Parcel("p1", 2)


@attrs.define
class Crate:
    """A class of attrs around a dataclass, whose absent field must be set for a second encoding."""

    parcel: Shipment | None = None
    plain: Plain | None = None


@dataclass
class Plain:
    weight: int = 1


def test_defaults_of_a_dataclass_in_a_class_of_attrs_are_complete() -> None:
    decoded = codec.decode(b'{"plain":{}}', Crate)
    assert bytes(codec.encode(decoded, Crate)) == b'{"parcel":null,"plain":{"weight":1}}'


class Aliased(BaseModel):
    model_config = ConfigDict(alias_generator=lambda name: name.title(), populate_by_name=True)

    order_id: str


def test_json_has_the_names_of_aliases() -> None:
    declared = codec.check_record("message", Aliased)
    body = codec.encode(Aliased(order_id="o1"), declared)
    assert bytes(body) == b'{"Order_Id":"o1"}'
    assert codec.decode(body, declared) == Aliased(order_id="o1")
    assert codec.field_names(Aliased) == (["Order_Id"], [])


# What is refused when it is declared


class OneWay(BaseModel):
    name: str = Field("", serialization_alias="written", validation_alias=AliasChoices("read", "also"))


class Outer(BaseModel):
    inner: list[OneWay] = []


class Opaque(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    handle: Harness


@dataclass
class Around:
    receipt: Receipt


@attrs.define
class Private:
    _key: str


class NoDefault(BaseModel):
    id: str


REFUSED = {
    OneWay: "OneWay.name is written as 'written' and read as read, also. Give it one alias",
    Outer: "OneWay.name is written as 'written'",
    Opaque: "Opaque cannot be written as JSON and read back",
    Around: "Around.receipt is a dataclass of pydantic, whose validators would not run",
    Private: "Private._key is private, so it would not be sent",
}


@pytest.mark.parametrize("declared", REFUSED, ids=lambda each: each.__name__)
def test_a_type_that_cannot_travel_is_refused_when_it_is_declared(app: App, declared: type) -> None:
    with pytest.raises(DeclarationError) as caught:
        app.remote("pay", declared)
    assert REFUSED[declared] in str(caught.value)


def test_a_state_needs_defaults() -> None:
    with pytest.raises(DeclarationError, match="Give every field of a state a default"):
        codec.check_state("state", NoDefault)


class Tree(BaseModel):
    children: list[Tree] = []


def test_json_schemas_name_each_type_once() -> None:
    found = json_schemas([Order, Receipt, Shipment, Tree], "#/components/schemas/{name}")
    assert set(found) == {"Order", "Line", "Receipt", "Shipment", "Parcel", "Tree"}
    assert found["Shipment"]["properties"]["order"] == {"$ref": "#/components/schemas/Order"}
    assert found["Order"]["properties"]["lines"]["items"] == {"$ref": "#/components/schemas/Line"}
    assert found["Order"]["properties"]["amount"]["exclusiveMinimum"] == 0
    assert found["Tree"]["properties"]["children"]["items"] == {"$ref": "#/components/schemas/Tree"}


# Endpoints


def test_stages_take_reply_and_carry_them(app: App, harness: Callable[..., Harness]) -> None:
    found: list[object] = []

    @app.endpoint("pack")
    def pack(ctx: Context, state: Packed, parcel: Parcel) -> Receipt:
        return Receipt(parcel.id, parcel.weight)

    pay = app.staged("pay")

    @pay.stage
    def begin(ctx: Context, state: Seen, order: Order) -> None:
        state.orders.append(order)
        ctx.request(pack, Parcel(order.id, order.amount))

    @pay.stage
    def end(ctx: Context, state: Seen, receipt: Receipt) -> Line:
        found.extend([state, receipt])
        return Line(article=receipt.order_id)

    @app.endpoint("done")
    def done(ctx: Context, line: Line) -> None:
        found.append(line)

    app.start(pay, ORDER, flow_id="o1", reply_to=done)
    assert {type(each) for each in harness().drain()} == {Completed}
    assert found == [Seen(orders=[ORDER]), Receipt("o1", 3), Line(article="o1")]
    assert not app.start(pay, ORDER.model_copy(deep=True), flow_id="o1", reply_to=done).is_new


def test_a_message_that_a_validator_refuses_is_a_dead_letter_at_once(app: App, harness: Callable[..., Harness]) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    app.start(pay, ORDER, flow_id="o1")
    worker = harness()
    claim = worker.claim_one()
    assert claim is not None
    wrong = claim._replace(envelope=bytes(claim.envelope).replace(b'"amount":3', b'"amount":0'))
    outcome = worker.transaction.run(wrong)
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, Undecodable)


def test_stagepost_imports_neither_library() -> None:
    code = "import sys, stagepost; print({'pydantic', 'attr', 'attrs'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"
