"""Measure look-ups of a message, and of a flow's history, in journals of ten million and of a hundred thousand lines.

One line in a hundred was kept when its range was closed. Each look-up on SQLite and on PostgreSQL has another id, and
uses a prepared statement. The benchmark runs only by name: ``python -m benchmarks journal_lines``.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.postgres_stage import running_server
from benchmarks.stored_rows import new
from stagepost.store.postgres.statements import SQL as POSTGRES
from stagepost.store.postgres.wire import Cursor
from stagepost.store.sqlite.statements import SQL as SQLITE
from stagepost.store.sqlite.store import SqliteStore
from tests.store.ranges import cut, drop

ROWS = (100_000, 10_000_000)
# A tenth of all lines is in closed ranges, and a tenth of these is kept. A flow has four lines.
CLOSED_SHARE = 10
KEPT_SHARE = 10
LINES_A_FLOW = 4
ROWS_A_COMMIT = 500_000
LOOKS = 2_000
# The largest permitted ratio of the time in the large journal to the time in the small one.
GOAL = 3.0

KEEP = f"ordinal % {KEPT_SHARE} = 0"
FILL_POSTGRES = f"""
    INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, ms, ordinal)
    SELECT 'committed', n, 'worker@here:1', 'bench.first', 'm' || lpad(n::text, 31, '0'),
           'f' || lpad((n / {LINES_A_FLOW})::text, 31, '0'), 1, n, 1.5, n / {LINES_A_FLOW}
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""
FILL_SQLITE = """
    INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, ms, ordinal)
    VALUES ('committed', ?, 'worker@here:1', 'bench.first', ?, ?, 1, ?, 1.5, ?)
"""

Look = Callable[[str, tuple[str, ...]], list[Any]]


@dataclass(frozen=True, slots=True)
class LookupTimes:
    """The look-ups of one database.

    ``taken`` has the medians in microseconds, in the small and in the large journal. ``explained`` are the plans in the
    large one.
    """

    database: str
    taken: list[dict[str, float]]
    explained: list[str]

    @property
    def is_valid(self) -> bool:
        return True

    @property
    def is_reached(self) -> bool:
        few, many = self.taken
        return all(many[name] <= GOAL * few[name] for name in few)

    def lines(self) -> list[str]:
        found = [f"{self.database}, {ROWS[0]:,} and {ROWS[1]:,} lines, one in a hundred kept"]
        few, many = self.taken
        found += [f"  {name:<28} {few[name]:>6.0f} µs {many[name]:>6.0f} µs" for name in few]
        return [*found, *(f"    {line}" for line in self.explained)]


@dataclass(frozen=True, slots=True)
class BothDatabases:
    parts: list[LookupTimes]

    @property
    def is_valid(self) -> bool:
        return True

    @property
    def is_reached(self) -> bool:
        return all(each.is_reached for each in self.parts)

    def lines(self) -> list[str]:
        return [line for each in self.parts for line in each.lines()]


def measure() -> BothDatabases:
    return BothDatabases([_on_sqlite(), _on_postgres()])


def ids(rows: int, *, kept: bool) -> list[int]:
    chosen = random.Random(1)
    closed = rows // CLOSED_SHARE
    flows = closed // LINES_A_FLOW // KEPT_SHARE
    if kept:
        return [chosen.randrange(1, flows) * KEPT_SHARE * LINES_A_FLOW + 1 for _ in range(LOOKS)]
    return [chosen.randrange(closed + LINES_A_FLOW, rows - LINES_A_FLOW) for _ in range(LOOKS)]


