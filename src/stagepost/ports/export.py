"""Capability: the export, which reads whole tables for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from stagepost.ports.journal import WHOLE, Bounds, Position, Span

# ``moment`` is a number of microseconds since 1970 in UTC. ``envelope`` is bytes, which need not be text.
Kind = Literal["text", "integer", "long", "double", "moment", "envelope"]
Operator = Literal["=", "<", "<=", ">", ">=", "in", "is null", "is not null"]

# The tables that can be read, and the kinds of their columns.
TABLES: Mapping[str, Mapping[str, Kind]] = {
    "journal": {
        "id": "long",
        "waypoint": "text",
        "at": "moment",
        "node": "text",
        "stage": "text",
        "message_id": "text",
        "flow_id": "text",
        "attempt": "integer",
        "origin_at": "moment",
        "cause_id": "text",
        "kind": "text",
        "ordinal": "integer",
        "ms": "double",
        "bytes": "long",
        "detail": "text",
    },
    "queue": {
        "place": "text",
        "id": "long",
        "stage": "text",
        "message_id": "text",
        "flow_id": "text",
        "failures": "integer",
        "deaths": "integer",
        "deliveries": "integer",
        "owner": "text",
        "origin_at": "moment",
        "due_at": "moment",
        "envelope": "envelope",
    },
    "dead_letters": {
        "id": "long",
        "message_id": "text",
        "flow_id": "text",
        "stage": "text",
        "reason": "text",
        "causes": "text",
        "stack": "text",
        "fingerprint": "text",
        "failures": "integer",
        "deaths": "integer",
        "deliveries": "integer",
        "origin_at": "moment",
        "dead_at": "moment",
        "node": "text",
        "declared_at": "text",
        "envelope": "envelope",
    },
    # Every table that a message of the queue can be in, without its envelope.
    "places": {
        "place": "text",
        "stage": "text",
        "message_id": "text",
        "due_at": "moment",
    },
    "outbox": {
        "id": "long",
        "stage": "text",
        "message_id": "text",
        "run_id": "text",
        "topic": "text",
        "attempts": "integer",
        "next_at": "moment",
        "due_at": "moment",
        "held_at": "moment",
        "node": "text",
        "envelope": "envelope",
    },
    "quarantine": {
        "run_id": "text",
        "file": "text",
        "record": "long",
        "reason": "text",
        "flow_id": "text",
        "row": "text",
    },
}


class Condition(NamedTuple):
    """A condition on one column.

    ``value``  a text, a number, or microseconds of a moment; several for ``in``; None for the null tests. A condition
    on an ``envelope`` can only be a null test.
    """

    column: str
    operator: Operator
    value: Any = None


@dataclass(frozen=True, slots=True)
class TableQuery:
    """A reading of ``columns`` of a table of ``TABLES``, in this order.

    ``conditions``  rows that fail one of them may be left out. All rows that meet all of them are read
    ``span``        limits the journal
    """

    table: str
    columns: Sequence[str]
    conditions: Sequence[Condition] = ()
    span: Span = WHOLE


class Sample(NamedTuple):
    """The ids of the journal near ``point``: the last one before it, and the first and the 64th one from it on.

    None stands for an id that does not exist.
    """

    point: int
    before: int | None
    first: int | None
    later: int | None


class DiskUsage(NamedTuple):
    """The bytes that a store takes, and the free bytes of its disk.

    ``free``  None where the store cannot tell it, for the reason ``why``
    """

    used: int
    free: int | None
    why: str = ""


class Export(Protocol):
    """A value that Spark pickles for its tasks. It holds no connection, and its ``repr`` no password.

    Its methods raise ``StoreError``.
    """

    def journal_bounds(self, span: Span) -> Bounds:
        """Return the bounds of the journal within the span, as a snapshot of now sees it."""

    def sample_journal(self, points: Sequence[int]) -> list[Sample]:
        """Return the ids of the journal near each of the points."""

    def cut_journal(self, span: Span, lines: int) -> Position:
        """Return the last position up to which the span has at most so many lines; a later one if the first transaction
        has more. Both ends of the span are given."""

    def purged_until(self) -> Position | None:
        """Return the purge mark: lines before it may be gone. None where no line was ever purged."""

    def letters_removed(self) -> int | None:
        """Return the latest death of the letters that left the store because of their age, by a purge or to an archive.

        None where none did.
        """

    def disk_usage(self) -> DiskUsage:
        """Return the room that the store takes, and that is left for it."""

    def read(self, query: TableQuery, bounds: Bounds | None) -> Iterator[Sequence[Any]]:
        """Yield batches of rows, all of one moment; ``bounds`` limit the journal, every other table is read whole.

        A batch is a sequence of columns. A column is a sequence of values, or an array with the Arrow PyCapsule
        interface. Texts may come as bytes; an array of texts is UTF-8.
        """
