"""Bulk initiation: start one flow for each row of a file, once, however often the job is run, retried or killed.

One Spark plan has three steps. First, tasks check the rows against the message's type and make their ids. Then Spark
brings the rows of one id into one task, ordered by file and record, so that the first wins. Last, tasks write the rows
in chunks, each in one transaction with its counts. A retried task finds its chunks, and a repeated job finds its ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from stagepost.flow import codec
from stagepost.flow.envelope import Message
from stagepost.flow.errors import DeclarationError, StagepostError
from stagepost.flow.ids import node_name
from stagepost.flow.initiation import Acceptance, Verdict, acceptance_of_encoded, check_reply
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error
from stagepost.pipeline.files import FileFormat, chosen_separator, listed, local_names, unique_files
from stagepost.pipeline.jobs.checking import Checker, ReadSettings, values_of
from stagepost.pipeline.jobs.records import ROW, read_records, record_batch
from stagepost.pipeline.session import require_one_host
from stagepost.pipeline.task_plan import TaskPlan
from stagepost.pipeline.transforms.identity import message_id
from stagepost.ports.runs import Quarantined, RunCounts
from stagepost.transaction.enqueueing import judge_acceptances
from stagepost.transaction.queue_commit import committing

CHUNK = 500
# How many of the 64 hex digits of a digest an error shows.
DIGEST_SHOWN = 16
# A float is not among them: the value 29401 may be 29401.0 in another file, and would start a second flow.
ID_TYPES = (StringType, IntegralType, DecimalType, DateType, TimestampType, TimestampNTZType)
IDS = "_stagepost_ids"
CHECKED = pa.schema(
    [
        ("file", pa.string()),
        ("record", pa.int64()),
        ("flow_id", pa.string()),
        ("body", pa.binary()),
        ("digest", pa.string()),
        ("reason", pa.string()),
        ("row", pa.string()),
    ]
)
# Spark needs a schema of the writers' result, which has no rows.
WRITTEN = "task int"


class InitiationFailed(StagepostError):
    """A task failed more often than Spark allows. The next run finds the committed rows by their ids."""

    code = "initiation-failed"


@dataclass(frozen=True, slots=True)
class InitiationPlan(TaskPlan):
    """The plan of one run. Rows are sent to ``target``, and replies to ``reply_to``."""

    target: str
    reply_to: str | None
    run_id: str
    file_format: FileFormat


def check_request(
    plan: InitiationPlan, files: Sequence[str], id_columns: Sequence[str], separator: str = ","
) -> list[str]:
    """Check the request without Spark. Return the files, each once.

    Raises ``DeclarationError`` for files, columns or a target that cannot be used, and ``IllegalCall`` for replies that
    do not fit.
    """
    engine = plan.load()
    target = engine.target(plan.target)
    if plan.reply_to is not None:
        check_reply(target, engine.target(plan.reply_to))
    for column in id_columns:
        if not column:
            raise DeclarationError(f"{column!r} cannot be the name of an id column")
    found = unique_files(files)
    names = local_names(found, plan.file_format, chosen_separator(separator))
    if names is not None:
        _check_names(names, plan, target.message_type, id_columns)
    return found


def initiate(
    spark: SparkSession,
    plan: InitiationPlan,
    files: Sequence[str],
    *,
    id_columns: Sequence[str],
    flow_prefix: str,
    separator: str = ",",
    on_counted: Callable[[int], None] = lambda rows: None,
) -> RunCounts:
    """Start a flow for each row of ``files``. Return the run's counts, read from the store's own tables.

    ``on_counted`` gets the number of rows before the first is written. Raises the errors of ``check_request``, and
    ``InitiationFailed``, after which the run can be started again.
    """
    require_one_host(spark, plan.place)
    found = check_request(plan, files, id_columns, separator)
    engine = plan.load()
    separator = chosen_separator(separator)
    with read_records(spark, found, plan.file_format, separator) as records:
        if records.columns is not None:
            _check_names(records.columns, plan, engine.target(plan.target).message_type, id_columns)
        frame = records.frame
        if plan.file_format == "parquet":
            _check_types(frame, id_columns)
            frame = frame.withColumn(IDS, F.array(*(F.col(ROW)[column].cast("string") for column in id_columns)))
        on_counted(records.count)
        reading = ReadSettings(plan.file_format, id_columns, flow_prefix, separator, records.names, records.numbering)
        checked = frame.mapInArrow(partial(_check_batches, plan, reading), from_arrow_schema(CHECKED))
        keyed = checked.withColumn("key", F.when(F.col("reason").isNull(), message_id(F.col("flow_id"), plan.target)))
        # Each row without an id gets a separate key. With one key, one task would get all of these rows.
        alone = F.concat("file", F.lit(":"), F.col("record").cast("string"))
        ordered = keyed.repartition(F.coalesce("key", alone)).sortWithinPartitions("file", "record")
        with closing(engine.access().session) as session:
            runs = session.runs
            with committing(session):
                runs.begin(plan.run_id, plan.target, ", ".join(files), engine.clock.now())
            try:
                ordered.mapInArrow(partial(_write_batches, plan), WRITTEN).collect()
            except SPARK_ERRORS as error:
                raise InitiationFailed(
                    f"a task failed more often than Spark allows: {describe_error(error)}. The flows started so far "
                    "are accepted; run the same command again for the rest."
                ) from error
            with committing(session):
                runs.end(plan.run_id, records.count, engine.clock.now())
            return runs.counts(plan.run_id)


def _check_names(names: Sequence[str], plan: InitiationPlan, message_type: type, id_columns: Sequence[str]) -> None:
    """Raise ``DeclarationError`` for wrong columns once, before the first row, instead of once per row."""
    for column in id_columns:
        if column not in names:
            raise DeclarationError(f"there is no column {column!r} to make ids of; the columns are {listed(names)}")
    required, _ = codec.field_names(message_type)
    missing = [name for name in required if name not in names]
    if missing:
        raise DeclarationError(
            f"{plan.target} takes a {message_type.__qualname__}, which needs {listed(missing)}; the columns are "
            f"{listed(names)}. Name the columns after the fields."
        )


def _check_types(frame: DataFrame, id_columns: Sequence[str]) -> None:
    row = frame.schema[ROW].dataType
    assert isinstance(row, StructType)
    for column in id_columns:
        if not isinstance(row[column].dataType, ID_TYPES):
            raise DeclarationError(
                f"column {column!r} is of type {row[column].dataType.simpleString()}; ids are made of texts, whole or "
                "decimal numbers, and dates"
            )


# In the tasks


def _check_batches(
    plan: InitiationPlan, reading: ReadSettings, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    checker = Checker(reading, plan.load().target(plan.target).message_type)
    for batch in batches:
        records = zip(*map(values_of, batch.columns), strict=True)
        rows = (checker.check(*record) for record in records)
        yield record_batch([row for row in rows if row is not None], CHECKED)


def _write_batches(plan: InitiationPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    assert task is not None
    rows = (row for batch in batches for row in batch.to_pylist())
    with closing(ChunkWriter(plan, task.partitionId())) as writer:
        for number, chunk in enumerate(iter(lambda: list(islice(rows, CHUNK)), [])):
            writer.write(number, chunk)
    return iter(())


class ChunkWriter:
    """Write the chunks of one task.

    A retried task has the same rows in the same order, so a number identifies a chunk. A committed chunk is skipped.
    """

    def __init__(self, plan: InitiationPlan, task: int) -> None:
        self._plan = plan
        self._task = task
        engine = plan.load()
        self._target = engine.target(plan.target)
        self._reply_to = engine.target(plan.reply_to) if plan.reply_to else None
        self._node = node_name("spark")
        self._clock = engine.clock
        self._session = engine.access().session

    def write(self, number: int, rows: list[dict[str, Any]]) -> None:
        with committing(self._session):
            runs = self._session.runs
            if runs.has_chunk(self._plan.run_id, self._task, number):
                return
            now = self._clock.now()
            good = [row for row in rows if row["reason"] is None]
            acceptances = [self._acceptance(row, now) for row in good]
            verdicts = judge_acceptances(self._session, acceptances, now, self._node)
            refused = [_quarantined(row, row["reason"]) for row in rows if row["reason"] is not None]
            for row, verdict in zip(good, verdicts, strict=True):
                if verdict.outcome == "conflict":
                    refused.append(_quarantined(row, self._conflict(row, verdict)))
            runs.quarantine(self._plan.run_id, refused)
            started = sum(verdict.outcome == "started" for verdict in verdicts)
            counts = RunCounts(None, started, len(rows) - started - len(refused), len(refused))
            runs.add_chunk(self._plan.run_id, self._task, number, counts)

    def close(self) -> None:
        self._session.close()

    def _conflict(self, row: dict[str, Any], verdict: Verdict) -> str:
        return (
            f"id-conflict: this content has the digest {row['digest'][:DIGEST_SHOWN]}…, but {self._plan.target} "
            f"accepted the same id before with {verdict.digest[:DIGEST_SHOWN]}…"
        )

    def _acceptance(self, row: dict[str, Any], now: int) -> Acceptance:
        return acceptance_of_encoded(
            self._target,
            (Message(type=self._target.message_type.__name__, body=msgspec.Raw(row["body"])),),
            row["digest"],
            flow_id=row["flow_id"],
            message_id=row["key"],
            reply_to=self._reply_to,
            node=self._node,
            now=now,
            run_id=self._plan.run_id,
        )


def _quarantined(row: dict[str, Any], reason: str) -> Quarantined:
    return Quarantined(row["file"], row["record"], reason, row["flow_id"], row["row"])
