"""Measure the archive of a journal on PostgreSQL in rows a second, against Spark's own copy by JDBC to Parquet.

The archive sorts the rows, reads its files back, digests them, and drops the range. The copy does none of it.
``python -m benchmarks.archive_rows ROWS`` takes another number of rows.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from benchmarks.machine import watched
from benchmarks.postgres_stage import copy, running_server
from benchmarks.result import Ratio
from benchmarks.source import FILL, JAR, jdbc_rows
from pyspark_stagepost.schemas import JOURNAL
from stagepost.flow.clock import HOUR, SystemClock
from stagepost.pipeline.jobs.archive import archive
from stagepost.pipeline.session import spark_session
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.pipeline.stores import read_table
from stagepost.runtime.access import Access
from stagepost.runtime.databases import open_store
from stagepost.store.postgres.store import migrate_database
from stagepost.testing.contract.givens import NOW, committed
from stagepost.testing.postgres import PostgresServer
from stagepost.transaction.retention import Rules

ROWS = 10_000_000
ROUNDS = 3
FILLED = "filled"
RULES = Rules({"@journal": 24})
HOURS = 60


def measure(rows: int = ROWS, rounds: int = ROUNDS) -> Ratio:
    if not JAR.exists():
        raise SystemExit(f"{JAR} does not exist; install the package libpostgresql-jdbc-java")
    options = SparkOptions(settings={"spark.jars": str(JAR)})
    with running_server() as (server, folder), spark_session("benchmark of the archive", options) as spark:
        _fill(server, rows)
        ours: list[float] = []
        limit: list[float] = []
        with watched(server.pid) as quiet:
            for number in range(rounds):
                url = copy(server, f"archived{number}", FILLED)
                limit.append(rows / _copied(spark, url, rows, folder / f"copy{number}"))
                ours.append(rows / archived(spark, url, rows, folder / f"archive{number}"))
    return Ratio(
        name=f"archive of {rows:,} lines of the journal on PostgreSQL, local[*]",
        unit="rows/s",
        ours=ours,
        limit=limit,
        limit_name="Spark's JDBC source to Parquet, unsorted, as many files",
        goal=None,
        others=quiet.others,
    )


def _fill(server: PostgresServer, rows: int) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {FILLED}")
    fill(f"{server.url.rpartition('/')[0]}/{FILLED}", rows)


def fill(url: str, rows: int) -> None:
    """Write a journal of old lines into an empty database."""
    migrate_database(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FILL, {"rows": rows})
        connection.execute("VACUUM ANALYZE stagepost_journal")
    with closing(open_store(url).session()) as session:
        for hour in range(HOURS):
            with committed(session):
                session.retention.count_hour(NOW + hour * HOUR)


def _copied(spark: SparkSession, url: str, rows: int, folder: Path) -> float:
    parts = read_table(spark, url, "journal").rdd.getNumPartitions()
    lines = jdbc_rows(spark, url, JOURNAL.fieldNames(), rows, parts)
    begin = time.perf_counter()
    lines.write.option("compression", "zstd").parquet(folder.as_uri())
    return time.perf_counter() - begin


def archived(spark: SparkSession, url: str, rows: int, folder: Path) -> float:
    """Return the seconds that the archive takes. The archive gets all rows, and the store drops them."""
    store = open_store(url)
    with closing(Access(store.session(), SystemClock())) as access:
        begin = time.perf_counter()
        (manifest,) = archive(spark, store, access, folder, clock=SystemClock(), rules=RULES)
        seconds = time.perf_counter() - begin
        assert manifest.rows == rows, manifest
        assert access.session.retention.closed_ranges() == []
    return seconds


if __name__ == "__main__":
    print("\n".join(measure(*map(int, sys.argv[1:])).lines()))
