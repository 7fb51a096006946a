"""Measure one worker thread on SQLite, synchronous=FULL, against bare ``sqlite3`` with the same statements.

One run of the engine is recorded: its statements in order, with their parameters. A loop then runs them on a plain
connection, on a copy of the same file. The engine runs on another copy. The two alternate.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.engine import drain
from benchmarks.job import TABLE, make_app, start
from benchmarks.machine import watched
from benchmarks.result import Ratio
from stagepost.store.sqlite.connection import GuardedConnection
from stagepost.store.sqlite.statements import SQL

ITEMS = 3_000
ROUNDS = 5
GOAL = 0.8

# One call of a cursor: the method, the statement, its parameters.
CursorCall = tuple[str, str, Any]


def measure() -> Ratio:
    with TemporaryDirectory(prefix="stagepost-bench-") as folder:
        template = Path(folder) / "template.db"
        prepare(template)
        statements = record(copy_of(template, "recorded"))
        engine: list[float] = []
        bare: list[float] = []
        with watched() as quiet:
            for number in range(ROUNDS):
                engine.append(run_engine(copy_of(template, f"engine{number}")))
                bare.append(run_bare(copy_of(template, f"bare{number}"), statements))
        messages = 2 * ITEMS
        return Ratio(
            name="SQLite, one message a transaction, one worker thread, synchronous=FULL",
            unit="messages/s",
            ours=[messages / seconds for seconds in engine],
            limit=[messages / seconds for seconds in bare],
            limit_name="bare sqlite3, the same statements",
            goal=GOAL,
            others=quiet.others,
            note=f"{len(statements) / messages:.2f} statements a message",
        )


def prepare(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(TABLE)
    app = make_app(path)
    start(app, ITEMS)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def copy_of(template: Path, name: str) -> Path:
    path = template.with_name(f"{name}.db")
    shutil.copy(template, path)
    return path


def run_engine(path: Path, items: int = ITEMS, *, threads: int = 1) -> float:
    """Return the seconds that the threads of a worker process take to drain the file."""
    seconds = drain(make_app(path), threads)
    check(path, items)
    return seconds


def run_bare(path: Path, statements: Sequence[CursorCall]) -> float:
    with closing(sqlite3.connect(path, isolation_level=None, cached_statements=256)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        cursor = connection.cursor()
        execute, executemany = cursor.execute, cursor.executemany
        begin = time.perf_counter()
        for method, statement, parameters in statements:
            if method == "execute":
                execute(statement, parameters)
            elif method == "executemany":
                executemany(statement, parameters)
            else:
                cursor.fetchall()
        seconds = time.perf_counter() - begin
    check(path)
    return seconds


def record(path: Path) -> list[CursorCall]:
    """Record the statements of one run of the engine, in order."""
    calls: list[CursorCall] = []

    class RecordingCursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = (), /) -> RecordingCursor:
            calls.append(("execute", sql, parameters))
            super().execute(sql, parameters)
            return self

        def executemany(self, sql: str, parameters: Any, /) -> RecordingCursor:
            rows = [tuple(row) for row in parameters]
            calls.append(("executemany", sql, rows))
            super().executemany(sql, rows)
            return self

        def fetchall(self) -> list[Any]:
            calls.append(("fetchall", "", None))
            return super().fetchall()

    def recording(connection: sqlite3.Connection) -> sqlite3.Cursor:
        return sqlite3.Connection.cursor(connection, RecordingCursor)

    with replaced(GuardedConnection, "own_cursor", recording):
        run_engine(path)
    # The first calls open the store: they set up a connection and check its tables.
    begin = next(at for at, (_, statement, _) in enumerate(calls) if statement == SQL["has_claimable"].text)
    return calls[begin:]


@contextmanager
def replaced(holder: object, name: str, value: object) -> Iterator[None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


def check(path: Path, items: int = ITEMS) -> None:
    with closing(sqlite3.connect(path)) as connection:
        counts = connection.execute("SELECT stage, count(*), count(DISTINCT n) FROM entry GROUP BY stage").fetchall()
    assert counts == [(1, items, items), (2, items, items)], counts
