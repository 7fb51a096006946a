"""A driver that runs the jobs that read a store. It holds each job at its steps, where a test kills the executors.

    python -m tests.pipeline.held_jobs MASTER FOLDER UNTIL SENDER RECEIVER ROWS

``STAGEPOST_DATABASE`` is the store of ``audit``, up to ``UNTIL``, and of the stream. It is reconciled with the file
``ROWS``. ``SENDER`` and ``RECEIVER`` are reconciled, and the first one is archived. A step is held until the gate of
its name in ``FOLDER`` is open. The answers of the jobs are printed as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stagepost.flow.clock import SystemClock
from stagepost.pipeline.jobs import archive as archive_job
from stagepost.pipeline.jobs import audit_search
from stagepost.pipeline.jobs.audit import AuditTerms, audit
from stagepost.pipeline.jobs.keyed_rows import RowFiles
from stagepost.pipeline.jobs.reconcile import Service, reconcile
from stagepost.pipeline.jobs.reconcile_rows import reconcile_rows
from stagepost.pipeline.session import slots, spark_session
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.pipeline.stores import read_table
from stagepost.ports.journal import Position
from stagepost.runtime.access import Access
from stagepost.runtime.databases import open_store
from tests.faults.handler_faults import wait_at

# In their order. Tasks are held when they have read some lines, and the other jobs when they hold what they have read.
STEPS = ("audit-places", "audit-head", "stream-task", "reconcile-ids", "rows-groups", "rows-flows", "archive-task")
# The steps of a reconciliation with rows at which it is held, as they are described.
ROWS_STEPS = {
    "comparing buckets of flows": "rows-groups",
    "comparing flows in buckets that differ": "rows-flows",
}


def hold(gate: str) -> None:
    """Wait while the gate is shut."""
    Path(f"{gate}.entered").touch()
    wait_at(gate)


def held(frame: DataFrame, gate: str) -> DataFrame:
    """Hold each task of the frame behind its first rows."""

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            hold(gate)

    return frame.mapInArrow(passing, frame.schema)


class Jobs:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def audit(self, url: str, until: str) -> dict[str, Any]:
        """Hold it before each read but the first one."""

        def read(spark: SparkSession, url: str, table: str, *arguments: Any, **options: Any) -> DataFrame:
            hold(self._gate("audit-head" if "from" in options else f"audit-{table}"))
            return read_table(spark, url, table, *arguments, **options)

        end = Position.read(until)
        assert end is not None
        with patch.object(audit_search, "read_table", read):
            terms = AuditTerms()
            return audit(self._spark, url, until=end, at=SystemClock().now(), terms=terms).as_dict()

    def stream(self, url: str) -> list[int]:
        """Follow the journal into a folder of files, in one batch. Return the ids in the files."""
        options = {"url": url, "columns": "id", "reader": "copy", "numPartitions": "2"}
        lines = self._spark.readStream.format("stagepost").options(**options).load()
        out = str(self._folder / "copy")
        writer = held(lines, self._gate("stream-task")).writeStream.format("json").option("path", out)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()
        return sorted(row.id for row in self._spark.read.schema("id bigint").json(out).collect())

    def reconcile(self, *urls: str) -> dict[str, Any]:
        """Hold it when it has compared windows."""
        services = []
        for url in urls:
            with closing(open_store(url).session()) as session:
                services.append(Service.read(url, session, SystemClock()))

        def describe(text: str) -> None:
            if text == "comparing ids in windows that differ":
                hold(self._gate("reconcile-ids"))

        return reconcile(self._spark, services, describe=describe).as_dict()

    def rows(self, url: str, file: str) -> dict[str, Any]:
        """Compare the rows with the last stage of a shop. Hold it when it has read them, and when it has digests."""
        with closing(open_store(url).session()) as session:
            service = Service.read(url, session, SystemClock())
        rows = RowFiles(
            files=[file], file_format="csv", id_columns=["flow"], flow_prefix="", amount=None, separator=","
        )

        def describe(text: str) -> None:
            if text in ROWS_STEPS:
                hold(self._gate(ROWS_STEPS[text]))

        return reconcile_rows(self._spark, service, rows, "shop.done", held=0, describe=describe).as_dict()

    def archive(self, url: str) -> list[int]:
        """Hold it in the tasks that write. Return how many lines each part has."""

        def read(*arguments: Any, **options: Any) -> DataFrame:
            return held(read_table(*arguments, **{**options, "numPartitions": 2}), self._gate("archive-task"))

        store, clock = open_store(url), SystemClock()
        with patch.object(archive_job, "read_table", read), closing(Access(store.session(), clock)) as access:
            manifests = archive_job.archive(self._spark, store, access, self._folder / "archive", clock=clock)
            return [each.rows for each in manifests]

    def _gate(self, step: str) -> str:
        return str(self._folder / step)


def main() -> None:
    master, folder, until, sender, receiver, rows = sys.argv[1:]
    url = os.environ["STAGEPOST_DATABASE"]
    with spark_session("held jobs", SparkOptions(master)) as spark:
        jobs = Jobs(spark, Path(folder))
        found = {
            "slots": slots(spark),
            "audit": jobs.audit(url, until),
            "stream": jobs.stream(url),
            "reconcile": jobs.reconcile(sender, receiver),
            "rows": jobs.rows(url, rows),
            "archive": jobs.archive(sender),
        }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
