"""Messages to bytes and back, and types that could not travel, refused when they are declared."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepost import DeclarationError, HandlerError, Undecodable
from stagepost.flow import codec

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Place(NamedTuple):
    street: str
    number: int


class Extra(TypedDict):
    key: str


@dataclass(frozen=True)
class Line:
    article: str
    price: Decimal


@dataclass
class Everything:
    text: str
    number: int
    ratio: float
    flag: bool
    amount: Decimal
    at: datetime
    on: date
    clock: time
    lasts: timedelta
    id: UUID
    data: bytes
    colour: Colour
    kind: Literal["a", "b"]
    place: Place
    extra: Extra
    lines: list[Line]
    tags: set[str]
    frozen: frozenset[int]
    pair: tuple[int, str]
    prices: dict[str, Decimal]
    maybe: Line | None = None
    anything: Any = None


class Struct(msgspec.Struct):
    name: str
    children: list[Struct] = []


finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8"), max_size=10)
amounts = st.decimals(allow_nan=False, allow_infinity=False, places=4)
lines = st.builds(Line, texts, amounts)
everything = st.builds(
    Everything,
    text=texts,
    number=st.integers(-(2**63), 2**64 - 1),
    ratio=finite,
    amount=amounts,
    at=st.datetimes(timezones=st.just(UTC)),
    clock=st.times(),
    lasts=st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000)),
    data=st.binary(max_size=50),
    place=st.builds(Place, texts, st.integers(-5, 5)),
    extra=st.fixed_dictionaries({"key": texts}),
    lines=st.lists(lines, max_size=3),
    tags=st.sets(texts, max_size=5),
    prices=st.dictionaries(texts, amounts, max_size=3),
    maybe=st.none() | lines,
    anything=st.none() | texts | st.lists(st.integers(-5, 5), max_size=3),
)


@settings(max_examples=50)
@given(everything)
def test_a_message_comes_back_as_it_was(value: Everything) -> None:
    assert codec.decode(codec.encode(value, Everything), Everything) == value


@given(st.permutations(["one", "two", "three", "four", "five"]), st.permutations(["a", "b", "c", "d"]))
def test_equal_messages_have_equal_bytes_and_digests(tags: list[str], keys: list[str]) -> None:
    """Whatever order a set or a dict happens to have, here or in a Spark task."""

    def body(tags: list[str], keys: list[str]) -> msgspec.Raw:
        value = {"tags": set(tags), "prices": {key: Decimal("1.50") for key in keys}}
        return codec.encode(Tagged(**value), Tagged)  # type: ignore[arg-type]

    first, second = body(tags, keys), body(sorted(tags), sorted(keys))
    assert bytes(first) == bytes(second)
    assert codec.digest(first) == codec.digest(second)


@dataclass
class Tagged:
    tags: set[str]
    prices: dict[str, Decimal]


def test_different_messages_have_different_digests() -> None:
    assert codec.digest(codec.encode(Line("a", Decimal("1.5")), Line)) != codec.digest(
        codec.encode(Line("a", Decimal("1.50")), Line)
    )
    assert len(codec.digest(msgspec.Raw(b"{}"))) == 64


@dataclass
class Part:
    name: str
    size: int = 1
    colour: str = "red"


@dataclass
class Whole:
    first: Part
    parts: list[Part] = field(default_factory=list)
    by_name: dict[str, Part] = field(default_factory=dict)
    pair: tuple[Part, int] | None = None
    note: str = "none"


@dataclass(frozen=True, slots=True)
class Sealed:
    part: Part
    size: int = 7


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"name":"a"}', Part("a")),
        (b'{"first":{"name":"a"}}', Whole(Part("a"))),
        (
            b'{"first":{"name":"a"},"parts":[{"name":"b"}],"by_name":{"c":{"name":"c"}},"pair":[{"name":"d"},1]}',
            Whole(Part("a"), [Part("b")], {"c": Part("c")}, (Part("d"), 1)),
        ),
        (b'{"part":{"name":"a"}}', Sealed(Part("a"))),
    ],
)
def test_what_was_left_out_has_its_default_and_the_same_digest_as_if_it_had_been_said(data: bytes, value: Any) -> None:
    """Another language, or a row of a file, may leave out what a dataclass has a default for."""
    declared = type(value)
    assert codec.decode(data, declared) == value
    assert codec.digest(codec.encode(codec.decode(data, declared), declared)) == codec.digest(
        codec.encode(value, declared)
    )


def test_a_type_may_contain_itself() -> None:
    tree = Struct("a", [Struct("b", [Struct("c")])])
    assert codec.check_record("the message", Struct) is Struct
    assert codec.decode(codec.encode(tree, Struct), Struct) == tree


@dataclass
class Number:
    value: int
    ratio: float = 0.0


WRONG: dict[str, Callable[[], Any]] = {
    "another type in a field": lambda: Number("17"),  # type: ignore[arg-type]
    "a fraction for an int": lambda: Number(1.5),  # type: ignore[arg-type]
    "None": lambda: Number(None),  # type: ignore[arg-type]
    "NaN": lambda: Number(1, math.nan),
    "infinity": lambda: Number(1, math.inf),
    "an object": lambda: Number(object()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WRONG)
def test_a_value_that_could_not_be_read_back_is_an_error_of_the_one_who_sends_it(what: str) -> None:
    with pytest.raises(HandlerError, match="a Number cannot be sent as it is"):
        codec.encode(WRONG[what](), Number)


@dataclass
class Reading:
    value: float | None = None


@dataclass
class Loose:
    value: Any = None


@pytest.mark.parametrize("value", [Reading(math.nan), Reading(math.inf), Loose(math.nan), Loose([math.nan])])
def test_not_a_number_is_an_error_also_where_none_would_be_allowed(value: Any) -> None:
    with pytest.raises(HandlerError):
        codec.encode(value, type(value))


def test_a_message_nested_without_end_is_an_error_of_the_one_who_sends_it() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(HandlerError, match="a Loose cannot be sent as it is"):
        codec.encode(Loose(value), Loose)


HOSTILE = [b"", b"null", b"[]", b'{"value":"x"}', b"{}", b"\xff\xfe", b'{"value":1', b"[" * 100_000, b'{"value":1e999}']


@pytest.mark.parametrize("data", HOSTILE, ids=[repr(each[:12]) for each in HOSTILE])
def test_bytes_that_are_not_of_the_type_are_undecodable_and_the_error_names_it(data: bytes) -> None:
    with pytest.raises(Undecodable, match="Number"):
        codec.decode(data, Number)


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_raise_undecodable(data: bytes) -> None:
    try:
        value = codec.decode(data, Number)
    except Undecodable:
        return
    assert isinstance(value, Number)


# Declaring


class Plain:
    pass


@dataclass
class WithPlain:
    plain: Plain


@dataclass
class DeepPlain:
    boxes: dict[str, list[WithPlain]]


@dataclass
class WithComplex:
    value: complex


class Abstract(abc.ABC):
    @abc.abstractmethod
    def name(self) -> str: ...


@dataclass
class WithAbstract:
    value: list[Abstract]


@dataclass
class WithFunction:
    call: Callable[[], None]


@dataclass
class WithUnion:
    value: Line | Number


@dataclass
class WithKeys:
    value: dict[Line, int]


@dataclass
class Box(Generic[T]):
    content: T


ALIEN: dict[Any, str] = {
    Plain: "is Plain, which is not a dataclass or a msgspec.Struct",
    str: "is str, which is not a dataclass",
    None: "is None, which is not a dataclass",
    list[Line]: "is list, which is not a dataclass",
    Box[int]: "which is not a dataclass",
    WithPlain: "WithPlain.plain is a Plain, which cannot be written as JSON",
    DeepPlain: "DeepPlain.boxes[…][…].plain is a Plain",
    WithComplex: "WithComplex.value is a complex",
    WithAbstract: "WithAbstract.value[…] is a Abstract",
    WithFunction: "WithFunction.call is a",
    WithUnion: "WithUnion",
}


@pytest.mark.parametrize("declared", ALIEN, ids=[str(each) for each in ALIEN])
def test_a_type_whose_values_could_not_travel_is_refused_when_it_is_declared(declared: Any) -> None:
    with pytest.raises(DeclarationError) as caught:
        codec.check_record("the message of pay", declared)
    assert str(caught.value).startswith("the message of pay is")
    assert ALIEN[declared] in str(caught.value)


def test_a_dict_whose_keys_could_not_be_written_is_refused_when_it_is_declared() -> None:
    with pytest.raises(DeclarationError):
        codec.check_record("the message of pay", WithKeys)


def test_a_type_that_cannot_be_found_is_refused_when_it_is_declared() -> None:
    @dataclass
    class Orphan:
        value: NoSuchType  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(DeclarationError, match=r"fields cannot be read.*NoSuchType.*top level of a module"):
        codec.check_record("the message", Orphan)


@pytest.mark.parametrize("declared", [Everything, Line, Struct, Number, Tagged, Loose])
def test_a_type_whose_values_travel_is_accepted(declared: type) -> None:
    assert codec.check_record("the message", declared) is declared


@dataclass
class NeedsSomething:
    value: int


@dataclass
class Raises:
    value: int = 0

    def __post_init__(self) -> None:
        raise RuntimeError("not without a parameter")


@pytest.mark.parametrize("declared", [NeedsSomething, Raises])
def test_a_state_that_cannot_be_made_from_nothing_is_refused_when_it_is_declared(declared: type) -> None:
    with pytest.raises(DeclarationError, match="Give every field of a state a default"):
        codec.check_state("the state of pay", declared)


@dataclass
class Forgetful:
    order: Line = None  # type: ignore[assignment]
    lines: list[str] = field(default_factory=list)


def test_a_state_whose_default_could_not_be_sent_is_refused_when_it_is_declared() -> None:
    with pytest.raises(DeclarationError):
        codec.check_state("the state of pay", Forgetful)


# Rows of files


@dataclass
class Row:
    id: str
    amount: Decimal
    count: int = 1
    on: date | None = None
    note: str = "none"
    grade: int | None = field(kw_only=True)


def test_text_becomes_what_the_type_says() -> None:
    assert codec.convert({"id": "7", "amount": "1.50", "count": "3", "on": "2024-02-29", "grade": "5"}, Row) == Row(
        "7", Decimal("1.50"), 3, date(2024, 2, 29), grade=5
    )


def test_a_row_with_a_value_that_fits_no_field_is_undecodable_and_the_error_names_the_field() -> None:
    with pytest.raises(Undecodable, match=r"Row.*\$\.count"):
        codec.convert({"id": "7", "amount": "1.50", "count": "three", "grade": None}, Row)


def test_an_empty_text_stands_for_the_default_or_for_none() -> None:
    empty = dict.fromkeys(["id", "amount", "count", "on", "note", "grade"], "")
    assert codec.absent_as_default(Row)(empty | {"amount": "2"}) == {"id": "", "amount": "2", "grade": None}


def test_a_type_tells_which_fields_a_row_must_have_and_which_it_may() -> None:
    assert codec.field_names(Row) == (["id", "amount", "grade"], ["count", "on", "note"])
