"""Bringing a database's tables to this version: numbered steps, forward only, all in one transaction."""

from __future__ import annotations

import uuid
from importlib import resources
from typing import Any

import psycopg

from stagepost.flow.errors import SchemaMismatch
from stagepost.flow.schema import version_in
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.wire import Cursor, only

META_EXISTS = "SELECT to_regclass('stagepost_meta') IS NOT NULL"
READ_META = "SELECT value FROM stagepost_meta WHERE key = %s"
READ_NUMBER = "SELECT oid FROM pg_database WHERE datname = current_database()"
WRITE_META = (
    "INSERT INTO stagepost_meta (key, value) VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)
# Two that migrate at the same time: one of them finds it done. The number is ours by chance.
LOCK = "SELECT pg_advisory_xact_lock(7301472816)"
# Of those that write to it at this moment. Later writers wait.
WAIT_FOR_WRITERS = b"SET LOCAL lock_timeout TO '30s'; LOCK TABLE stagepost_journal IN SHARE ROW EXCLUSIVE MODE"
LAST_WAYPOINT = "SELECT coalesce(max(id), 0) FROM stagepost_journal"

Connection = psycopg.Connection[tuple[Any, ...]]


def migrations() -> list[tuple[int, str]]:
    folder = resources.files("stagepost.store.postgres.migrations")
    numbered = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    texts = [(int(name[:4]), folder.joinpath(name).read_text(encoding="utf-8")) for name in numbered]
    assert [number for number, _ in texts] == list(range(1, len(texts) + 1)), "migrations are numbered 1, 2, 3, …"
    return texts


def newest() -> int:
    return len(migrations())


def version_of(connection: Connection) -> int:
    """0 for a database without our tables."""
    if not _value(connection, META_EXISTS):
        return 0
    return version_in(connection.execute(READ_META.encode(), ("version",)).fetchone())


def uuid_of(connection: Connection) -> str:
    return str(_value(connection, READ_META, "uuid"))


def number_of(connection: Connection) -> int:
    """The database's on its server: a copy has another one."""
    return int(_value(connection, READ_NUMBER))


def epoch_of(connection: psycopg.Connection[Any]) -> str:
    """Changes when the database is restored, or its server promoted: see ``find_epoch.sql``."""
    return str(only(Cursor(connection).execute(SQL["find_epoch"].text))[1])


def settle_lineage(connection: Connection) -> None:
    """Note how much of the journal came with a dump, where the tables have come here with one since the last time: its
    rows have the numbers of another server's transactions."""
    lineage, _, known = only(Cursor(connection).execute(SQL["find_epoch"].text))
    if lineage == known:
        return
    with connection.transaction():
        connection.execute(LOCK)
        _, _, known = only(Cursor(connection).execute(SQL["find_epoch"].text))
        if lineage != known:
            connection.execute(WAIT_FOR_WRITERS, prepare=False)
            restored = 0 if known is None else _value(connection, LAST_WAYPOINT)
            connection.execute(WRITE_META, ("lineage", lineage))
            connection.execute(WRITE_META, ("restored", str(restored)))


def migrate(connection: Connection, place: str) -> list[int]:
    """Apply what is missing; returns the numbers applied."""
    with connection.transaction():
        connection.execute(LOCK)
        version = version_of(connection)
        check_not_newer(version, place)
        missing = [(number, text) for number, text in migrations() if number > version]
        for number, text in missing:
            # Several statements in one text, which only the simple protocol takes.
            connection.execute(text.encode(), prepare=False)
            if number == 1:
                connection.execute(WRITE_META, ("uuid", str(uuid.uuid4())))
            connection.execute(WRITE_META, ("version", str(number)))
        return [number for number, _ in missing]


def check_not_newer(version: int, place: str) -> None:
    if version > newest():
        raise SchemaMismatch(
            f"{place} has tables of version {version}, and this Stagepost knows them up to {newest()}. Upgrade "
            "stagepost."
        )


def _value(connection: Connection, statement: str, *parameters: str) -> Any:
    row = connection.execute(statement.encode(), parameters).fetchone()
    assert row is not None
    return row[0]