def times(rows: int, look: Look) -> dict[str, float]:
    found: dict[str, float] = {}
    for kept in (True, False):
        where = "of a kept line" if kept else "of another"
        numbers = ids(rows, kept=kept)
        found[f"message {where}"] = _median(numbers, lambda n: look("find_flow", (name_of("m", n),)), 1)
        found[f"history {where}"] = _median(
            numbers, lambda n: look("list_history", (name_of("f", n // LINES_A_FLOW),)), LINES_A_FLOW
        )
    return found


def _median(numbers: list[int], look: Callable[[int], list[Any]], expected: int) -> float:
    taken = []
    for number in numbers:
        begin = time.perf_counter()
        rows = look(number)
        taken.append(time.perf_counter() - begin)
        assert len(rows) == expected, (number, rows)
    return statistics.median(taken) * 1e6


def name_of(kind: str, number: int) -> str:
    """Return an id. Ids in ascending order fill an index fast."""
    return f"{kind}{number:031d}"


# SQLite


def _on_sqlite() -> LookupTimes:
    found: list[dict[str, float]] = []
    explained: list[str] = []
    for rows in ROWS:
        with _file(rows) as connection:
            found.append(times(rows, partial(_look_in_file, connection)))
            explained = [
                f"{name}: {step[3]}"
                for name in ("find_flow", "list_history")
                for step in connection.execute(f"EXPLAIN QUERY PLAN {SQLITE[name].text}", ("x",))
            ]
    return LookupTimes("SQLite", found, explained)


def _look_in_file(connection: sqlite3.Connection, name: str, values: tuple[str, ...]) -> list[Any]:
    return connection.execute(SQLITE[name].text, values).fetchall()


@contextmanager
def _file(rows: int) -> Iterator[sqlite3.Connection]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        SqliteStore(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA cache_size = -500000")
            for first in range(1, rows + 1, ROWS_A_COMMIT):
                numbers = range(first, min(first + ROWS_A_COMMIT, rows + 1))
                connection.execute("BEGIN")
                connection.executemany(FILL_SQLITE, map(_row, numbers))
                connection.execute("COMMIT")
                if first == 1:
                    _close_on_sqlite(connection, rows // CLOSED_SHARE)
            yield connection


def _close_on_sqlite(connection: sqlite3.Connection, end: int) -> None:
    connection.execute(f"DELETE FROM stagepost_journal WHERE id <= {end} AND NOT {KEEP}")


def _row(n: int) -> tuple[Any, ...]:
    flow = n // LINES_A_FLOW
    return n, name_of("m", n), name_of("f", flow), n, flow


# PostgreSQL


def _on_postgres() -> LookupTimes:
    found: list[dict[str, float]] = []
    explained: list[str] = []
    with running_server("2GB") as (server, _):
        for rows in ROWS:
            with psycopg.connect(new(server, f"lines_{rows}"), autocommit=True) as connection:
                _fill(connection, rows)
                found.append(times(rows, partial(_look, Cursor(connection))))
                explained = [line for name in ("find_flow", "list_history") for line in _explain(connection, name)]
    return LookupTimes("PostgreSQL", found, explained)


def _look(cursor: Cursor, name: str, values: tuple[str, ...]) -> list[Any]:
    return cursor.execute(POSTGRES[name].text, values, prepare=True).fetchall()


def _fill(connection: psycopg.Connection[Any], rows: int) -> None:
    connection.execute("SET synchronous_commit TO off")
    closed = rows // CLOSED_SHARE
    _write(connection, 1, closed)
    drop(connection, cut(connection), KEEP)
    _write(connection, closed + 1, rows)
    connection.execute("VACUUM ANALYZE")
    connection.execute("CHECKPOINT")


def _write(connection: psycopg.Connection[Any], first: int, last: int) -> None:
    for begin in range(first, last + 1, ROWS_A_COMMIT):
        connection.execute(FILL_POSTGRES, {"first": begin, "last": min(begin + ROWS_A_COMMIT - 1, last)})


def _explain(connection: psycopg.Connection[Any], name: str) -> Iterator[str]:
    value = name_of("m", 5_000_000) if name == "find_flow" else name_of("f", 1_250_000)
    text = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, COSTS OFF) " + POSTGRES[name].text
    for (line,) in Cursor(connection).execute(text, (value,)):
        yield f"{name}: {line}"
