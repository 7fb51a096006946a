"""Spark's sink below its API: tasks stage rows, and one transaction of the driver starts their flows.

Spark runs a batch again after a crash. So the driver's transaction enters the batch by its key, with the number of its
rows and a digest of them. A batch that was committed before starts nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql.types import DateType, DecimalType, IntegralType, StringType, StructType

from stagepost.flow.codec import encode_envelope
from stagepost.flow.envelope import Message
from stagepost.flow.errors import DeclarationError, StagepostError
from stagepost.flow.ids import from_key, node_name
from stagepost.flow.initiation import acceptance_of_encoded, check_reply
from stagepost.flow.target import Target
from stagepost.pipeline.files import listed, repeated_names
from stagepost.pipeline.jobs.checking import CheckedRecord, Checker, ReadSettings, UnreadableValue, values_of
from stagepost.pipeline.jobs.initiate import check_intervals, check_names, type_of_rows
from stagepost.pipeline.jobs.records import Numbering, in_chunks
from stagepost.pipeline.task_plan import TaskPlan
from stagepost.ports.registry import require
from stagepost.ports.runs import RunCounts, TaskAttempt
from stagepost.ports.session import Session
from stagepost.ports.staging import EXPIRY, BatchContent, BatchKey, StagedFlows, StagedRow
from stagepost.runtime.engine import Engine
from stagepost.transaction.queue_commit import committing

# The rows that one commit stages, at most.
CHUNK = 500
# Their texts are those of Spark's cast. A timestamp has another text in each time zone.
ID_TYPES = (StringType, IntegralType, DecimalType, DateType)
# Sums of digests are kept below this.
MODULUS = 1 << 256


class BatchDiffers(StagepostError):
    """A batch was committed before under its key, with other rows."""

    code = "batch-differs"


class StagedRowsMissing(StagepostError):
    """Staged rows of a batch are gone. Spark runs the batch again."""

    code = "staged-rows-missing"


@dataclass(frozen=True, slots=True)
class SinkPlan(TaskPlan):
    """The plan of a sink. Rows are sent to ``target``, and replies to ``reply_to``.

    ``message_type``        the name of the rows' type, where the target takes several
    ``accepts_other_rows``  a batch that was committed before may come again with other rows
    ``files``               Spark's folder of files on the driver, which tasks have too if they run in its process
    """

    target: str
    reply_to: str | None
    id_columns: tuple[str, ...]
    flow_prefix: str
    accepts_other_rows: bool
    files: str
    message_type: str | None = None

    def endpoints(self, engine: Engine) -> tuple[Target[Any, Any], Target[Any, Any] | None]:
        """Return the target and the endpoint that gets the replies. Raises ``DeclarationError``."""
        return engine.target_anywhere(self.target), engine.target(self.reply_to) if self.reply_to else None


@dataclass(frozen=True, slots=True)
class StagedTask:
    """The rows that one attempt at a task has staged, and the sum of their digests."""

    token: str
    key: BatchKey
    rows: int
    sum: int


def check_plan(plan: SinkPlan, schema: StructType) -> None:
    """Check the plan against the columns of the rows.

    Raises ``DeclarationError`` for a target, columns or a store that cannot be used, and ``IllegalCall`` for replies
    that do not fit.
    """
    engine = plan.load()
    target, reply_to = plan.endpoints(engine)
    if reply_to is not None:
        check_reply(target, reply_to)
    require(plan.place.queue or plan.place.database, "staging", "Spark's sink needs it.")
    twice = repeated_names(schema.fieldNames())
    if twice:
        raise DeclarationError(f"the rows have columns of equal name: {listed(twice)}. Rename one with an alias.")
    check_names(schema.fieldNames(), plan.target, type_of_rows(target, plan.message_type), plan.id_columns)
    check_intervals(schema)
    for column in plan.id_columns:
        if not isinstance(schema[column].dataType, ID_TYPES):
            raise DeclarationError(
                f"column {column!r} is of type {schema[column].dataType.simpleString()}; the sink makes ids of texts, "
                "whole or decimal numbers, and dates. Cast the column to a text."
            )


# In the tasks


def require_shared(plan: SinkPlan) -> None:
    """Raise ``CapabilityMissing`` if the task runs on an executor, and a store is for one machine."""
    if SparkFiles.getRootDirectory() != plan.files:
        why = "Other machines cannot use it, and Spark's tasks run on executors. Use the master local[*]."
        for url in filter(None, (plan.place.database, plan.place.queue)):
            require(url, "shared", why)


def stage(plan: SinkPlan, key: BatchKey, batches: Iterable[pa.RecordBatch]) -> StagedTask:
    """Stage the rows of one attempt at a task, in chunks. If it fails, its rows are deleted as far as possible."""
    engine = plan.load()
    token = engine.ids.mint()
    with closing(engine.access().session) as session:
        rows = RowReader(plan, engine)
        try:
            with committing(session):
                session.staging.open(token, key, engine.clock.now())
            for chunk in rows.read(batches):
                with committing(session):
                    session.staging.add(token, chunk)
        except BaseException:
            with suppress(StagepostError):
                _discard(session, [token])
            raise
    return StagedTask(token, key, rows.count, rows.sum)


class RowReader:
    """Turn the rows of a task into staged rows. ``count`` and ``sum`` grow with them."""

    def __init__(self, plan: SinkPlan, engine: Engine) -> None:
        self.count = 0
        self.sum = 0
        self._plan = plan
        self._target, self._reply_to = plan.endpoints(engine)
        self._clock = engine.clock
        self._node = node_name("spark")
        reading = ReadSettings("parquet", plan.id_columns, plan.flow_prefix, "", (), Numbering({}, {}))
        row_type = type_of_rows(self._target, plan.message_type)
        self._type = row_type.__name__
        self._checker = Checker(reading, row_type)

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[StagedRow]]:
        for batch in batches:
            for begin in range(0, batch.num_rows, CHUNK):
                part = batch.slice(begin, CHUNK)
                contents = values_of(pa.StructArray.from_arrays(part.columns, names=part.schema.names))
                yield from in_chunks(map(self._staged, contents), _size)

    def _staged(self, content: dict[str, Any] | UnreadableValue) -> StagedRow:
        ids = None if isinstance(content, UnreadableValue) else [_text(content[each]) for each in self._plan.id_columns]
        checked = self._checker.check("", None, 1, content, ids)
        assert checked is not None
        address = f"sha256:{hashlib.sha256(checked.row.encode()).hexdigest()}"
        self.count += 1
        now = self._clock.now()
        if checked.reason is not None:
            self._add_to_sum(address)
            return StagedRow(self.count, address, None, checked.flow_id, None, now, None, checked.reason, checked.row)
        return self._startable(checked, address, now)

    def _startable(self, checked: CheckedRecord, address: str, now: int) -> StagedRow:
        flow_id, body, digest = checked.flow_id, checked.body, checked.digest
        assert flow_id is not None
        assert body is not None
        assert digest is not None
        acceptance = acceptance_of_encoded(
            self._target,
            (Message(type=self._type, body=msgspec.Raw(body)),),
            digest,
            flow_id=flow_id,
            message_id=from_key(flow_id, self._target.address, 0),
            reply_to=self._reply_to,
            node=self._node,
            now=now,
        )
        envelope = encode_envelope(acceptance.outgoing.envelope)
        self._add_to_sum(f"{acceptance.key} {digest}")
        return StagedRow(self.count, address, acceptance.key, flow_id, digest, now, envelope, None, checked.row)

    def _add_to_sum(self, text: str) -> None:
        # A sum does not depend on the order, and unlike XOR it does not cancel equal rows.
        self.sum = (self.sum + int.from_bytes(hashlib.sha256(text.encode()).digest())) % MODULUS


def _size(row: StagedRow) -> int:
    return len(row.envelope or b"") + len(row.row)


def _text(value: Any) -> str | None:
    """Return the text that Spark's cast gives."""
    match value:
        case None | str():
            return value
        case Decimal():
            return format(value, "f")
        case date():
            return value.isoformat()
    return str(value)


