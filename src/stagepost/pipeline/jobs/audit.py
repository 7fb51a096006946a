"""Prove from the journal alone that every sent message was executed exactly once, or set aside with a reason.

The audit looks again for each message that seems lost: first in the queue, then in the dead letters, then in the
journal lines that were written meanwhile. So delay, back-off and a move between two tables do not count as losses.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.flow.clock import microseconds, to_datetime
from stagepost.flow.errors import StagepostError
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error, has_lost_checkpoint
from stagepost.pipeline.stores import read_table
from stagepost.pipeline.transforms.balance import balance
from stagepost.pipeline.transforms.latency import hop_latency
from stagepost.pipeline.transforms.losses import KEY, doubled, lost, unaccounted
from stagepost.pipeline.transforms.message_status import flows, letter_groups, stages, stuck, work
from stagepost.pipeline.transforms.messages import per_message
from stagepost.ports.outbox import NO_BACKLOG, Backlog

logger = logging.getLogger(__name__)

# How often the audit reads the queue and the dead letters if executors are lost meanwhile.
READINGS_MAX = 5
LOST = {"event": "executor-lost"}
# The report counts all findings, and lists at most this number of each.
LISTED_MAX = 100

JOURNAL_COLUMNS = (
    *("waypoint", "at", "node", "stage", "message_id", "flow_id", "origin_at"),
    *("cause_id", "kind", "ordinal", "ms", "detail"),
)
QUEUE_COLUMNS = (*KEY, "place", "due_at")
LETTER_COLUMNS = (*KEY, "id", "fingerprint", "reason", "dead_at", "causes")


class AuditFailed(StagepostError):
    """Spark could not read or fold the journal; the cause is its own error."""

    code = "audit-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTerms:
    """The time limits of an audit.

    ``window_seconds``  width of the windows of origin
    ``late_seconds``    how long after its end a window becomes final
    ``stuck_seconds``   after how long an open message counts as stuck
    """

    window_seconds: int = 60
    late_seconds: int = 300
    stuck_seconds: int = 600


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit. Counts cover all messages; ``lost``, ``doubled`` and ``stuck`` list at most 100 each.

    The audit leaves out ``unseen`` waypoints, written from ``seen_until`` on. A transaction before them is still open,
    so the rows before them may change. ``is_complete`` says that all of them belong to windows that are not final yet.
    """

    url: str
    at: str
    seen_until: str
    unseen: int
    is_complete: bool
    waypoints: int
    flows: dict[str, int]
    lost_count: int
    doubled_count: int
    stuck_count: int
    stages: list[dict[str, Any]]
    windows: list[dict[str, Any]]
    latency: list[dict[str, Any]]
    dead_letters: list[dict[str, Any]]
    work: list[dict[str, Any]]
    lost: list[dict[str, Any]] = field(default_factory=list)
    doubled: list[dict[str, Any]] = field(default_factory=list)
    stuck: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return self.lost_count == 0 and self.doubled_count == 0

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        return {"clean": self.is_clean, "complete": fields.pop("is_complete"), **fields}


def audit(
    spark: SparkSession, url: str, *, until: int, at: int, terms: AuditTerms, unseen: Backlog = NO_BACKLOG
) -> AuditReport:
    """Audit the journal up to ``until``, its position at the moment ``at`` (microseconds) or soon after it.

    Every read of the journal stops at ``until``, so all see the same rows. ``unseen`` counts the rows beyond it.
    Raises ``AuditFailed`` if Spark gives up.
    """
    try:
        # The journal is final below ``until``, so Spark can read rows again that it loses with an executor.
        messages = per_message(read_table(spark, url, "journal", JOURNAL_COLUMNS, until=until)).persist()
        try:
            for _ in range(READINGS_MAX):
                try:
                    return _audit(spark, url, messages, until=until, at=at, terms=terms, unseen=unseen)
                except SPARK_ERRORS as error:
                    if not has_lost_checkpoint(error):
                        raise
                    logger.warning("executor lost, reading the queue and the dead letters again", extra=LOST)
        finally:
            messages.unpersist()
    except SPARK_ERRORS as error:
        raise AuditFailed(f"the audit did not finish, so nothing is proved: {describe_error(error)}") from error
    raise AuditFailed(
        f"executors were lost in each of {READINGS_MAX} readings of the queue and the dead letters, so nothing is "
        "proved. Run the audit again when the cluster keeps its executors for longer, or on one machine, without "
        "--master."
    )


def _audit(
    spark: SparkSession,
    url: str,
    messages: DataFrame,
    *,
    until: int,
    at: int,
    terms: AuditTerms,
    unseen: Backlog,
) -> AuditReport:
    """Audit with one reading of the tables that change: the queue, the dead letters, and the journal's head."""
    now = to_datetime(at)
    seen_until = at if unseen.oldest_at is None else min(at, unseen.oldest_at)
    # Each checkpoint reads its table here, because the second look is sound only in this order. The tables change, so a
    # checkpoint that is lost with an executor ends this reading.
    queue = read_table(spark, url, "queue", QUEUE_COLUMNS).localCheckpoint()
    dead_letters = read_table(spark, url, "dead_letters", LETTER_COLUMNS).localCheckpoint()
    missing = unaccounted(messages, queue, dead_letters).localCheckpoint()
    gone = lost(missing, read_table(spark, url, "journal", KEY, **{"from": until})).localCheckpoint()

    twice = doubled(messages).localCheckpoint()
    lost_count, lost_ones = _counted(gone.select("stage", "message_id", "flow_id", "sent_at"))
    doubled_count, doubled_ones = _counted(twice)
    stuck_count, stuck_ones = _counted(stuck(messages, queue, now=now, after_seconds=terms.stuck_seconds))
    windows = balance(
        messages,
        gone,
        twice,
        window_seconds=terms.window_seconds,
        horizon=to_datetime(seen_until),
        late_seconds=terms.late_seconds,
    )
    return AuditReport(
        url=url,
        at=now.isoformat(),
        seen_until=to_datetime(seen_until).isoformat(),
        unseen=unseen.size,
        is_complete=at - seen_until <= microseconds(terms.late_seconds),
        waypoints=messages.agg(F.coalesce(F.sum("waypoints"), F.lit(0))).collect()[0][0],
        flows=_rows(flows(messages))[0],
        lost_count=lost_count,
        doubled_count=doubled_count,
        stuck_count=stuck_count,
        stages=_rows(stages(messages)),
        windows=_rows(windows),
        latency=_rows(hop_latency(messages)),
        dead_letters=[_with_sample(row) for row in _rows(letter_groups(dead_letters))],
        work=_rows(work(messages)),
        lost=lost_ones,
        doubled=doubled_ones,
        stuck=stuck_ones,
    )


def _counted(findings: DataFrame) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of findings, and the first ones. A list that is not full needs no second count."""
    listed = _rows(findings.limit(LISTED_MAX))
    return (len(listed) if len(listed) < LISTED_MAX else findings.count()), listed


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [{name: _plain(value) for name, value in row.asDict().items()} for row in frame.collect()]


def _plain(value: Any) -> Any:
    # Spark returns timestamps without a zone, in the time zone of this process.
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _with_sample(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its first cause as text, in place of the chain of causes."""
    (cause, *_) = json.loads(row.pop("sample"))
    return {**row, "cause": f"{cause['type']}: {cause['message']}"}
