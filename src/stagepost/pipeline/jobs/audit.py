"""Prove from the journal alone that every sent message was executed exactly once, or set aside with a reason.

One read of the journal folds it into one row a message, which Spark keeps. All figures follow from these rows. The
audit looks again for each message that seems lost: in all tables that hold messages, then in the journal lines that
were written meanwhile. So delay, back-off and a move between two tables do not count as losses.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession

from stagepost.flow.clock import SECOND, microseconds, to_datetime
from stagepost.flow.errors import StagepostError
from stagepost.flow.urls import shown_url
from stagepost.pipeline.archived_journal import ArchivedJournal, coverage, read_journal
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error, has_lost_checkpoint
from stagepost.pipeline.jobs.audit_letters import evidence_of, letter_minutes, settled_before, settled_hours
from stagepost.pipeline.jobs.audit_search import (
    LISTED_MAX,
    NOTHING_FOUND,
    Rows,
    Search,
    SearchScope,
    by_window,
    moment_of,
    rows_of,
    search_once,
)
from stagepost.pipeline.jobs.audit_state import (
    FORMAT,
    AuditState,
    Summary,
    final_windows,
    provisional_windows,
    reopened,
    write_state,
)
from stagepost.pipeline.report.advice import (
    DAY_SECONDS,
    NO_LETTERS,
    LetterFacts,
    StageTerms,
    letter_rows,
    retention_rows,
    type_rows,
)
from stagepost.pipeline.report.audit_report import AuditReport
from stagepost.pipeline.report.balance import COUNTS, LATENCIES, balance_rows
from stagepost.pipeline.report.growth import Size, StoreSize, growth_of, remembered
from stagepost.pipeline.report.letter_verdicts import NO_EVIDENCE, Evidence
from stagepost.pipeline.session import job_description
from stagepost.pipeline.sketches import load_quietly
from stagepost.pipeline.transforms.facts import totals, window_facts
from stagepost.pipeline.transforms.flows import flow_facts, work
from stagepost.pipeline.transforms.losses import doubled, latest_first
from stagepost.pipeline.transforms.messages import JOURNAL_COLUMNS, merge_messages, message_facts, node_entries
from stagepost.pipeline.transforms.state import add_facts, add_flows, needed, settled_flows, settling
from stagepost.pipeline.transforms.windows import WindowGrid
from stagepost.pipeline.tuning import FEW_ROWS, tuned
from stagepost.ports.findings import counted
from stagepost.ports.journal import Position, Span
from stagepost.ports.outbox import NO_BACKLOG, Backlog
from stagepost.ports.registry import driver_of

logger = logging.getLogger(__name__)

# How often the audit looks for missing messages if executors are lost meanwhile.
READINGS_MAX = 5
LOST = {"event": "executor-lost"}
FLOW_COUNTS = ("flows", "completed", "dead_flows", "under_way")


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
    ``keep_seconds``    how long a state keeps the messages of flows that have ended
    """

    window_seconds: int = 60
    late_seconds: int = 300
    stuck_seconds: int = 600
    outage_seconds: int = 3 * DAY_SECONDS
    keep_seconds: int = 3 * DAY_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """The scope of one audit: store, end of the journal, moment, terms, and about how many lines it reads."""

    spark: SparkSession
    url: str
    until: int
    now: int
    seen_until: int
    terms: AuditTerms
    stages: Mapping[str, StageTerms]
    store: StoreSize | None
    sizes: Sequence[Size]
    lines: int
    is_saved: bool
    describe: Callable[[str], None]

    @property
    def grid(self) -> WindowGrid:
        return WindowGrid.until(self.seen_until, self.terms.window_seconds)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Name the Spark jobs of a step, for the progress line and for Spark's own pages."""
        self.describe(f"{text} (about {counted(self.lines, 'waypoint')})")
        with job_description(self.spark, f"stagepost audit: {text}"):
            yield


