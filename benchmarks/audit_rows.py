"""Measure the audit in journal rows a second, against one process that only reads the same rows into Arrow.

``benchmarks.audit_growth`` measures its time and memory as the journal grows, on both stores.

The audit reads, folds, joins, and looks again. Its cost beyond reading is that of Spark. The start of the session does
not count, because it takes equally long for a thousand rows and for a billion.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.machine import watched
from benchmarks.result import Ratio
from stagepost.flow.clock import SECOND, SystemClock
from stagepost.pipeline.jobs.audit import AuditTerms, audit
from stagepost.pipeline.session import spark_session
from stagepost.ports.export import TABLES, TableQuery
from stagepost.ports.journal import Bounds, Waypoint, WaypointName
from stagepost.ports.session import Session
from stagepost.store.sqlite.export import SqliteExport
from stagepost.store.sqlite.store import SqliteStore

FLOWS = 100_000
STAGES = ("orders.place", "orders.place.paid", "stock.take", "orders.done")
ROUNDS = 3
BATCH = 10_000
# The moment of the first flow.
BEGIN = 1_700_000_000 * SECOND
MICROSECONDS_A_FLOW = 5_000


def measure() -> Ratio:
    with TemporaryDirectory(prefix="stagepost-bench-") as folder, spark_session("benchmark of the audit") as spark:
        path = Path(folder) / "journal.db"
        rows = fill(path)
        audited(spark, path, rows)
        ours: list[float] = []
        limit: list[float] = []
        with watched() as quiet:
            for _ in range(ROUNDS):
                ours.append(rows / audited(spark, path, rows))
                limit.append(rows / read(path))
    return Ratio(
        name=f"audit of {rows:,} waypoints on SQLite, local[*]",
        unit="rows/s",
        ours=ours,
        limit=limit,
        limit_name="sqlite3 rows into Arrow, one process, nothing else",
        goal=None,
        others=quiet.others,
    )


def audited(spark: SparkSession, path: Path, rows: int) -> float:
    """Return the seconds that an audit takes. It must find nothing."""
    begin = time.perf_counter()
    report = audit(spark, f"sqlite:///{path}", until=rows + 1, at=SystemClock().now(), terms=AuditTerms())
    seconds = time.perf_counter() - begin
    assert (report.waypoints, report.lost_count, report.doubled_count) == (rows, 0, 0), report
    return seconds


def read(path: Path) -> float:
    """Return the seconds that it takes to read the whole journal into Arrow."""
    begin = time.perf_counter()
    query = TableQuery("journal", list(TABLES["journal"]))
    for columns in SqliteExport(path).read(query, Bounds(0, 2**62)):
        for column in columns:
            pa.array(column)
    return time.perf_counter() - begin


def fill(path: Path) -> int:
    """Write a journal of completed flows into a new file. Return the number of its rows."""
    with closing(SqliteStore(path).session()) as session:
        return fill_session(session, FLOWS)


def fill_session(session: Session, flows: int) -> int:
    """Write a journal of completed flows, with hops of different lengths. Return the number of its rows."""
    chance = random.Random(1)
    return record(session, (line for flow in range(flows) for line in history(flow, chance)))


def record(session: Session, lines: Iterator[Waypoint]) -> int:
    """Write lines of a journal, in batches. Return their number."""
    rows = 0
    while batch := list(itertools.islice(lines, BATCH)):
        session.begin()
        session.journal.record(batch)
        session.commit()
        rows += len(batch)
    return rows


def history(flow: int, chance: random.Random) -> Iterator[Waypoint]:
    at = origin = BEGIN + flow * MICROSECONDS_A_FLOW
    cause = None
    for number, stage in enumerate(STAGES):
        message = f"{flow:08x}-{number:04x}-5000-8000-000000000000"
        message_key = (f"worker@host:{flow % 4}", stage, message, f"order:{flow}")
        first: WaypointName = "sent" if number else "accepted"
        yield Waypoint(first, at, *message_key, 0, origin, cause_id=cause, kind="next", ordinal=0, bytes=500)
        at += chance.randrange(500, 50_000)
        yield Waypoint("received", at, *message_key, 1, origin)
        at += chance.randrange(200, 5_000)
        yield Waypoint("committed", at, *message_key, 1, origin, ms=chance.random())
        cause = message
