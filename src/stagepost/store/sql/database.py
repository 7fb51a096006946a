"""The connection that the wrappers of this package run on: one of ours, or the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Parameters = dict[str, Any] | Sequence[Any]
Row = tuple[Any, ...]


class Answer(Protocol):
    """The driver's cursor, or what takes its place."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class SqlDatabase(Protocol):
    """Statements are named by their files. Parameters come by name, or in the order of the statement's names."""

    def run(self, statement: str, parameters: Parameters = ()) -> Answer:
        """Raises ``StoreError``. The answer is good until the next statement."""

    def later(self, statement: str, parameters: Parameters = ()) -> None:
        """Run it before the next statement that is answered, or with the commit at the latest."""
        self.run(statement, parameters)

    def insert(self, statement: str, rows: Sequence[Row]) -> None:
        """Insert any number of rows, at the latest with the commit."""

    def array(self, values: Sequence[Any], /) -> Any:
        """Return the values as one parameter."""

    def notify(self) -> None:
        """Wake those who wait for work in other processes, when the transaction commits."""


class SqlPart:
    """A part of a session. Its statements run on the session's connection."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._run = database.run


def only(answer: Answer) -> Row:
    """Return the row of a statement that always has one."""
    row: Row | None = answer.fetchone()
    assert row is not None
    return row


def in_order(names: Sequence[str], parameters: Parameters) -> Sequence[Any]:
    """Return the values in the order of the statement's names."""
    return [parameters[name] for name in names] if isinstance(parameters, dict) else parameters


def text_of(value: str | bytes) -> str:
    """Decode a text that SQLite's statements read as bytes, whatever text factory the connection has."""
    return value if isinstance(value, str) else value.decode()
