"""Bulk initiation: start one flow for each row of a file, once, however often the job is run, retried or killed.

One Spark plan has three steps. First, tasks check the rows against the message's type and make their ids. Then Spark
brings the rows of one id into one task, next to each other, by file and record, so that the first wins. Last, tasks
write the rows in chunks, each in one transaction with the task's counts. A retried task counts again, and finds the ids
of its run. A repeated job finds the ids too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
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
from stagepost.flow.target import Target
from stagepost.flow.texts import as_sentence
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error
from stagepost.pipeline.files import FileFormat, chosen_separator, columns_shown, listed, local_names, unique_files
from stagepost.pipeline.jobs.checking import CheckedRecord, Checker, ReadSettings, values_of
from stagepost.pipeline.jobs.records import ROW, in_chunks, read_records, record_batch
from stagepost.pipeline.session import job_description, require_one_host, time_zone
from stagepost.pipeline.spark_options import TIME_ZONE
from stagepost.pipeline.task_plan import TaskPlan
from stagepost.pipeline.transforms.identity import message_id, text_of_value
from stagepost.ports.runs import Quarantined, RunCounts, TaskAttempt
from stagepost.transaction.enqueueing import judge_acceptances
from stagepost.transaction.queue_commit import committing

CHUNK = 500
# How many of the 64 hex digits of a digest an error shows.
DIGEST_SHOWN = 16
# A float is not among them: the value 29401 may be 29401.0 in another file, and would start a second flow.
ID_TYPES = (StringType, IntegralType, DecimalType, DateType, TimestampType, TimestampNTZType)
UTC_NAMES = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
IDS = "_stagepost_ids"
# In the text of a type. An interval of days is no such type.
MONTHS = re.compile(r"\binterval(?: (?:year|month)|$|[,>])")
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
    """A task failed too often, or Java ended. The next run finds the committed rows by their ids."""

    code = "initiation-failed"


@dataclass(frozen=True, slots=True)
class InitiationPlan(TaskPlan):
    """The plan of one run. Rows are sent to ``target``, and replies to ``reply_to``.

    ``message_type``  the name of the rows' type, where the target takes several
    ``is_by_content``  quarantined rows have no file. Their address is a digest of their content, and their ordinal
    among equal rows.
    """

    target: str
    reply_to: str | None
    run_id: str
    file_format: FileFormat
    is_by_content: bool = False
    message_type: str | None = None


def check_request(
    plan: InitiationPlan, files: Sequence[str], id_columns: Sequence[str], separator: str = ","
) -> list[str]:
    """Check the request without Spark. Return the files, each once.

    Raises ``DeclarationError`` for files, columns or a target that cannot be used, and ``IllegalCall`` for replies that
    do not fit.
    """
    engine = plan.load()
    target = engine.target_anywhere(plan.target)
    row_type = type_of_rows(target, plan.message_type)
    if plan.reply_to is not None:
        check_reply(target, engine.target(plan.reply_to))
    for column in id_columns:
        if not column:
            raise DeclarationError(f"{column!r} cannot be the name of an id column")
    found = unique_files(files)
    names = local_names(found, plan.file_format, chosen_separator(separator))
    if names is not None:
        check_names(names, plan.target, row_type, id_columns)
    return found


def initiate(
    spark: SparkSession,
    plan: InitiationPlan,
    files: Sequence[str],
    *,
    id_columns: Sequence[str],
    flow_prefix: str,
    separator: str = ",",
    source: str | None = None,
    on_counted: Callable[[int], None] = lambda rows: None,
) -> RunCounts:
    """Start a flow for each row of ``files``. Return the run's counts, read from the store's own tables.

    A run that was begun before is continued. ``source`` describes the rows for people; None for the files' names.
    ``on_counted`` gets the number of rows before the first is written. Raises the errors of ``check_request``, and
    ``InitiationFailed``, after which the run can be started again.
    """
    require_one_host(spark, plan.place)
    found = check_request(plan, files, id_columns, separator)
    engine = plan.load()
    separator = chosen_separator(separator)
    job = f"stagepost initiate {plan.target}"
    with (
        job_description(spark, f"{job}: counting rows"),
        read_records(spark, found, plan.file_format, separator) as records,
    ):
        if records.columns is not None:
            row_type = type_of_rows(engine.target_anywhere(plan.target), plan.message_type)
            check_names(records.columns, plan.target, row_type, id_columns)
        frame = records.frame
        if plan.file_format == "parquet":
            row = frame.schema[ROW].dataType
            assert isinstance(row, StructType)
            check_types(row, id_columns, time_zone(spark))
            check_intervals(row)
            texts = (text_of_value(F.col(ROW)[column], row[column].dataType) for column in id_columns)
            frame = frame.withColumn(IDS, F.array(*texts))
        on_counted(records.count)
        reading = ReadSettings(plan.file_format, id_columns, flow_prefix, separator, records.names, records.numbering)
        checked = frame.mapInArrow(partial(_check_batches, plan, reading), from_arrow_schema(CHECKED))
        keyed = checked.withColumn("key", F.when(F.col("reason").isNull(), message_id(F.col("flow_id"), plan.target)))
        # Each row without an id gets a separate key. With one key, one task would get all of these rows.
        alone = F.concat("file", F.lit(":"), F.col("record").cast("string"))
        ordered = keyed.repartition(F.coalesce("key", alone)).sortWithinPartitions("key", "file", "record")
        with closing(engine.access().session) as session:
            runs = session.runs
            with committing(session):
                start = runs.begin(plan.run_id, plan.target, source or ", ".join(files), engine.clock.now())
            try:
                with job_description(spark, f"{job}: starting flows"):
                    ordered.mapInArrow(partial(_write_batches, plan, start), WRITTEN).collect()
            except SPARK_ERRORS as error:
                raise InitiationFailed(
                    f"Spark did not start all flows: {as_sentence(describe_error(error))} "
                    "The flows started so far are accepted; "
                    "run the same command again for the rest."
                ) from error
            with committing(session):
                runs.end(plan.run_id, start, records.count, engine.clock.now())
            return runs.counts(plan.run_id)


def type_of_rows(target: Target[Any, Any], name: str | None) -> type:
    """Return the type of the rows' messages. Raises ``DeclarationError`` if the target takes none of this name."""
    found = target.type_named(name)
    if found is None:
        problem = "the type of the rows is not named" if name is None else f"{name!r} is none of them"
        raise DeclarationError(
            f"{target.address} takes messages of the types {listed([each.__name__ for each in target.message_types])}; "
            f"{as_sentence(problem)} "
            "Name one of them by --type, by message_type= in Python, or by the sink's option messageType."
        )
    return found