def audit(
    spark: SparkSession,
    url: str,
    *,
    until: int,
    at: int,
    terms: AuditTerms,
    unseen: Backlog = NO_BACKLOG,
    letters: Sequence[LetterFacts] = (),
    stages: Mapping[str, StageTerms] | None = None,
    store: StoreSize | None = None,
    describe: Callable[[str], None] = lambda text: None,
    former: AuditState | None = None,
    archived: ArchivedJournal | None = None,
    save_to: Path | None = None,
) -> AuditReport:
    """Audit the journal up to ``until``, its position at the moment ``at`` (microseconds) or soon after it.

    Every read of the journal stops at ``until``, so all see the same rows. ``unseen`` counts the rows beyond it.
    ``letters`` are the groups of the store's dead letters, ``stages`` its present terms of each stage, and ``store`` is
    its size. ``describe`` is told the name of each step.

    With ``former`` the audit continues where that state ends. A full audit also reads the lines that were ``archived``
    before ``until`` was taken. Without them it covers the lines of the store alone. With ``save_to``, a new folder, it
    writes a state there, which is on the disk when this returns, and counts when the store names it.

    Raises ``AuditFailed`` if Spark gives up, and ``AuditStateUnusable`` if the executors do not share ``save_to``.
    """
    seen_until = at if unseen.oldest_at is None else min(at, unseen.oldest_at)
    begin = {} if former is None else {"from": former.position}
    archived = archived if former is None else None
    lines = lines_of(url, until, former, archived)
    before = [] if former is None else former.summary.sizes
    scope = _Scope(
        spark=spark,
        url=url,
        until=until,
        now=at,
        seen_until=seen_until,
        terms=terms,
        stages=stages or {},
        store=store,
        sizes=before if store is None else [*before, (at, store.usage.used)],
        lines=lines,
        is_saved=save_to is not None,
        describe=describe,
    )
    nodes = Observation("nodes")
    load_quietly(spark)
    try:
        with tuned(spark, lines + kept_by(former)) as partitions:
            limits = {"until": until, "numPartitions": partitions, **begin}
            journal = read_journal(spark, url, JOURNAL_COLUMNS, archived, **limits)
            parts = message_facts(journal.observe(nodes, node_entries().alias("nodes")))
            if former is not None:
                parts = parts.unionByName(former.messages(spark))
            # The journal is final below ``until``, so Spark can read rows again that it loses with an executor.
            messages = merge_messages(parts).persist()
            try:
                report, known = _report(scope, messages, nodes, unseen=unseen, letters=letters, former=former)
                if former is None:
                    report = replace(report, **coverage(url, archived))
                if save_to is not None:
                    with scope.step("writing the state"):
                        _save(scope, messages, report, known, former, save_to)
                return report
            finally:
                messages.unpersist()
    except SPARK_ERRORS as error:
        raise AuditFailed(f"the audit did not finish, so nothing is proved: {describe_error(error)}") from error


def is_brief(url: str, until: int, former: AuditState | None, archived: ArchivedJournal | None) -> bool:
    """Return whether the audit has so few rows that it ends before it pays that Java compiles well."""
    return lines_of(url, until, former, archived) + kept_by(former) < FEW_ROWS


def lines_of(url: str, until: int, former: AuditState | None, archived: ArchivedJournal | None) -> int:
    """Return about how many lines the audit reads."""
    span = Span(None if former is None else former.position, Position.read(str(until)))
    bounds = driver_of(url).export(url).journal_bounds(span)
    return max(bounds.high - bounds.low, 0) + (0 if archived is None else archived.rows)


def kept_by(former: AuditState | None) -> int:
    return 0 if former is None else former.summary.messages


@dataclass(frozen=True, slots=True)
class _Known:
    """Found by the audit, and needed by the next one beside its report.

    ``nodes``     the names of nodes, by their digests
    ``removed``   digests of dead messages whose letters have left the store
    ``evidence``  how messages ended beside those that died
    """

    nodes: Mapping[int, str]
    removed: Sequence[int]
    evidence: Evidence


def _save(
    scope: _Scope,
    messages: DataFrame,
    report: AuditReport,
    known: _Known,
    former: AuditState | None,
    folder: Path,
) -> None:
    """Write the state from which the next audit continues."""
    before = scope.seen_until - microseconds(scope.terms.keep_seconds)
    doubles = doubled(messages) if report.doubled_count else None
    # The driver has the digests, so Spark finds the same flows if it loses them with an executor.
    removed = [(each,) for each in known.removed]
    gone = scope.spark.createDataFrame(removed, "message bigint") if removed else None
    flows = settled_flows(messages, doubles, gone, before=to_datetime(before)).persist()
    try:
        ended = settling(messages, flows)
        facts, counts = window_facts(ended, scope.grid), flow_facts(ended, scope.grid)
        done = _named(_work(ended), known.nodes)
        if former is not None:
            facts = add_facts(facts, former.facts(scope.spark), scope.grid)
            counts = add_flows(counts, former.flows(scope.spark), scope.grid)
            done += Counter(former.summary.work)
        rest = needed(messages, flows)
        summary = Summary(
            format=FORMAT,
            until=str(scope.until),
            window_seconds=scope.terms.window_seconds,
            messages=rest.count(),
            nodes=dict(known.nodes),
            work=dict(done),
            final=final_windows(report.windows),
            provisional=provisional_windows(report.windows),
            sizes=remembered(scope.sizes[:-1], scope.sizes[-1]) if scope.sizes else [],
            settled_before=settled_before(before, scope.seen_until, None if former is None else former.summary),
            settled_hours=settled_hours(known.evidence, rest) if known.evidence.hours else [],
        )
        write_state(folder, messages=rest, facts=facts, flows=counts, summary=summary)
    finally:
        flows.unpersist()


def _work(messages: DataFrame) -> dict[int, int]:
    return {row["node_key"]: row["committed"] for row in work(messages).collect()}


def _named(counted: Mapping[int, int], names: Mapping[int, str]) -> Counter[str]:
    return Counter({names[key]: number for key, number in counted.items()})


