"""Compare the Spark source on PostgreSQL with Spark's own JDBC source, and with ADBC in one process.

``python -m benchmarks.source ROWS`` takes another number of rows. The rows go to Spark's ``noop`` format, so nothing
else is measured. All sides read the same table of the same server, in turn.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
from adbc_driver_postgresql import dbapi
from pyspark.sql import DataFrame, SparkSession

from benchmarks.machine import watched
from benchmarks.postgres_stage import running_server
from benchmarks.result import Ratio
from pyspark_stagepost.schemas import JOURNAL
from stagepost.pipeline.session import spark_session
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.store.postgres.store import migrate_database

ROWS = 1_000_000
ROUNDS = 5
GOAL = 0.85
# The package libpostgresql-jdbc-java brings it.
JAR = Path("/usr/share/java/postgresql.jar")
THREE = ("stage", "waypoint", "bytes")
MESSAGE = "lpad(to_hex(n / 5), 8, '0') || '-0000-5000-8000-000000000000'"
FILL = f"""
    INSERT INTO stagepost_journal
        (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, cause_id, kind, ordinal, ms, bytes, detail)
    SELECT (ARRAY['sent', 'received', 'committed', 'sent', 'received'])[1 + mod(n, 5)], 1700000000000000 + n,
           'worker@host:' || mod(n, 4), 'orders.stage.' || mod(n, 7), {MESSAGE}, 'order:' || n / 20, 1,
           1700000000000000 + n / 20, {MESSAGE}, 'next', 0, mod(n, 100) / 7.0, 500,
           CASE WHEN mod(n, 3) = 0 THEN 'orders.place' END
    FROM generate_series(1, %(rows)s::bigint) AS n
"""


@dataclass(frozen=True, slots=True)
class Ratios:
    """The ratios of all columns and of three, each to JDBC and to ADBC."""

    ratios: Sequence[Ratio]

    @property
    def is_valid(self) -> bool:
        return all(each.is_valid for each in self.ratios)

    @property
    def is_reached(self) -> bool:
        return all(each.is_reached for each in self.ratios)

    def lines(self) -> list[str]:
        return [line for each in self.ratios for line in each.lines()]


def measure(rows: int = ROWS) -> Ratios:
    if not JAR.exists():
        raise SystemExit(f"{JAR} does not exist; install the package libpostgresql-jdbc-java")
    options = SparkOptions(settings={"spark.jars": str(JAR)})
    with running_server() as (server, _), spark_session("benchmark of the source", options) as spark:
        migrate_database(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(FILL, {"rows": rows})
            connection.execute("VACUUM ANALYZE stagepost_journal")
        found = [
            ratio
            for columns in (JOURNAL.fieldNames(), list(THREE))
            for ratio in _compare(spark, server.url, server.pid, rows, columns)
        ]
    return Ratios(found)


def _compare(spark: SparkSession, url: str, server: int, rows: int, columns: Sequence[str]) -> list[Ratio]:
    ours = _ours(spark, url, columns)
    jdbc = jdbc_rows(spark, url, columns, rows, ours.rdd.getNumPartitions())
    # The first run of each compiles.
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: _drop(ours),
        "jdbc": lambda: _drop(jdbc),
        "adbc": lambda: _adbc(url, columns),
    }
    for run in sides.values():
        run()
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    with watched(server) as quiet:
        for _ in range(ROUNDS):
            for name, run in sides.items():
                speeds[name].append(rows / _seconds(run))
    subject = f"source on PostgreSQL, {rows:,} rows, {len(columns)} columns"
    limits = {
        "jdbc": ("Spark's JDBC source, as many partitions", GOAL),
        "adbc": ("ADBC in one process, without Spark", None),
    }
    return [
        Ratio(
            name=subject,
            unit="rows/s",
            ours=speeds["ours"],
            limit=speeds[name],
            limit_name=limit_name,
            goal=goal,
            others=quiet.others,
        )
        for name, (limit_name, goal) in limits.items()
    ]


def _ours(spark: SparkSession, url: str, columns: Sequence[str]) -> DataFrame:
    return spark.read.format("stagepost").options(url=url, columns=",".join(columns)).load()


def jdbc_rows(spark: SparkSession, url: str, columns: Sequence[str], rows: int, parts: int) -> DataFrame:
    reader = spark.read.format("jdbc").options(
        url="jdbc:" + url.replace("postgres@", ""),
        user="postgres",
        driver="org.postgresql.Driver",
        dbtable="stagepost_journal",
        fetchsize="10000",
        partitionColumn="id",
        lowerBound="1",
        upperBound=str(rows + 1),
        numPartitions=str(parts),
    )
    return reader.load().select(*columns)


def _drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _adbc(url: str, columns: Sequence[str]) -> int:
    names = ", ".join(f'"{name}"' for name in columns)
    with closing(dbapi.connect(url)) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(f"SELECT {names} FROM stagepost_journal")
        return sum(batch.num_rows for batch in cursor.fetch_record_batch())


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


if __name__ == "__main__":
    print("\n".join(measure(*map(int, sys.argv[1:])).lines()))