def check_names(names: Sequence[str], target: str, message_type: type, id_columns: Sequence[str]) -> None:
    """Raise ``DeclarationError`` for wrong columns once, before the first row, instead of once per row."""
    for column in id_columns:
        if column not in names:
            raise DeclarationError(f"there is no column {column!r} to make ids of; {columns_shown(names)}")
    required, _ = codec.field_names(message_type)
    missing = [name for name in required if name not in names]
    if missing:
        raise DeclarationError(
            f"{target} takes messages of the type {message_type.__qualname__}, which needs {listed(missing)}; "
            f"{columns_shown(names, 'Name the columns after the fields.')}"
        )


def check_types(row: StructType, id_columns: Sequence[str], zone: str) -> None:
    """Check the types of id columns in a session of this time zone.

    Raises ``DeclarationError`` for those whose values have no text that is the same in every source and session.
    """
    for column in id_columns:
        if not isinstance(row[column].dataType, ID_TYPES):
            raise DeclarationError(
                f"column {column!r} is of type {row[column].dataType.simpleString()}; ids are made of texts, whole or "
                "decimal numbers, and dates"
            )
        if isinstance(row[column].dataType, TimestampType) and zone not in UTC_NAMES:
            raise DeclarationError(
                f"column {column!r} has timestamps, and the session has the time zone {zone}: a session of another "
                f"zone would make other ids of the same rows, and start them again. Set {TIME_ZONE}=UTC, or cast the "
                "column to a text."
            )