def _report(
    scope: _Scope,
    messages: DataFrame,
    nodes: Observation,
    *,
    unseen: Backlog,
    letters: Sequence[LetterFacts],
    former: AuditState | None,
) -> tuple[AuditReport, _Known]:
    terms = scope.terms
    facts, flow_counts = window_facts(messages, scope.grid), flow_facts(messages, scope.grid)
    if former is not None:
        facts = add_facts(facts, former.facts(scope.spark), scope.grid)
        flow_counts = add_flows(flow_counts, former.flows(scope.spark), scope.grid)
    with scope.step("reading the journal"):
        summed = totals(facts).collect()
    windows = {moment_of(row["window"]): row.asDict() for row in summed if row["window"] is not None}
    stages = sorted((row.asDict() for row in summed if row["window"] is None), key=lambda row: row["stage"])
    with scope.step("counting flows"):
        flows = by_window(flow_counts)
    names: dict[int, str] = {} if former is None else dict(former.summary.nodes)
    done = Counter({} if former is None else former.summary.work)
    if windows:
        with scope.step("counting the work of each node"):
            counted = _work(messages)
        if counted.keys() - names.keys():
            # Only then were lines read, and only then has Spark something to tell.
            names |= {row["node_key"]: row["node"] for row in nodes.get["nodes"]}
        done += _named(counted, names)
    search = NOTHING_FOUND
    if any(row["open"] or row["dead"] for row in stages):
        search = _search(scope, messages)
    evidence, letters_at = NO_EVIDENCE, NO_LETTERS
    if any(row["dead"] for row in stages):
        with scope.step("judging dead letters"):
            evidence = evidence_of(messages, None if former is None else former.summary)
            letters_at = letter_minutes(scope.spark, scope.url) if letters else NO_LETTERS
    twins = sum(row["twins"] for row in flows.values())
    doubled_count = sum(row["doubled"] for row in stages) + twins
    doubles: Rows = []
    if doubled_count:
        with scope.step("listing doubled messages"):
            found = latest_first(doubled(messages, has_twins=bool(twins)), "origin_at")
            doubles = rows_of(found.limit(LISTED_MAX))
    sent = sum(row["sent"] for row in stages)
    days = max((scope.seen_until - min(windows, default=scope.seen_until)) / SECOND, terms.window_seconds) / DAY_SECONDS
    waypoints = sum(row["waypoints"] for row in stages)
    retention = retention_rows(stages, scope.stages, outage_seconds=terms.outage_seconds, days=days)
    balance = balance_rows(
        windows,
        flows,
        search.lost_by_window,
        width_at=scope.grid.width_at,
        final_before=scope.seen_until - microseconds(terms.late_seconds),
    )
    report = AuditReport(
        url=shown_url(scope.url),
        at=to_datetime(scope.now).isoformat(),
        seen_until=to_datetime(scope.seen_until).isoformat(),
        unseen=unseen.size,
        is_complete=scope.now - scope.seen_until <= microseconds(terms.late_seconds),
        waypoints=waypoints,
        flows={name.removesuffix("_flows"): sum(row[name] for row in flows.values()) for name in FLOW_COUNTS},
        lost_count=search.lost_count,
        doubled_count=doubled_count,
        stuck_count=search.stuck_count,
        in_doubt_count=search.in_doubt_count,
        doubted_count=sum(row["doubted"] for row in stages),
        stages=[{name: row[name] for name in ("stage", *COUNTS, "failures", "deaths")} for row in stages],
        windows=balance,
        latency=[
            {
                "stage": row["stage"],
                "messages": row["committed"],
                **{name: row[name] for name in ("backwards", *LATENCIES)},
            }
            for row in stages
            if row["committed"]
        ],
        dead_letters=letter_rows(letters, letters_at, evidence),
        retention=retention,
        types=type_rows(retention),
        growth=growth_of(
            waypoints, sent, sum(row["bytes"] for row in stages), days, store=scope.store, sizes=scope.sizes
        ),
        work=[{"node": node, "committed": number} for node, number in sorted(done.items())],
        lost=search.lost,
        doubled=doubles,
        stuck=search.stuck,
        in_doubt=search.in_doubt,
        reopened=[] if former is None else reopened(balance, former.summary),
        continued_from=None if former is None else str(former.position),
    )
    return report, _Known(names, search.removed, evidence)


def _search(scope: _Scope, messages: DataFrame) -> Search:
    """Look for the messages that have not ended, and for the dead. Look again while executors are lost meanwhile."""
    wanted = SearchScope(
        spark=scope.spark,
        url=scope.url,
        until=scope.until,
        now=to_datetime(scope.now),
        stuck_seconds=scope.terms.stuck_seconds,
        grid=scope.grid,
        forgets=scope.is_saved,
        step=scope.step,
    )
    for _ in range(READINGS_MAX):
        try:
            return search_once(wanted, messages)
        except SPARK_ERRORS as error:
            if not has_lost_checkpoint(error):
                raise
            logger.warning("executor lost, reading the queue and the dead letters again", extra=LOST)
    raise AuditFailed(
        f"executors were lost in each of {READINGS_MAX} readings of the queue and the dead letters, so nothing is "
        "proved. Run the audit again when the cluster keeps its executors for longer, or on one machine, without "
        "--master."
    )
