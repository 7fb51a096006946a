"""Prove from the journal alone that every sent message was executed exactly once, or set aside with a reason.

One read of the journal folds it into one row a message, which Spark keeps. All figures follow from these rows. The
audit looks again for each message that seems lost: in all tables that hold messages, then in the journal lines that
were written meanwhile. So delay, back-off and a move between two tables do not count as losses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from stagepost.flow.clock import SECOND, microseconds, to_datetime, to_microseconds
from stagepost.flow.errors import StagepostError
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error, has_lost_checkpoint
from stagepost.pipeline.report.advice import DAY_SECONDS, LetterFacts, growth_of, letter_rows, retention_rows
from stagepost.pipeline.report.audit_report import AuditReport
from stagepost.pipeline.report.balance import COUNTS, LATENCIES, balance_rows
from stagepost.pipeline.sketches import load_quietly
from stagepost.pipeline.stores import read_table
from stagepost.pipeline.transforms.facts import totals, window_facts
from stagepost.pipeline.transforms.flows import flow_facts, work
from stagepost.pipeline.transforms.losses import (
    PLACE_KEY,
    doubled,
    is_stuck,
    located,
    lost,
    lost_facts,
    stuck,
    unaccounted,
)
from stagepost.pipeline.transforms.messages import JOURNAL_COLUMNS, node_entries, per_message
from stagepost.pipeline.transforms.windows import WindowGrid
from stagepost.pipeline.tuning import tuned
from stagepost.ports.journal import Position, Span
from stagepost.ports.outbox import NO_BACKLOG, Backlog
from stagepost.ports.registry import driver_of

logger = logging.getLogger(__name__)

# How often the audit looks for missing messages if executors are lost meanwhile.
READINGS_MAX = 5
LOST = {"event": "executor-lost"}
# The report counts all findings, and lists at most this number of each.
LISTED_MAX = 100

PLACE_COLUMNS = (*PLACE_KEY, "place", "due_at")
FLOW_COUNTS = ("flows", "completed", "dead_flows", "under_way")

Rows = list[dict[str, Any]]


class AuditFailed(StagepostError):
    """Spark could not read or fold the journal; the cause is its own error."""

    code = "audit-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTerms:
    """The time limits of an audit.

    ``window_seconds``  width of the windows of origin
    ``late_seconds``    how long after its end a window becomes final
    ``stuck_seconds``   after how long an open message counts as stuck
    ``outage_seconds``  the longest outage after which a message may arrive a second time
    """

    window_seconds: int = 60
    late_seconds: int = 300
    stuck_seconds: int = 600
    outage_seconds: int = 3 * DAY_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """The scope of one audit: the store, the journal's end, the moment, and the terms."""

    spark: SparkSession
    url: str
    until: int
    now: int
    seen_until: int
    terms: AuditTerms
    describe: Callable[[str], None]

    @property
    def grid(self) -> WindowGrid:
        return WindowGrid.until(self.seen_until, self.terms.window_seconds)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Name the Spark jobs of a step, for the progress line and for Spark's own pages."""
        self.describe(text)
        self.spark.sparkContext.setJobDescription(f"stagepost audit: {text}")
        try:
            yield
        finally:
            self.spark.sparkContext.setJobDescription(None)  # type: ignore[arg-type]  # None removes it


@dataclass(frozen=True, slots=True)
class _Search:
    """The messages that were looked for: those that are lost, and those that wait or run for too long."""

    lost_count: int = 0
    lost: Rows = field(default_factory=list)
    lost_by_window: dict[int, dict[str, Any]] = field(default_factory=dict)
    stuck_count: int = 0
    stuck: Rows = field(default_factory=list)


def audit(
    spark: SparkSession,
    url: str,
    *,
    until: int,
    at: int,
    terms: AuditTerms,
    unseen: Backlog = NO_BACKLOG,
    letters: Sequence[LetterFacts] = (),
    describe: Callable[[str], None] = lambda text: None,
) -> AuditReport:
    """Audit the journal up to ``until``, its position at the moment ``at`` (microseconds) or soon after it.

    Every read of the journal stops at ``until``, so all see the same rows. ``unseen`` counts the rows beyond it.
    ``letters`` are the groups of the store's dead letters. ``describe`` is told the name of each step.
    Raises ``AuditFailed`` if Spark gives up.
    """
    seen_until = at if unseen.oldest_at is None else min(at, unseen.oldest_at)
    scope = _Scope(spark=spark, url=url, until=until, now=at, seen_until=seen_until, terms=terms, describe=describe)
    bounds = driver_of(url).export(url).journal_bounds(Span(end=Position.read(str(until))))
    nodes = Observation("nodes")
    load_quietly(spark)
    try:
        with tuned(spark, bounds.high - bounds.low) as partitions:
            lines = read_table(spark, url, "journal", JOURNAL_COLUMNS, until=until, numPartitions=partitions)
            # The journal is final below ``until``, so Spark can read rows again that it loses with an executor.
            messages = per_message(lines.observe(nodes, node_entries().alias("nodes"))).persist()
            try:
                return _report(scope, messages, nodes, unseen=unseen, letters=letters)
            finally:
                messages.unpersist()
    except SPARK_ERRORS as error:
        raise AuditFailed(f"the audit did not finish, so nothing is proved: {describe_error(error)}") from error