def check_intervals(row: StructType) -> None:
    """Raise ``DeclarationError`` for columns with intervals of months, which no Python process of Spark can read."""
    for field in row:
        text = field.dataType.simpleString()
        if MONTHS.search(text):
            raise DeclarationError(
                f"column {field.name!r} is of type {text}, which Python cannot read. Leave it out, or cast it to text."
            )


# In the tasks


def _check_batches(
    plan: InitiationPlan, reading: ReadSettings, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    checker = Checker(reading, type_of_rows(plan.load().target_anywhere(plan.target), plan.message_type))
    for batch in batches:
        records = zip(*map(values_of, batch.columns), strict=True)
        rows = [row for row in (checker.check(*record) for record in records) if row is not None]
        yield record_batch([_by_content(row) for row in rows] if plan.is_by_content else rows, CHECKED)


def _by_content(row: CheckedRecord) -> CheckedRecord:
    return row._replace(file=f"sha256:{hashlib.sha256(row.row.encode()).hexdigest()}", record=0)


def _write_batches(plan: InitiationPlan, start: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    assert task is not None
    attempt = TaskAttempt(plan.run_id, start, task.partitionId(), task.taskAttemptId())
    with closing(ChunkWriter(plan, attempt)) as writer:
        for chunk in rows_of_commits(batches):
            writer.write(chunk)
    return iter(())


def rows_of_commits(batches: Iterable[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows that each commit writes."""
    rows = (row for batch in batches for row in batch.to_pylist())
    return in_chunks(rows, lambda row: len(row["body"] or b"") + len(row["row"]), CHUNK)


class ChunkWriter:
    """Write the chunks of one attempt at a task. The rows of one key follow each other.

    An earlier attempt, or an earlier start of the run, may have started the flow of a key. Then its ``accepted`` line
    carries this run's id, and one row of the key counts as started.
    """

    def __init__(self, plan: InitiationPlan, attempt: TaskAttempt) -> None:
        self._plan = plan
        self._attempt = attempt
        self._counts = RunCounts(None, 0, 0, 0)
        # The key that was counted as started last.
        self._started = ""
        # Of rows without a file: the last one's address, and its ordinal.
        self._place = ("", 0)
        engine = plan.load()
        self._target = engine.target_anywhere(plan.target)
        self._type = type_of_rows(self._target, plan.message_type).__name__
        self._reply_to = engine.target(plan.reply_to) if plan.reply_to else None
        self._node = node_name("spark")
        self._clock = engine.clock
        self._session = engine.access().session
        self._routing = engine.routing

    def write(self, rows: list[dict[str, Any]]) -> None:
        if self._plan.is_by_content:
            self._number(rows)
        with committing(self._session):
            runs = self._session.runs
            now = self._clock.now()
            good = [row for row in rows if row["reason"] is None]
            acceptances = [self._acceptance(row, now) for row in good]
            verdicts = judge_acceptances(self._session, acceptances, now, self._node, self._routing)
            refused = [_quarantined(row, row["reason"]) for row in rows if row["reason"] is not None]
            for row, verdict in zip(good, verdicts, strict=True):
                if verdict.outcome == "conflict":
                    refused.append(_quarantined(row, self._conflict(row, verdict)))
            runs.quarantine(self._plan.run_id, refused)
            started = sum(
                self._counts_as_started(row["key"], verdict) for row, verdict in zip(good, verdicts, strict=True)
            )
            before = self._counts
            self._counts = RunCounts(
                None,
                before.started + started,
                before.repeated + len(rows) - started - len(refused),
                before.quarantined + len(refused),
            )
            runs.count(self._attempt, self._counts)

    def _number(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            file, ordinal = self._place
            self._place = row["file"], (ordinal + 1 if row["file"] == file else 1)
            row["record"] = self._place[1]

    def _counts_as_started(self, key: str, verdict: Verdict) -> bool:
        if verdict.outcome == "conflict" or verdict.run_id != self._plan.run_id or key == self._started:
            return False
        self._started = key
        return True

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
            (Message(type=self._type, body=msgspec.Raw(row["body"])),),
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
