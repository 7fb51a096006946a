"""Start a flow for each row: ``df.write`` and ``writeStream``. Each batch starts its flows once.

Tasks stage their rows under tokens. Spark gives the driver a message of each task that counts, and the driver's one
transaction starts the flows. The driver's objects are other ones than the tasks', so all that it needs is in the
messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark import SparkFiles, TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_stagepost.options import plain_errors
from stagepost.flow.errors import StagepostError
from stagepost.pipeline.sink import SinkPlan, StagedTask, commit_batch, discard_tasks, require_shared, stage
from stagepost.pipeline.task_plan import import_shipped
from stagepost.ports.staging import BatchKey

logger = logging.getLogger(__name__)

# Spark's names of the query and of the batch of a streaming task.
QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"


class EveryRowQuarantined(StagepostError):
    """No row of a batch write could start a flow."""

    code = "every-row-quarantined"


@dataclass
class Staged(WriterCommitMessage):
    """The commit message of a task. ``is_in_stream`` tells that a streaming query runs it, also by ``foreachBatch``."""

    task: StagedTask
    is_in_stream: bool


Messages = Sequence[WriterCommitMessage | None]


class BatchSink(DataSourceArrowWriter):
    """A batch write. Its key is a run id of its own, also inside ``foreachBatch``, where a batch may have several."""

    def __init__(self, plan: SinkPlan, run_id: str) -> None:
        self._plan = plan
        self._key = BatchKey(plan.target, run_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        with _importing():
            require_shared(self._plan)
            return Staged(stage(self._plan, self._key, iterator), task.getLocalProperty(QUERY) is not None)

    def commit(self, messages: Messages) -> None:
        with _importing():
            counts = commit_batch(self._plan, _tasks(messages))
            # A query would run its batch again at each start, and never get beyond it.
            is_alone = not any(isinstance(each, Staged) and each.is_in_stream for each in messages)
            if is_alone and counts is not None and counts.rows_in and counts.quarantined == counts.rows_in:
                raise EveryRowQuarantined(
                    f"no row of {counts.rows_in} fits, so all were quarantined, and no flow was started at "
                    f"{self._plan.target}. Look at the reasons: stagepost quarantine list --run {self._key.run_id}"
                )

    def abort(self, messages: Messages) -> None:
        _discard(self._plan, messages)


class StreamSink(DataSourceStreamArrowWriter):
    """A streaming query. Its key is the query's id, which is in the checkpoint, and the number of the batch."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        query, batch = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
        assert query is not None
        assert batch is not None
        with _importing():
            require_shared(self._plan)
            return Staged(stage(self._plan, BatchKey(self._plan.target, query, int(batch)), iterator), True)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        with _importing():
            commit_batch(self._plan, _tasks(messages))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        _discard(self._plan, messages)


@contextmanager
def _importing() -> Iterator[None]:
    """Let the app be imported from the files that were shipped, and raise readable errors."""
    with plain_errors():
        import_shipped(SparkFiles.getRootDirectory())
        yield


def _tasks(messages: Messages) -> list[StagedTask]:
    return [each.task for each in messages if isinstance(each, Staged)]


def _discard(plan: SinkPlan, messages: Messages) -> None:
    try:
        import_shipped(SparkFiles.getRootDirectory())
        discard_tasks(plan, _tasks(messages))
    except StagepostError as error:
        # Spark reports the error that made it abort. A later batch sweeps these rows.
        logger.warning("staged rows could not be deleted: %s", error, extra={"event": "staged-rows-left"})