def _report(
    scope: _Scope, messages: DataFrame, nodes: Observation, *, unseen: Backlog, letters: Sequence[LetterFacts]
) -> AuditReport:
    terms = scope.terms
    with scope.step("reading the journal"):
        facts = totals(window_facts(messages, scope.grid)).collect()
    windows = {_moment(row["window"]): row.asDict() for row in facts if row["window"] is not None}
    stages = sorted((row.asDict() for row in facts if row["window"] is None), key=lambda row: row["stage"])
    with scope.step("counting flows"):
        flows = by_window(flow_facts(messages, scope.grid))
    with scope.step("counting the work of each node"):
        counted = {row["node_key"]: row["committed"] for row in work(messages).collect()} if windows else {}
    search = _Search()
    if any(row["open"] or row["dead"] for row in stages):
        search = _search(scope, messages)
    doubled_count = sum(row["doubled"] for row in stages) + sum(row["twins"] for row in flows.values())
    doubles: Rows = []
    if doubled_count:
        with scope.step("listing doubled messages"):
            doubles = _rows(doubled(messages).limit(LISTED_MAX))
    names = {row["node_key"]: row["node"] for row in nodes.get["nodes"]} if counted else {}
    sent = sum(row["sent"] for row in stages)
    days = max((scope.seen_until - min(windows, default=0)) / SECOND, terms.window_seconds) / DAY_SECONDS
    waypoints = sum(row["waypoints"] for row in stages)
    return AuditReport(
        url=scope.url,
        at=to_datetime(scope.now).isoformat(),
        seen_until=to_datetime(scope.seen_until).isoformat(),
        unseen=unseen.size,
        is_complete=scope.now - scope.seen_until <= microseconds(terms.late_seconds),
        waypoints=waypoints,
        flows={name.removesuffix("_flows"): sum(row[name] for row in flows.values()) for name in FLOW_COUNTS},
        lost_count=search.lost_count,
        doubled_count=doubled_count,
        stuck_count=search.stuck_count,
        stages=[{name: row[name] for name in ("stage", *COUNTS, "failures", "deaths")} for row in stages],
        windows=balance_rows(
            windows,
            flows,
            search.lost_by_window,
            width_at=scope.grid.width_at,
            final_before=scope.seen_until - microseconds(terms.late_seconds),
        ),
        latency=[
            {
                "stage": row["stage"],
                "messages": row["committed"],
                **{name: row[name] for name in ("backwards", *LATENCIES)},
            }
            for row in stages
            if row["committed"]
        ],
        dead_letters=letter_rows(letters, stages),
        retention=retention_rows(stages, outage_seconds=terms.outage_seconds, days=days),
        growth=growth_of(waypoints, sent, sum(row["bytes"] for row in stages), days),
        work=sorted(
            ({"node": names[key], "committed": number} for key, number in counted.items()), key=lambda row: row["node"]
        ),
        lost=search.lost,
        doubled=doubles,
        stuck=search.stuck,
    )


def _search(scope: _Scope, messages: DataFrame) -> _Search:
    """Look for the messages that have not ended, and for the dead. Look again while executors are lost meanwhile."""
    for _ in range(READINGS_MAX):
        try:
            return _search_once(scope, messages)
        except SPARK_ERRORS as error:
            if not has_lost_checkpoint(error):
                raise
            logger.warning("executor lost, reading the queue and the dead letters again", extra=LOST)
    raise AuditFailed(
        f"executors were lost in each of {READINGS_MAX} readings of the queue and the dead letters, so nothing is "
        "proved. Run the audit again when the cluster keeps its executors for longer, or on one machine, without "
        "--master."
    )


def _search_once(scope: _Scope, messages: DataFrame) -> _Search:
    with scope.step("looking for messages in the queue and the dead letters"):
        # The checkpoint reads the tables here, before the journal's head: only then is the second look sound. The
        # tables change, so a checkpoint that is lost with an executor ends this search.
        places = read_table(scope.spark, scope.url, "places", PLACE_COLUMNS)
        whereabouts = located(messages, places).localCheckpoint()
        now, after_seconds = to_datetime(scope.now), scope.terms.stuck_seconds
        counts = F.count_if(F.col("place").isNull()), F.count_if(is_stuck(now=now, after_seconds=after_seconds))
        ((missing_count, stuck_count),) = whereabouts.agg(*counts).collect()
        stuck_rows = []
        if stuck_count:
            stuck_rows = _rows(stuck(whereabouts, now=now, after_seconds=after_seconds).limit(LISTED_MAX))
    if not missing_count:
        return _Search(stuck_count=stuck_count, stuck=stuck_rows)
    with scope.step("looking for missing messages in the newest waypoints"):
        head = read_table(scope.spark, scope.url, "journal", PLACE_KEY, **{"from": scope.until})
        gone = lost(unaccounted(whereabouts), head).localCheckpoint()
        found = by_window(lost_facts(gone, scope.grid))
        lost_rows = _rows(gone.select(*PLACE_KEY, "flow_id", "sent_at").limit(LISTED_MAX)) if found else []
    return _Search(sum(row["lost"] for row in found.values()), lost_rows, found, stuck_count, stuck_rows)


def by_window(facts: DataFrame) -> dict[int, dict[str, Any]]:
    """Collect facts of windows, by the begin of each window in microseconds. Facts without a window are left out."""
    rows = [row.asDict() for row in facts.collect()]
    return {_moment(row["window"]): row for row in rows if row["window"] is not None}


def _latency(row: dict[str, Any]) -> dict[str, Any]:
    facts = {name: row[name] for name in ("backwards", *LATENCIES)}
    return {"stage": row["stage"], "messages": row["committed"], **facts}


def _rows(frame: DataFrame) -> Rows:
    return [{name: _plain(value) for name, value in row.asDict().items()} for row in frame.collect()]


def _plain(value: Any) -> Any:
    # Spark returns timestamps without a zone, in the time zone of this process.
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _moment(value: datetime) -> int:
    return to_microseconds(value.astimezone(UTC))
