"""What Stagepost's statements are given to, and answered by: a connection of ours, or the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters
from psycopg.rows import tuple_row
from psycopg.types.array import register_all_arrays

from stagepost.store.postgres.forking import forking
from stagepost.store.postgres.statements import Statement, for_rows

Parameters = dict[str, Any] | Sequence[Any]
Row = tuple[Any, ...]

# Of a statement that inserts: pgbench, which measures them, takes 255 parameters.
ROWS_A_STATEMENT = 16

# The driver's own adapters. An application may register others, on its connection or for all connections.
ADAPTERS = AdaptersMap(types=psycopg.adapters.types)
register_default_adapters(ADAPTERS)
register_all_arrays(ADAPTERS)


# What a session of ours needs, whatever role, database and server are set to. A durable commit waits for this disk.
# READ COMMITTED is what the statements are written for. The server notices within half a minute, not two hours, that a
# client is gone without a word, and its locks with it. A pooler passes a statement on, and start-up parameters not.
SETTINGS = Statement(
    b"SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'local' "
    b"ELSE current_setting('synchronous_commit') END, false), "
    b"set_config('default_transaction_isolation', 'read committed', false), "
    b"set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false), "
    b"set_config('tcp_keepalives_count', '3', false)",
    (),
)


class Cursor(psycopg.RawCursor[Row]):
    """A cursor for Stagepost's statements: it gives tuples of the driver's own types on every connection."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


def opened(parameters: dict[str, Any]) -> psycopg.Connection[Row]:
    """A connection that no handler ever sees, in autocommit mode. Raises ``psycopg.Error``."""
    connection = psycopg.connect(**parameters, autocommit=True, context=ADAPTERS)
    forking.opened(connection)
    return connection


def connected(parameters: dict[str, Any]) -> psycopg.Connection[Row]:
    """One that is set as Stagepost's sessions are. Raises ``psycopg.Error``."""
    connection = opened(parameters)
    Cursor(connection).execute(SETTINGS.text)
    return connection


class Answer(Protocol):
    """What a statement was answered with: ours, or a cursor of psycopg's."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Wire(Protocol):
    """A connection of ours, or the caller's, as those see it who write Stagepost's statements."""

    def run(self, statement: Statement, parameters: Parameters = ()) -> Answer:
        """Raises ``StoreError``. The answer is good until the next statement."""

    def later(self, statement: Statement, parameters: Parameters = ()) -> None:
        """At the latest with the commit."""


def only(answer: Answer) -> Row:
    """The row of a statement that always has one."""
    row: Row | None = answer.fetchone()
    assert row is not None
    return row


def in_order(statement: Statement, parameters: Parameters) -> Sequence[Any]:
    """By name, or in the order of the statement's names."""
    if isinstance(parameters, dict):
        return [parameters[name] for name in statement.names]
    return parameters


def insert(wire: Wire, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
    """Any number of rows, in few statements, at the latest with the commit."""
    for begin in range(0, len(rows), ROWS_A_STATEMENT):
        some = rows[begin : begin + ROWS_A_STATEMENT]
        wire.later(for_rows(statement, len(some)), list(chain.from_iterable(some)))
