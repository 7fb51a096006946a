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
from importlib import import_module
from typing import Any

import msgspec
from msgspec import inspect as shapes

from stagepost.flow.claim import Claim
from stagepost.flow.custom_types import CustomCodec, CustomField
from stagepost.flow.envelope import Envelope
from stagepost.flow.errors import DeclarationError, HandlerError, Undecodable, WrongAddress
from stagepost.flow.texts import as_sentence

# CSV readers return either of the two for an empty cell.
EMPTY = (None, "")

# The module that has the codec of pydantic's types. The attribute tells them, without an import of pydantic.
PYDANTIC = "stagepost.integrations.pydantic"
PYDANTIC_MARK = "__pydantic_validator__"
ATTRS_MARK = "__attrs_attrs__"


def custom_codec(declared: type) -> CustomCodec | None:
    """Return the codec of a type of another library; None for a type that msgspec knows."""
    if not hasattr(declared, PYDANTIC_MARK):
        return None
    codec: CustomCodec = import_module(PYDANTIC).CODEC
    return codec


def _dump_custom(value: Any) -> Any:
    custom = custom_codec(type(value))
    if custom is None:
        raise TypeError(f"objects of type {type(value).__qualname__} cannot be written as JSON")
    return custom.dump(value, type(value))


def _load_custom(declared: type, value: Any) -> Any:
    custom = custom_codec(declared)
    assert custom is not None, "check_record has refused all other types"
    return custom.decode(msgspec.json.encode(value), declared)


_encoder = msgspec.json.Encoder(enc_hook=_dump_custom, order="sorted", decimal_format="string")

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
        data = _encoded(value, declared)
        _decoder(declared)(data)
        if _may_hide_nan(declared):
            _refuse_nan(msgspec.to_builtins(value, enc_hook=_dump_custom))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise HandlerError(
            f"a {declared.__qualname__} cannot be sent as it is: {as_sentence(error)} "
            "Give its fields values of the types they "
            "declare."
        ) from error
    return msgspec.Raw(data)


def _encoded(value: Any, declared: type) -> bytes:
    custom = custom_codec(declared)
    return _encoder.encode(value if custom is None else custom.dump(value, declared))


