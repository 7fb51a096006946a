"""Turn records into messages, in the tasks: an encoded message with its flow id, or the reason why there is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from stagepost.flow import codec, ids
from stagepost.flow.errors import HandlerError, InvalidId, StagepostError, Undecodable
from stagepost.flow.texts import one_line
from stagepost.pipeline.csv_records import QUOTE, cells, is_record
from stagepost.pipeline.files import FileFormat
from stagepost.pipeline.jobs.records import Numbering
from stagepost.pipeline.transforms.identity import flow_id
from stagepost.recovery.deadletter import safe_text

Absent = Callable[[dict[str, Any]], dict[str, Any]]

NO_ID = "no-id: an id column has no value"
# Of values that Python cannot hold. A key that a map has twice, or a key that is no plain value, raises the last two.
UNREADABLE = (ValueError, OverflowError, KeyError, TypeError)


class Malformed(StagepostError):
    """A record of CSV has wrong quotes, or other cells than the first line, or JSON has wrong brackets."""

    code = "malformed"


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings for reading the records in the tasks. ``names`` are the columns of CSV files."""

    file_format: FileFormat
    id_columns: Sequence[str]
    flow_prefix: str
    separator: str
    names: Sequence[str]
    numbering: Numbering


@dataclass(frozen=True, slots=True)
class UnreadableValue:
    """The placeholder of a Parquet value that Python cannot hold, such as text that is not UTF-8, or a far date."""

    reason: str


class CheckedRecord(NamedTuple):
    """A checked record.

    ``body`` and its digest are None if there is a ``reason``. ``row`` is the record as text, for correction by hand.
    """

    file: str
    record: int
    flow_id: str | None
    body: bytes | None
    digest: str | None
    reason: str | None
    row: str


class ParsedRecord(NamedTuple):
    """A parsed record: the values of the id columns, a function that makes the message, and the record as text.

    The function takes the type of the message, and the function that replaces the empty cells of a row of CSV.
    """

    ids: list[str | None]
    decode: Callable[[type, Absent], Any]
    row: str


class Checker:
    """Check records against a message type. A task has one checker."""

    def __init__(self, reading: ReadSettings, message_type: type) -> None:
        self._reading = reading
        self._type = message_type
        self._absent = codec.absent_as_default(message_type)
        self._parse = RecordParser(reading).parse

    def check(self, file: str, block: int | None, place: int, content: Any, more: Any) -> CheckedRecord | None:
        """Check one record. Return None for the first line of a CSV file.

        ``content`` is a record's bytes, or a row of Parquet. ``more`` is the reason why a record of CSV cannot be read,
        or the values of a Parquet row's id columns. For Parquet, both may be ``UnreadableValue``.
        """
        number = self._reading.numbering.number(file, block, place)
        if number == 0:
            return None
        flow = body = digest = reason = None
        row = content.decode(errors="backslashreplace") if isinstance(content, bytes) else ""
        try:
            parsed = self._parse(file, content, more)
            row = parsed.row
            flow = flow_id(self._reading.flow_prefix, parsed.ids)
            encoded = codec.encode(parsed.decode(self._type, self._absent), self._type)
            if flow is None:
                reason = NO_ID
            else:
                ids.check_id("flow_id", flow)
                body, digest = bytes(encoded), codec.digest(codec.canonical(encoded, self._type))
        except (Undecodable, InvalidId, HandlerError, Malformed) as error:
            reason = f"{error.code}: {error}"
        except Exception as error:  # noqa: BLE001 - an error of the message's own __post_init__ concerns one row
            reason = f"undecodable: {type(error).__name__}: {safe_text(error)}"
        if reason is not None:
            # A refused id may be any text, and not every store can hold every text.
            flow, reason = flow and one_line(flow), one_line(reason)
        return CheckedRecord(file, number, flow, body, digest, reason, row)


