"""Measure the rows a second of Spark's sink on PostgreSQL, against plain inserts of the same rows.

A batch write passes its rows through the database twice: tasks stage them, and one transaction starts their flows. The
limits are those of ``initiate_rows``. The session is warm.
"""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.initiate_rows import APP, ROWS, TEXT, compare_with_inserts
from benchmarks.postgres_stage import running_server
from benchmarks.result import Results
from stagepost.pipeline.session import spark_session


def measure() -> Results:
    with running_server() as (server, folder), spark_session("benchmark of the sink") as spark:
        rows = spark.range(ROWS).selectExpr("id AS n", f"'{TEXT}' AS text")
        return compare_with_inserts(
            f"PostgreSQL, {ROWS:,} rows written to Spark's sink, local[*]",
            None,
            server,
            lambda url, number: write(spark, rows, url, folder, number),
        )


def write(spark: SparkSession, rows: DataFrame, url: str, folder: Path, number: int) -> float:
    """Return the seconds that the write takes in a session that has started."""
    module = f"bench_sink_{number}"
    (folder / f"{module}.py").write_text(APP.format(url=url))
    spark.sparkContext.addPyFile(str(folder / f"{module}.py"))
    writer = rows.write.format("stagepost").mode("append")
    begin = time.perf_counter()
    writer.options(app=f"{module}:app", target="bench.first", idColumns="n", flowPrefix="item").save()
    return time.perf_counter() - begin
