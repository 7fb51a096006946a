"""Connections for Stagepost's own statements, and the cursor that runs them."""

from __future__ import annotations

from typing import Any, Protocol

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters
from psycopg.rows import tuple_row
from psycopg.types.array import register_all_arrays

from stagepost.store.postgres.forking import forking
from stagepost.store.postgres.statements import SQL, Statement
from stagepost.store.sql.database import Answer, Parameters, Row, SqlDatabase, SqlPart

# The driver's own adapters. An application may register others, on its connection or for all connections.
ADAPTERS = AdaptersMap(types=psycopg.adapters.types)
register_default_adapters(ADAPTERS)
register_all_arrays(ADAPTERS)


# Every session of Stagepost needs these settings, also if a role, a database or the server has others. A durable
# commit waits for this server's disk. The statements are written for READ COMMITTED. With keepalives, the server
# notices a lost client within half a minute instead of two hours, and frees its locks. It is a statement, because a
# pooler passes on no start-up parameters.
SETTINGS = Statement(
    b"SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'local' "
    b"ELSE current_setting('synchronous_commit') END, false), "
    b"set_config('default_transaction_isolation', 'read committed', false), "
    b"set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false), "
    b"set_config('tcp_keepalives_count', '3', false)",
    (),
)


class Cursor(psycopg.RawCursor[Row]):
    """A cursor for Stagepost's statements: it returns tuples of the driver's own types on every connection."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


def opened(parameters: dict[str, Any]) -> psycopg.Connection[Row]:
    """Open a connection in autocommit mode, which no handler gets. Raises ``psycopg.Error``."""
    connection = psycopg.connect(**parameters, autocommit=True, context=ADAPTERS)
    forking.opened(connection)
    return connection


def connected(parameters: dict[str, Any]) -> psycopg.Connection[Row]:
    """Open a connection with the settings of Stagepost's sessions. Raises ``psycopg.Error``."""
    connection = opened(parameters)
    Cursor(connection).execute(SETTINGS.text)
    return connection


class Wire(SqlDatabase, Protocol):
    """A connection of ours, or the caller's: it also runs statements that no file has."""

    def run(self, statement: str | Statement, parameters: Parameters = ()) -> Answer: ...

    def later(self, statement: str | Statement, parameters: Parameters = ()) -> None:
        self.run(statement, parameters)


class WirePart(SqlPart):
    """A part of a session that also runs statements that no file has."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._wire = wire


def found(statement: str | Statement) -> Statement:
    return SQL[statement] if isinstance(statement, str) else statement
