"""The progress of a real streaming query."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stagepost.cli.job_progress import stream_texts
from tests.waiting import wait_until

BATCH = re.compile(r"ticks: batch [1-9]\d*, .*rows/s")


@pytest.mark.more
def test_spark_reports_each_batch_of_a_query_until_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    with stream_texts(spark) as text:
        assert text() == ""
        query = (
            rows.writeStream.queryName("ticks").format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
        )
        # One batch follows the other, and any of them may be seen.
        wait_until(lambda: BATCH.match(text()), "a batch is reported")
        query.stop()
        wait_until(lambda: text() == "", "the query has ended")