@cache
def _may_hide_nan(declared: type) -> bool:
    """Say whether the type allows null in place of a float: JSON writes NaN as null, so decoding would miss it."""
    return any(
        isinstance(shape, shapes.AnyType | shapes.CustomType)
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
    custom = custom_codec(declared)
    if custom is not None:
        return lambda data: custom.decode(bytes(data), declared)
    return msgspec.json.Decoder(declared, dec_hook=_load_custom).decode


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
        custom = custom_codec(declared)
        if custom is not None:
            return custom.convert(fields, declared)
        return _completed(msgspec.convert(fields, declared, strict=False, dec_hook=_load_custom), declared)
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
    # msgspec sets those of attrs itself.
    fields = dataclasses.fields(declared) if dataclasses.is_dataclass(declared) else ()
    return tuple((each.name, each.default) for each in fields if each.default is not dataclasses.MISSING)


def _complete(value: Any) -> None:
    if dataclasses.is_dataclass(value):
        attributes: dict[str, Any] | None = getattr(value, "__dict__", None)
        if attributes is not None:
            for name, default in _plain_defaults(value.__class__):
                attributes.setdefault(name, default)
        for field in dataclasses.fields(value):
            _complete(getattr(value, field.name))
    elif isinstance(value, msgspec.Struct) or hasattr(value, ATTRS_MARK):
        names = [each.name for each in getattr(value, ATTRS_MARK, ())]
        for name in names or value.__struct_fields__:
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
    return msgspec.Raw(_encoded(decode(body, declared), declared))


def digest(body: msgspec.Raw) -> str:
    """Return the SHA-256 of an encoded message, in hex."""
    return hashlib.sha256(body).hexdigest()


def joined(types: Sequence[str], bodies: Sequence[msgspec.Raw]) -> msgspec.Raw:
    """Join several bodies and the names of their types into one text, for a digest of all of them."""
    return msgspec.Raw(_encoder.encode([*zip(types, bodies, strict=True)]))


def encode_values(values: Sequence[Any]) -> bytes:
    """Encode values of any declared types. Equal sets, and equal mappings, have equal bytes."""
    return _encoder.encode(values)


def is_record(declared: Any) -> bool:
    return isinstance(declared, type) and (
        dataclasses.is_dataclass(declared)
        or issubclass(declared, msgspec.Struct)
        or hasattr(declared, ATTRS_MARK)
        or hasattr(declared, PYDANTIC_MARK)
    )


def check_record(role: str, declared: Any) -> type:
    """Check at its declaration that values of a type can be encoded and decoded.

    Raises ``DeclarationError``, whose text begins with ``role``.
    """
    if not is_record(declared):
        raise DeclarationError(
            f"{role} is {_name(declared)}, which is not a dataclass or a msgspec.Struct, and no class of attrs or "
            "pydantic. Make it one: put @dataclass above its class, or wrap the value in a class of its own."
        )
    custom = custom_codec(declared)
    if custom is not None:
        _check_custom(role, declared, declared, declared.__qualname__, custom)
        return declared  # type: ignore[no-any-return]  # is_record has checked that it is a type
    try:
        shape = shapes.type_info(declared)
    except (NameError, TypeError) as error:
        raise DeclarationError(
            f"{role} is {declared.__qualname__}, whose fields cannot be read: {as_sentence(error)} "
            "Define the types its annotations name at the top level of a module, before it."
        ) from error
    for path, each in _walk(shape, declared.__qualname__, set()):
        if isinstance(each, shapes.DataclassType):
            _check_dataclass(role, declared, path, each)
        if isinstance(each, shapes.CustomType) and (custom := custom_codec(each.cls)) is not None:
            _check_custom(role, declared, each.cls, path, custom)
        elif isinstance(each, shapes.CustomType):
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
        msgspec.json.Decoder(declared, dec_hook=_load_custom)
    except TypeError as error:
        raise DeclarationError(f"{role} is {declared.__qualname__}, which cannot be decoded: {error}") from error
    return declared  # type: ignore[no-any-return]  # is_record has checked that it is a type


def _check_custom(role: str, declared: type, inner: type, path: str, custom: CustomCodec) -> None:
    try:
        custom.check(inner)
    except TypeError as error:
        raise DeclarationError(
            f"{role} is {declared.__qualname__}, and {path} cannot be written as JSON and read back: "
            f"{as_sentence(error)}"
        ) from error


def _check_dataclass(role: str, declared: type, path: str, shape: shapes.DataclassType) -> None:
    if custom_codec(shape.cls) is not None:
        raise DeclarationError(
            f"{role} is {declared.__qualname__}, and {path} is a dataclass of pydantic, whose validators would not "
            f"run there. Make {shape.cls.__qualname__} a model, or {declared.__qualname__} a type of pydantic too."
        )
    private = [each.name for each in shape.fields if each.name.startswith("_")]
    if private and hasattr(shape.cls, ATTRS_MARK):
        raise DeclarationError(
            f"{role} is {declared.__qualname__}, and {path}.{private[0]} is private, so it would not be sent. Give it "
            "a public name."
        )


def check_state(role: str, declared: Any) -> type:
    """Check a state type: also, it must need no arguments, because the first stage of a flow gets an empty state.

    Raises ``DeclarationError``.
    """
    checked = check_record(role, declared)
    try:
        encode(checked(), checked)
    except Exception as error:
        raise DeclarationError(
            f"{role} is {checked.__qualname__}, and {checked.__qualname__}() raises {type(error).__name__}: "
            f"{as_sentence(error)} "
            "Give every field of a state a default of its own type: a flow begins with an empty one."
        ) from error
    return checked


def absent_as_default(declared: type) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that replaces the empty cells of a row, for formats without absent values (CSV).

    An empty cell becomes the field's default; without a default None, if the field allows it, or else an empty text.
    """
    fields = _fields(declared)
    droppable = {field.name for field in fields if not field.is_required}
    nullable = {field.name for field in fields if field.is_required and field.allows_none}

    def apply(row: dict[str, Any]) -> dict[str, Any]:
        return {
            name: (None if name in nullable else "") if value in EMPTY else value
            for name, value in row.items()
            if not (value in EMPTY and name in droppable)
        }

    return apply


def field_names(declared: type) -> tuple[list[str], list[str]]:
    """Return the names that a row must have, and those that it may have."""
    fields = _fields(declared)
    return [each.name for each in fields if each.is_required], [each.name for each in fields if not each.is_required]


def _fields(declared: type) -> list[CustomField]:
    custom = custom_codec(declared)
    if custom is not None:
        return custom.fields(declared)
    shape = shapes.type_info(declared)
    assert isinstance(shape, (shapes.DataclassType, shapes.StructType))
    return [CustomField(each.encode_name, each.required, _allows_none(each.type)) for each in shape.fields]


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
