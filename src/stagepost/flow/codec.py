"""Encode and decode envelopes, and messages and states of types that were checked when they were declared.

An envelope is JSON, so that an operator can read a dead letter, and a program in any language can write an envelope.

The encoding of messages and states is deterministic: sorted keys, sorted sets, decimals as strings. So equal values
have equal digests, whether a caller of ``app.start``, a handler or a Spark task encodes them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as shapes

from stagepost.flow.claim import Claim
from stagepost.flow.envelope import Envelope
from stagepost.flow.errors import DeclarationError, HandlerError, Undecodable, WrongAddress

# CSV readers return either of the two for an empty cell.
EMPTY = (None, "")

_encoder = msgspec.json.Encoder(order="sorted", decimal_format="string")

encode_envelope = msgspec.json.Encoder().encode
_decode_envelope = msgspec.json.Decoder(Envelope).decode


def decode_envelope(data: bytes) -> Envelope:
    """Decode an envelope. Raises ``Undecodable``; the dead letter then keeps the bytes."""
    try:
        return _decode_envelope(data)
    # A hostile body, nested a hundred thousand deep, raises RecursionError.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"not an envelope: {error}") from error


def decode_addressed(claim: Claim) -> Envelope:
    """Decode the envelope of a claimed message. Raises ``Undecodable``, and ``WrongAddress`` for another stage's."""
    envelope = decode_envelope(claim.envelope)
    if envelope.to != claim.stage:
        raise WrongAddress(f"found in the queue of {claim.stage}, but addressed to {envelope.to}")
    if not envelope.messages:
        raise Undecodable("an envelope without a message")
    return envelope


def encode(value: Any, declared: type) -> msgspec.Raw:
    """Encode a message or a state. Raises ``HandlerError``.

    It decodes the bytes once, to check them. So a wrong value in a field, or a NaN, is an error of the sending handler,
    and not a dead letter of the receiving stage.
    """
    try:
        data = _encoder.encode(value)
        _decoder(declared)(data)
        if _may_hide_nan(declared):
            _refuse_nan(msgspec.to_builtins(value))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise HandlerError(
            f"a {declared.__qualname__} cannot be sent as it is: {error}. Give its fields values of the types they "
            "declare."
        ) from error
    return msgspec.Raw(data)


@cache
def _may_hide_nan(declared: type) -> bool:
    """Say whether the type allows null in place of a float: JSON writes NaN as null, so decoding would miss it."""
    return any(
        isinstance(shape, shapes.AnyType)
        or (isinstance(shape, shapes.UnionType) and _allows_none(shape) and _has_float(shape))
        for _, shape in _walk(shapes.type_info(declared), "", set())
    )


def _refuse_nan(value: Any) -> None:
    match value:
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value} is no number that JSON can hold")
        case dict():
            for each in value.values():
                _refuse_nan(each)
        case list() | tuple():
            for each in value:
                _refuse_nan(each)


@cache
def _decoder(declared: type) -> Callable[[bytes | msgspec.Raw], Any]:
    return msgspec.json.Decoder(declared).decode


def decode(data: bytes | msgspec.Raw, declared: type) -> Any:
    """Decode a message or a state. Raises ``Undecodable``, with the type and the field."""
    try:
        return _completed(_decoder(declared)(data), declared)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"does not fit {declared.__qualname__}: {error}") from error


def convert(fields: dict[str, Any], declared: type) -> Any:
    """Convert a row of a file to a value of ``declared``: text becomes numbers, decimals and dates as declared.

    Raises ``Undecodable``, with the field.
    """
    try:
        return _completed(msgspec.convert(fields, declared, strict=False), declared)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Undecodable(f"does not fit {declared.__qualname__}: {error}") from error


def _completed(value: Any, declared: type) -> Any:
    """Set the absent fields of dataclasses to their defaults.

    msgspec does not set them on the instance, and later does not write them. The same message would have two digests.
    """
    if _has_dataclass_defaults(declared):
        _complete(value)
    return value


@cache
def _has_dataclass_defaults(declared: type) -> bool:
    walked = _walk(shapes.type_info(declared), "", set())
    return any(isinstance(shape, shapes.DataclassType) and _plain_defaults(shape.cls) for _, shape in walked)


@cache
def _plain_defaults(declared: type) -> tuple[tuple[str, Any], ...]:
    fields = dataclasses.fields(declared)
    return tuple((each.name, each.default) for each in fields if each.default is not dataclasses.MISSING)