# On the driver


def commit_batch(plan: SinkPlan, tasks: Sequence[StagedTask]) -> RunCounts | None:
    """Start the flows of a batch in one transaction. Return its counts, and None if it was committed before.

    Raises ``BatchDiffers``, ``StagedRowsMissing`` and ``StoreError``, and has changed nothing then.
    """
    if not tasks:
        return None
    (key,) = {each.key for each in tasks}
    tokens = [each.token for each in tasks]
    total = sum(each.sum for each in tasks) % MODULUS
    content = BatchContent(sum(each.rows for each in tasks), f"{total:064x}")
    engine = plan.load()
    now = engine.clock.now()
    counts = None
    with closing(engine.access().session) as session, committing(session):
        known = session.staging.enter(key, content, now)
        if known != content:
            if known is not None:
                if not plan.accepts_other_rows:
                    raise BatchDiffers(_differs(key, known, content))
                session.staging.replace(key, content, now)
            counts = session.staging.start(tokens, _flows(plan, engine, session, key, now), now)
            if counts.rows_in != content.rows:
                raise StagedRowsMissing(
                    f"{key.name} staged {content.rows} rows for {key.sink}, and {counts.rows_in} are there. They were "
                    "deleted meanwhile, because it took more than seven days or another driver committed it, or the "
                    "database lost them. Run it again, which starts no flow twice."
                )
            _count(session, key, counts, now)
        session.staging.discard(tokens)
        session.staging.sweep(key, now - EXPIRY)
    return counts