class RecordParser:
    """Parse the records of one format. ``parse`` takes a file, its record, and what ``Checker.check`` calls ``more``.

    ``parse`` raises ``Malformed`` and ``Undecodable``, and ``InvalidId`` for a value that cannot be a part of an id.
    """

    def __init__(self, reading: ReadSettings) -> None:
        self._reading = reading
        parsers: dict[FileFormat, Callable[[str, Any, Any], ParsedRecord]] = {
            "csv": self._parse_csv,
            "json": self._parse_json,
            "parquet": self._parse_parquet,
        }
        self.parse = parsers[reading.file_format]

    def _parse_csv(self, file: str, content: bytes, reason: str | None) -> ParsedRecord:
        if reason is not None:
            raise Malformed(reason)
        if QUOTE in content and not is_record(content, self._reading.separator.encode()):
            raise Malformed("its quotes are not those that were counted: the file was changed while it was read")
        try:
            record = content.decode().rstrip("\r")
        except UnicodeDecodeError as error:
            raise Undecodable(f"not UTF-8: {error}") from error
        values = cells(record, self._reading.separator)
        if len(values) != len(self._reading.names):
            raise Malformed(
                f"it has not as many cells as the first line has names: {len(values)}, not {len(self._reading.names)}"
            )
        fields: dict[str, str | None] = dict(zip(self._reading.names, values, strict=True))
        fields.update(self._reading.numbering.folders.get(file, {}))
        return ParsedRecord(
            [fields[column] for column in self._reading.id_columns],
            lambda message_type, absent: codec.convert(absent(fields), message_type),
            _as_json(fields),
        )

    def _parse_json(self, file: str, content: bytes, reason: str | None) -> ParsedRecord:
        if reason is not None:
            raise Malformed(reason)
        text = content.decode(errors="backslashreplace")
        try:
            found = _json.decode(text)
        except (ValueError, RecursionError):
            # Decoding the record later raises the reason.
            found = None
        fields = found if isinstance(found, dict) else {}
        given = self._reading.numbering.folders.get(file)
        if fields and given:
            content = _with_folders(content, fields, given)
            fields |= given
        values = [_id_value(column, fields.get(column)) for column in self._reading.id_columns]
        return ParsedRecord(values, lambda message_type, absent: codec.decode(content, message_type), text)

    def _parse_parquet(
        self, file: str, content: dict[str, Any] | UnreadableValue, values: list[str | None] | UnreadableValue
    ) -> ParsedRecord:
        for each in (content, values):
            if isinstance(each, UnreadableValue):
                raise Undecodable(f"Python cannot hold one of the row's values: {each.reason}")
        assert isinstance(content, dict)
        assert isinstance(values, list)
        return ParsedRecord(
            values, lambda message_type, absent: codec.convert(content, message_type), _as_json(content)
        )


def values_of(column: pa.Array) -> list[Any]:
    """Return the column's values, with ``UnreadableValue`` in place of those that Python cannot hold.

    Moments are in UTC, whatever the session's time zone is. Maps are dictionaries.
    """
    kind = _in_utc(column.type)
    if kind != column.type:
        column = column.cast(kind)
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    except UNREADABLE:
        return [_value_of(each) for each in column]
    return values


def _value_of(value: pa.Scalar) -> Any:
    try:
        return value.as_py(maps_as_pydicts="strict")
    except UNREADABLE as error:
        return UnreadableValue(str(error))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type with UTC in place of each other time zone.

    Spark gives moments in the session's zone. The same row would have other bytes, and so another digest, in each zone.
    """
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC") if kind.tz else kind
    if pa.types.is_struct(kind):
        return pa.struct([_field_in_utc(each) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field_in_utc(kind.key_field), _field_in_utc(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_field_in_utc(kind.value_field))
    return kind


def _field_in_utc(field: pa.Field) -> pa.Field:
    return field.with_type(_in_utc(field.type))


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. Raises ``Undecodable`` for a key that occurs twice: readers disagree on which value counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise Undecodable(f"the key {twice!r} occurs twice in one object")
    return found


# Numbers stay text, because 1.10 is not 1.1 in an id.
_json = json.JSONDecoder(object_pairs_hook=_each_key_once, parse_int=str, parse_float=str)


def _with_folders(content: bytes, fields: Mapping[str, Any], given: Mapping[str, str | None]) -> bytes:
    """Return the line with the values from its file's folder names. Raises ``Undecodable`` for a key that both have."""
    twice = next((name for name in given if name in fields), None)
    if twice is not None:
        raise Undecodable(f"the key {twice!r} is in the line and in the name of a folder")
    return msgspec.json.encode({**msgspec.json.decode(content, type=dict[str, msgspec.Raw]), **given})


def _id_value(column: str, value: Any) -> str | None:
    if isinstance(value, (dict, list)):
        raise InvalidId(f"the id column {column!r} is an object or an array; ids are made of texts and numbers")
    return json.dumps(value) if isinstance(value, bool) else value


def _as_json(fields: dict[str, Any]) -> str:
    return msgspec.json.encode(fields, enc_hook=str).decode()
