"""Bringing a file's tables to this version."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from stagepost.store.sql.migrations import Migration, apply, migrations_of, version_in
from stagepost.store.sqlite.connection import BEGIN, COMMIT, ROLLBACK, GuardedConnection
from stagepost.store.sqlite.statements import SQL

# A purge can give free pages back, a few at a time. SQLite takes this only before the file has its first page.
FREEING = "PRAGMA auto_vacuum = INCREMENTAL"
META_EXISTS = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'stagepost_meta')"


def migrations() -> list[Migration]:
    return migrations_of("sqlite")


def newest() -> int:
    return len(migrations())


def version_of(cursor: sqlite3.Cursor) -> int:
    """0 for a file without our tables."""
    (exists,) = cursor.execute(META_EXISTS).fetchone()
    return version_in(cursor.execute(SQL["find_meta"].text, ("version",)).fetchone()) if exists else 0


def migrate(
    cursor: sqlite3.Cursor,
    place: str,
    wanted: Sequence[Migration] | None = None,
    meta: Mapping[str, str] = MappingProxyType({}),
) -> list[int]:
    """Apply what is missing, and put ``meta``; returns the numbers applied.

    Another process may do the same: one of the two finds it done. Others see a file without our tables or with the
    newest, and none in between.
    """

    def run(text: str) -> None:
        for statement in statements_of(text):
            cursor.execute(statement)

    def put_meta(key: str, value: str) -> None:
        cursor.execute(SQL["put_meta"].text, (key, value))

    connection = cursor.connection
    assert isinstance(connection, GuardedConnection), "one of ours"
    connection.cross(BEGIN)
    try:
        applied = apply(migrations() if wanted is None else wanted, version_of(cursor), place, run, put_meta)
        for key, value in meta.items():
            put_meta(key, value)
    except BaseException:
        connection.cross(ROLLBACK)
        raise
    connection.cross(COMMIT)
    return applied


def statements_of(script: str) -> list[str]:
    """The script's statements, one by one: ``executescript`` would commit before it begins."""
    statements: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    assert not pending.strip(), "a migration ends with a complete statement"
    return statements
