"""Measure a worker thread on SQLite beside the purge of its process, against the worker alone.

The file holds millions of old ids and lines of the journal, more than the purge removes meanwhile. Runs with a purge
and without one alternate.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.engine import drain
from benchmarks.job import TABLE, make_app, start
from benchmarks.machine import watched
from benchmarks.result import Ratio
from benchmarks.sqlite_stage import check
from stagepost import App
from stagepost.app.app import engine_of
from stagepost.flow.clock import HOUR
from stagepost.runtime.purge_service import PurgeService
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.contract.givens import NOW, committed
from stagepost.transaction.retention import Rules

# Of ids, and of lines of the journal. The file takes 3 GB.
ROWS = 5_000_000
ITEMS = 10_000
ROUNDS = 3
GOAL = 0.8
RULES = Rules({"@initiations": 24, "@journal": 24})
HOURS = 60
# The lines that a worker writes for each item: both stages receive and commit it, and the first one sends it.
LINES = 5

FILL_IDS = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :rows)
    INSERT INTO stagepost_accepted (scope, key, digest, accepted_at, flow_id, hour)
    SELECT 'bench.old', printf('m%031d', n), printf('%064d', n), n, printf('f%031d', n), 0 FROM numbers
"""
FILL_LINES = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :rows)
    INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at)
    SELECT 'committed', n, 'worker@here:1', 'bench.old', printf('m%031d', n), printf('f%031d', n), 1, n FROM numbers
"""
COUNT = "SELECT (SELECT count(*) FROM stagepost_accepted) + (SELECT count(*) FROM stagepost_journal)"


def measure(rows: int = ROWS) -> Ratio:
    with TemporaryDirectory(prefix="stagepost-bench-") as folder:
        path = Path(folder) / "store.db"
        _prepare(path, rows)
        beside: list[float] = []
        alone: list[float] = []
        purged = 0
        with watched() as quiet:
            for number in range(ROUNDS):
                _begin(path, f"alone-{number}")
                alone.append(drain(make_app(path)))
                check(path, ITEMS)
                _begin(path, f"beside-{number}")
                remaining = _count(path)
                app = make_app(path)
                with _purging(app):
                    beside.append(drain(app))
                purged += remaining - _count(path) + LINES * ITEMS
                check(path, ITEMS)
        messages = 2 * ITEMS
        return Ratio(
            name=f"SQLite, one worker thread beside a purge of {2 * rows:,} old rows",
            unit="messages/s",
            ours=[messages / seconds for seconds in beside],
            limit=[messages / seconds for seconds in alone],
            limit_name="the worker alone",
            goal=GOAL,
            others=quiet.others,
            note=f"{purged / sum(beside):,.0f} rows/s purged meanwhile",
        )


def _prepare(path: Path, rows: int) -> None:
    with closing(SqliteStore(path).session()) as session, closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(TABLE)
        for fill in (FILL_IDS, FILL_LINES):
            connection.execute(fill, {"rows": rows})
            connection.commit()
        with committed(session):
            for hour in range(HOURS):
                session.retention.count_hour(NOW + hour * HOUR)


def _begin(path: Path, name: str) -> None:
    """Start the flows of a run, and forget the hour in which an earlier purge ran."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM entry")
        connection.execute("DELETE FROM stagepost_housekeeping WHERE number > :hours", {"hours": HOURS})
        connection.commit()
    start(make_app(path), ITEMS, name)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _purging(app: App) -> Iterator[None]:
    service = PurgeService(engine_of(app), RULES)
    service.start()
    yield
    service.stop()
    service.join()
    if service.error is not None:
        raise service.error


def _count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (rows,) = connection.execute(COUNT).fetchone()
        return int(rows)
