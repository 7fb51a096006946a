"""Bringing a file's tables to this version: numbered steps, forward only, all in one transaction."""

from __future__ import annotations

import sqlite3
import uuid
from importlib import resources

from stagepost.flow.errors import SchemaMismatch
from stagepost.flow.schema import version_in

META_EXISTS = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'stagepost_meta')"
READ_META = "SELECT value FROM stagepost_meta WHERE key = ?"
WRITE_META = (
    "INSERT INTO stagepost_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)


def migrations() -> list[tuple[int, str]]:
    files = resources.files("stagepost.store.sqlite.migrations").iterdir()
    numbered = sorted(file.name for file in files if file.name.endswith(".sql"))
    texts = [
        (int(name[:4]), resources.files("stagepost.store.sqlite.migrations").joinpath(name).read_text(encoding="utf-8"))
        for name in numbered
    ]
    assert [number for number, _ in texts] == list(range(1, len(texts) + 1)), "migrations are numbered 1, 2, 3, …"
    return texts


def newest() -> int:
    return len(migrations())


def version_of(cursor: sqlite3.Cursor) -> int:
    """0 for a file without our tables."""
    (exists,) = cursor.execute(META_EXISTS).fetchone()
    if not exists:
        return 0
    return version_in(cursor.execute(READ_META, ("version",)).fetchone())


def migrate(cursor: sqlite3.Cursor, place: str) -> list[int]:
    """Apply what is missing; returns the numbers applied. Another process may do the same: one of the two finds it
    done. Others see a file without our tables or with the newest, and none in between.
    """
    cursor.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(cursor)
        check_not_newer(version, place)
        missing = [(number, text) for number, text in migrations() if number > version]
        for number, text in missing:
            for statement in statements_of(text):
                cursor.execute(statement)
            if number == 1:
                cursor.execute(WRITE_META, ("uuid", str(uuid.uuid4())))
            cursor.execute(WRITE_META, ("version", str(number)))
    except BaseException:
        cursor.execute("ROLLBACK")
        raise
    cursor.execute("COMMIT")
    return [number for number, _ in missing]


def check_not_newer(version: int, place: str) -> None:
    if version > newest():
        raise SchemaMismatch(
            f"{place} has tables of version {version}, and this Stagepost knows them up to {newest()}. Upgrade "
            "stagepost."
        )


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
