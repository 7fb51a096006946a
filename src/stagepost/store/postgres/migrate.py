"""Bringing a database's tables to this version, and noting where they came from."""

from __future__ import annotations

from typing import Any

import psycopg

from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.wire import Cursor
from stagepost.store.sql.database import only
from stagepost.store.sql.migrations import Migration, apply, migrations_of, version_in

META_EXISTS = "SELECT to_regclass('stagepost_meta') IS NOT NULL"
READ_NUMBER = "SELECT oid FROM pg_database WHERE datname = current_database()"
# Two that migrate at the same time: one of them finds it done. The number is ours by chance.
LOCK = "SELECT pg_advisory_xact_lock(7301472816)"
# Of those that write to it at this moment. Later writers wait.
WAIT_FOR_WRITERS = b"SET LOCAL lock_timeout TO '30s'; LOCK TABLE stagepost_journal IN SHARE ROW EXCLUSIVE MODE"

Connection = psycopg.Connection[tuple[Any, ...]]


def migrations() -> list[Migration]:
    return migrations_of("postgres")


def newest() -> int:
    return len(migrations())


def version_of(connection: Connection) -> int:
    """0 for a database without our tables."""
    (exists,) = only(Cursor(connection).execute(META_EXISTS))
    return version_in(Cursor(connection).execute(SQL["find_meta"].text, ("version",)).fetchone()) if exists else 0


def uuid_of(connection: Connection) -> str:
    return str(_value(connection, "find_meta", "uuid"))


def number_of(connection: Connection) -> int:
    """The database's on its server: a copy has another one."""
    return int(only(Cursor(connection).execute(READ_NUMBER))[0])


def epoch_of(connection: psycopg.Connection[Any]) -> str:
    """Changes when the database is restored, or its server promoted: see ``find_epoch.sql``."""
    return str(only(Cursor(connection).execute(SQL["find_epoch"].text))[0])


def settle_lineage(connection: Connection) -> None:
    """Note how much of the journal came with a dump, where the tables have come here with one since the last time: its
    rows have the numbers of another server's transactions."""
    _, lineage, known = only(Cursor(connection).execute(SQL["find_epoch"].text))
    if lineage == known:
        return
    with connection.transaction():
        connection.execute(LOCK)
        _, _, known = only(Cursor(connection).execute(SQL["find_epoch"].text))
        if lineage != known:
            connection.execute(WAIT_FOR_WRITERS, prepare=False)
            restored = 0 if known is None else _value(connection, "last_waypoint")
            _put_meta(connection, "lineage", lineage)
            _put_meta(connection, "restored", str(restored))


def migrate(connection: Connection, place: str) -> list[int]:
    """Apply what is missing; returns the numbers applied."""

    def run(text: str) -> None:
        # Several statements in one text, which only the simple protocol takes.
        connection.execute(text.encode(), prepare=False)

    with connection.transaction():
        connection.execute(LOCK)
        return apply(migrations(), version_of(connection), place, run, lambda *row: _put_meta(connection, *row))


def _put_meta(connection: Connection, key: str, value: str) -> None:
    Cursor(connection).execute(SQL["put_meta"].text, (key, value))


def _value(connection: Connection, name: str, *parameters: str) -> Any:
    return only(Cursor(connection).execute(SQL[name].text, parameters))[0]