def _complete(value: Any) -> None:
    if dataclasses.is_dataclass(value):
        attributes: dict[str, Any] | None = getattr(value, "__dict__", None)
        if attributes is not None:
            for name, default in _plain_defaults(value.__class__):
                attributes.setdefault(name, default)
        for field in dataclasses.fields(value):
            _complete(getattr(value, field.name))
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _complete(getattr(value, name))
    elif isinstance(value, dict):
        for each in value.values():
            _complete(each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            _complete(each)


def canonical(body: msgspec.Raw, declared: type) -> msgspec.Raw:
    """Encode a body again as a value of the declared type, so that equal messages have equal bytes.

    An int in a float field, and the extra fields of a subclass, do not make another message.
    """
    return msgspec.Raw(_encoder.encode(decode(body, declared)))


def digest(body: msgspec.Raw) -> str:
    """Return the SHA-256 of an encoded message, in hex."""
    return hashlib.sha256(body).hexdigest()


def joined(types: Sequence[str], bodies: Sequence[msgspec.Raw]) -> msgspec.Raw:
    """Join several bodies and the names of their types into one text, for a digest of all of them."""
    return msgspec.Raw(_encoder.encode([*zip(types, bodies, strict=True)]))


def is_record(declared: Any) -> bool:
    return isinstance(declared, type) and (dataclasses.is_dataclass(declared) or issubclass(declared, msgspec.Struct))


def check_record(role: str, declared: Any) -> type:
    """Check at its declaration that values of a type can be encoded and decoded.

    Raises ``DeclarationError``, whose text begins with ``role``.
    """
    if not is_record(declared):
        raise DeclarationError(
            f"{role} is {_name(declared)}, which is not a dataclass or a msgspec.Struct. "
            f"Make it one: put @dataclass above its class, or wrap the value in a class of its own."
        )
    try:
        shape = shapes.type_info(declared)
    except (NameError, TypeError) as error:
        raise DeclarationError(
            f"{role} is {declared.__qualname__}, whose fields cannot be read: {error}. "
            "Define the types its annotations name at the top level of a module, before it."
        ) from error
    for path, each in _walk(shape, declared.__qualname__, set()):
        if isinstance(each, shapes.CustomType):
            raise DeclarationError(
                f"{role} is {declared.__qualname__}, and {path} is a {_name(each.cls)}, which cannot be written as "
                "JSON and read back. Use str, int, float, bool, Decimal, datetime, UUID, bytes, Enum, list, dict, "
                "dataclasses or structs."
            )
        if isinstance(each, shapes.DictType) and not _can_be_key(each.key_type):
            raise DeclarationError(
                f"{role} is {declared.__qualname__}, and the keys of {path} cannot be written as JSON, whose keys are "
                "texts. Use str, int, an Enum, a date, or a UUID, or a list of pairs."
            )
    try:
        msgspec.json.Decoder(declared)
    except TypeError as error:
        raise DeclarationError(f"{role} is {declared.__qualname__}, which cannot be decoded: {error}") from error
    return declared  # type: ignore[no-any-return]  # is_record has checked that it is a type


def check_state(role: str, declared: Any) -> type:
    """Check a state type: also, it must need no arguments, because the first stage of a flow gets an empty state.

    Raises ``DeclarationError``.
    """
    checked = check_record(role, declared)
    try:
        encode(checked(), checked)
    except Exception as error:
        raise DeclarationError(
            f"{role} is {checked.__qualname__}, and {checked.__qualname__}() raises {type(error).__name__}: {error}. "
            "Give every field of a state a default of its own type: a flow begins with an empty one."
        ) from error
    return checked


def absent_as_default(declared: type) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that replaces the empty cells of a row, for formats without absent values (CSV).

    An empty cell becomes the field's default; without a default None, if the field allows it, or else an empty text.
    """
    fields = _fields(shapes.type_info(declared))
    droppable = {field.encode_name for field in fields if not field.required}
    nullable = {field.encode_name for field in fields if field.required and _allows_none(field.type)}

    def apply(row: dict[str, Any]) -> dict[str, Any]:
        return {
            name: (None if name in nullable else "") if value in EMPTY else value
            for name, value in row.items()
            if not (value in EMPTY and name in droppable)
        }

    return apply


def field_names(declared: type) -> tuple[list[str], list[str]]:
    """Return the names that a row must have, and those that it may have."""
    fields = _fields(shapes.type_info(declared))
    return [f.encode_name for f in fields if f.required], [f.encode_name for f in fields if not f.required]


def _fields(shape: shapes.Type) -> tuple[shapes.Field, ...]:
    assert isinstance(shape, (shapes.DataclassType, shapes.StructType))
    return shape.fields


def _allows_none(shape: shapes.Type) -> bool:
    return isinstance(shape, shapes.NoneType) or (
        isinstance(shape, shapes.UnionType) and any(_allows_none(each) for each in shape.types)
    )


def _has_float(shape: shapes.Type) -> bool:
    return isinstance(shape, shapes.FloatType) or (
        isinstance(shape, shapes.UnionType) and any(_has_float(each) for each in shape.types)
    )


def _can_be_key(shape: shapes.Type) -> bool:
    if isinstance(shape, shapes.UnionType):
        return all(_can_be_key(each) for each in shape.types)
    return isinstance(shape, KEYS)


KEYS = (
    shapes.AnyType,
    shapes.StrType,
    shapes.BytesType,
    shapes.IntType,
    shapes.FloatType,
    shapes.EnumType,
    shapes.LiteralType,
    shapes.DateType,
    shapes.TimeType,
    shapes.DateTimeType,
    shapes.TimeDeltaType,
    shapes.UUIDType,
    shapes.DecimalType,
)


def _name(declared: Any) -> str:
    return str(getattr(declared, "__qualname__", repr(declared)))


def _walk(shape: shapes.Type, path: str, seen: set[type]) -> Iterator[tuple[str, shapes.Type]]:
    """Yield a type and all types in it, each with its path. A recursive type is entered once."""
    yield path, shape
    match shape:
        case shapes.DataclassType() | shapes.StructType() | shapes.TypedDictType() | shapes.NamedTupleType():
            if shape.cls not in seen:
                seen.add(shape.cls)
                for field in shape.fields:
                    yield from _walk(field.type, f"{path}.{field.name}", seen)
        case shapes.UnionType(types):
            for each in types:
                yield from _walk(each, path, seen)
        case shapes.DictType(key_type, value_type):
            yield from _walk(key_type, f"{path}[key]", seen)
            yield from _walk(value_type, f"{path}[…]", seen)
        case shapes.TupleType(item_types):
            for each in item_types:
                yield from _walk(each, f"{path}[…]", seen)
        case shapes.CollectionType(item_type):
            yield from _walk(item_type, f"{path}[…]", seen)