def discard_tasks(plan: SinkPlan, tasks: Sequence[StagedTask]) -> None:
    """Delete the staged rows of the tasks, and nothing else: their batch may be committed. Raises ``StoreError``."""
    if tasks:
        with closing(plan.load().access().session) as session:
            _discard(session, [each.token for each in tasks])


def _discard(session: Session, tokens: Sequence[str]) -> None:
    with committing(session):
        session.staging.discard(tokens)


def _flows(plan: SinkPlan, engine: Engine, session: Session, key: BatchKey, now: int) -> StagedFlows:
    target, reply_to = plan.endpoints(engine)
    node = node_name("spark")
    # All rows have one target, so one envelope without a message has the place and the kind of all.
    sample = acceptance_of_encoded(target, (), "", flow_id="sample", reply_to=reply_to, node=node, now=now).outgoing
    (stage,) = engine.routing.places(session, [sample])
    return StagedFlows(target.address, stage, sample.envelope.kind, node, key.run_id)


def _count(session: Session, key: BatchKey, counts: RunCounts, now: int) -> None:
    """Write the counts of the batch as those of a run with one task."""
    assert counts.rows_in is not None
    runs = session.runs
    start = runs.begin(key.run_id, key.sink, key.name, now)
    runs.count(TaskAttempt(key.run_id, start, 0, 0), counts)
    runs.end(key.run_id, start, counts.rows_in, now)


def _differs(key: BatchKey, known: BatchContent, content: BatchContent) -> str:
    return (
        f"{key.name} to {key.sink} was committed before with {known.rows} rows, and comes again with {content.rows} "
        "rows that are not the same. Either its checkpoint was restored from a copy, or two drivers use it at once: "
        "then Spark built the batch again, with other rows. Or the ids or the fields of its rows differ each time they "
        "are read. Start the query with a new checkpoint, which starts no flow twice, and make ids of columns that do "
        'not change. With option("repeated", "accept") the rows are started by their ids.'
    )
