"""Closing a range of the journal: the lines that are not kept go, in one commit.

On PostgreSQL a range is cut off, and dropped later. On SQLite the lines in between are deleted.
"""

from __future__ import annotations

from typing import Any

import psycopg

CUT = """
    LOCK TABLE stagepost_journal IN ACCESS EXCLUSIVE MODE;
    ALTER TABLE stagepost_journal DETACH PARTITION stagepost_journal_open;
    ALTER TABLE stagepost_journal_open RENAME TO {closed};
    CREATE TABLE stagepost_journal_open PARTITION OF stagepost_journal FOR VALUES FROM ({end}) TO (MAXVALUE);
    ALTER TABLE stagepost_journal ATTACH PARTITION {closed} FOR VALUES FROM ({begin}) TO ({end});
"""
DROP = """
    LOCK TABLE stagepost_journal IN ACCESS EXCLUSIVE MODE;
    ALTER TABLE stagepost_journal DETACH PARTITION stagepost_journal_kept;
    ALTER TABLE stagepost_journal DETACH PARTITION {closed};
    INSERT INTO stagepost_journal_kept SELECT * FROM {closed} WHERE {keep} ORDER BY id;
    DROP TABLE {closed};
    ALTER TABLE stagepost_journal ATTACH PARTITION stagepost_journal_kept FOR VALUES FROM (MINVALUE) TO ({end});
"""
OPEN = "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'stagepost_journal_open'"
NEXT = "SELECT nextval(pg_get_serial_sequence('stagepost_journal', 'id'))"


def cut(connection: psycopg.Connection[Any]) -> tuple[str, int, int]:
    """The open range ends with what was written, and another one begins; returns its name and its bounds."""
    with connection.transaction():
        connection.execute("LOCK TABLE stagepost_journal IN ACCESS EXCLUSIVE MODE")
        begin = int(_one(connection, OPEN).split("'")[1])
        end = int(_one(connection, NEXT))
        closed = f"stagepost_journal_{begin}"
        connection.execute(_with(CUT, closed, begin, end, "true"), prepare=False)
    return closed, begin, end


def drop(connection: psycopg.Connection[Any], closed: tuple[str, int, int], keep: str) -> None:
    """The oldest range goes, but for the lines that ``keep`` says must stay."""
    with connection.transaction():
        connection.execute(_with(DROP, *closed, keep), prepare=False)


def _with(text: str, closed: str, begin: int, end: int, keep: str) -> bytes:
    return text.format(closed=closed, begin=begin, end=end, keep=keep).encode()


def _one(connection: psycopg.Connection[Any], text: str) -> Any:
    row = connection.execute(text.encode()).fetchone()
    assert row is not None
    return row[0]
