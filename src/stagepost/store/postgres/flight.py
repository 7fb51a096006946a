"""Statements that go together: one round trip to the server for all of them.

What needs no answer waits (``later``) for the next statement that does (``run``). When one of them fails, those after
it do not run, and its error is raised by whichever call made the flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import psycopg
from psycopg.rows import tuple_row

from stagepost.store.postgres.statements import Statement

Parameters = Mapping[str, Any] | Sequence[Any]
Row = tuple[Any, ...]
Cursor = psycopg.RawCursor[Row]

# As many as are in a flight, and more.
CURSORS = 16


class Wire(Protocol):
    """A connection of ours, or the caller's, as those see it who write Stagepost's statements."""

    def run(self, statement: Statement, parameters: Parameters = ()) -> Cursor:
        """Raises ``StoreError``. The cursor is good until the next statement."""

    def later(self, statement: Statement, parameters: Parameters = ()) -> None:
        """At the latest with the commit."""


def only(cursor: Cursor) -> Row:
    """The row of a statement that always has one."""
    row = cursor.fetchone()
    assert row is not None
    return row


def in_order(statement: Statement, parameters: Parameters) -> Sequence[Any]:
    """By name, or in the order of the statement's names."""
    if isinstance(parameters, Mapping):
        return [parameters[name] for name in statement.names]
    return parameters


class Flight:
    """The statements that wait, and the cursors that run them: made once, and used again for each flight."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._waiting: list[tuple[bytes, Sequence[Any]]] = []
        # Made before a handler could set anything on the connection that they would take over.
        self._cursors = [self._cursor() for _ in range(CURSORS)]

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, statement: Statement, parameters: Parameters) -> None:
        self._waiting.append((statement.text, in_order(statement, parameters)))

    def forget(self) -> None:
        """What waits is not wanted any more."""
        self._waiting.clear()

    def fly(self) -> Cursor:
        """Run all that waits; returns the cursor of the last. Raises ``psycopg.Error``."""
        waiting, self._waiting = self._waiting, []
        while len(self._cursors) < len(waiting):
            self._cursors.append(self._cursor())
        last = self._cursors[len(waiting) - 1]
        if len(waiting) == 1:
            ((text, parameters),) = waiting
            last.execute(text, parameters, binary=True)
            return last
        with self._connection.pipeline():
            for cursor, (text, parameters) in zip(self._cursors, waiting, strict=False):
                cursor.execute(text, parameters, binary=True)
        return last

    def _cursor(self) -> Cursor:
        return psycopg.RawCursor(self._connection, row_factory=tuple_row)
