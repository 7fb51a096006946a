"""Spark's settings for the size of a job's input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from pyspark_stagepost.division import tasks_for
from stagepost.pipeline.session import SHUFFLES, slots, with_settings

# Compiling the plans for fewer rows than this takes longer than running them.
FEW_ROWS = 50_000
# A task holds at most about so many rows in a shuffle, whatever the input has.
ROWS_PER_TASK = 500_000
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
# Spark would compress what it keeps, which takes longer than reading it again from the disk.
UNCOMPRESSED = {"spark.sql.inMemoryColumnarStorage.compressed": "false"}
# Sketches of so many groups are held at a time. With more groups Spark sorts the rows.
SKETCHES = {"spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "2048"}


@contextmanager
def tuned(spark: SparkSession, rows: int) -> Iterator[int]:
    """Set the session for a job on ``rows`` rows during the block. Yield the number of tasks that should read them."""
    tasks = 1 if rows < FEW_ROWS else tasks_for(rows, slots(spark), ROWS_PER_TASK)
    settings = {SHUFFLES: str(tasks), **SKETCHES, **UNCOMPRESSED, **(INTERPRETED if rows < FEW_ROWS else {})}
    with with_settings(spark, settings):
        yield tasks
