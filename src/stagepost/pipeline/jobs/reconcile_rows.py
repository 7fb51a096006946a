"""Reconcile the journal of a store with the rows of files, by flow and amount.

Digests of buckets of flows are compared first. Flows are compared only in buckets that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.flow.clock import to_datetime
from stagepost.flow.errors import DeclarationError
from stagepost.flow.urls import shown_url
from stagepost.pipeline.archived_journal import read_journal
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error
from stagepost.pipeline.files import listed
from stagepost.pipeline.jobs.keyed_rows import RowFiles, keyed_rows
from stagepost.pipeline.jobs.reconcile import (
    LISTED_MAX,
    ReconcileFailed,
    Rows,
    Service,
    kept,
    lines_until,
    proved_from,
    shown,
)
from stagepost.pipeline.report.summary import summary_of
from stagepost.pipeline.session import job_description, require_one_host
from stagepost.pipeline.stores import read_table
from stagepost.pipeline.transforms.messages import JOURNAL_COLUMNS
from stagepost.pipeline.transforms.row_verdicts import (
    MISSING,
    STAGE_COLUMNS,
    VERDICTS,
    RowTerms,
    bucket_digests,
    explained,
    flow_ends,
    in_buckets,
    per_flow,
    row_events,
    row_verdicts,
    stage_events,
)
from stagepost.pipeline.tuning import tuned
from stagepost.ports.findings import counted
from stagepost.runtime.settings import Place

LISTED = ("lost", "duplicated", "unequal", "unexpected")
BAD = (*LISTED, "unreadable")


@dataclass(frozen=True, slots=True)
class RowsReport:
    """The verdicts on the rows of files.

    ``counts``  rows by verdict; for ``unexpected`` the messages that have no row. ``unreadable`` rows were not compared
    ``amount``, ``committed_amount``  the sums over all rows, and over all commits of the time; None without amounts
    ``held``  started flows that have not reached the queue, so that the journal does not have them yet; None if unknown
    ``buckets``, ``differing``  how many groups of flows were compared, and how many of them flow by flow
    ``proved_from``  the moment from which the journal is whole; None for a whole journal
    ``findings``  at most ``LISTED_MAX`` flows of each of ``LISTED``, and of the unreadable rows
    """

    url: str
    stage: str
    seen_until: str
    proved_from: str | None
    rows: int
    counts: dict[str, int]
    amount: str | None
    committed_amount: str | None
    held: int | None
    buckets: int
    differing: int
    findings: dict[str, Rows]

    @property
    def is_clean(self) -> bool:
        # With held flows a lost row cannot be told from one whose flow is not in the queue yet.
        unproved = self.counts["unprovable"] if self.held != 0 else 0
        return not unproved and not any(self.counts[name] for name in BAD)

    def as_dict(self) -> dict[str, Any]:
        return {"clean": self.is_clean, **asdict(self)}

    def __repr__(self) -> str:
        """Return a summary for a notebook, which would show all fields otherwise."""
        verdict = "rows and committed messages are the same" if self.is_clean else "rows and committed messages differ"
        if self.held != 0:
            held = "unknown" if self.held is None else counted(self.held, "started flow")
            verdict += f", not in the queue yet: {held}"
        return summary_of(
            self,
            f"{verdict}, {counted(self.rows, 'row')} against the stage {self.stage} of {self.url}",
            self.counts,
            {name: [row.get("flow_id") or row["place"] for row in rows] for name, rows in self.findings.items()},
        )


def reconcile_rows(
    spark: SparkSession,
    service: Service,
    rows: RowFiles,
    stage: str,
    *,
    held: int | None,
    since: int | None = None,
    until: int | None = None,
    describe: Callable[[str], None] = lambda text: None,
) -> RowsReport:
    """Compare the rows with the messages that ``stage`` committed.

    The rows should have the flows that began from ``since`` up to ``until``, in microseconds; None is no limit.
    ``held`` counts the started flows that were not in the queue before the service was read; None if unknown. With any,
    no row is proved to be lost.
    Raises ``DeclarationError`` for files, columns or a stage that cannot be used, and ``ReconcileFailed`` if Spark
    gives up.
    """
    require_one_host(spark, Place(service.url, None))
    check_stage(service, stage)

    def step(text: str) -> AbstractContextManager[None]:
        describe(text)
        return job_description(spark, f"stagepost reconcile: {text}")

    by_amount = rows.amount is not None
    try:
        with ExitStack() as opened:
            with step("counting rows"):
                keyed, count = opened.enter_context(keyed_rows(spark, rows))
            partitions = opened.enter_context(tuned(spark, count + lines_until(service)))
            read = opened.enter_context(kept(keyed))
            with step("reading rows"):
                unreadable, count_unreadable = _unreadable(read)
            if 0 < count == count_unreadable:
                raise DeclarationError(f"no row can be compared. The first one: {unreadable[0]['reason']}")
            with step("looking for purged lines"):
                whole_from = proved_from(spark, service)
            terms = RowTerms(_moment(since), _moment(until), whole_from, are_all_queued=held == 0)
            options: dict[str, str | int] = {"until": str(service.until), "numPartitions": partitions}
            journal = read_journal(spark, service.url, STAGE_COLUMNS, service.archived, **options)
            lines = stage_events(journal, stage, by_amount=by_amount)
            events = row_events(read.where("reason IS NULL"))
            buckets = opened.enter_context(kept(bucket_digests(events.unionByName(lines.where(terms.holds())))))
            with step("comparing buckets of flows"):
                totals = _totals(buckets)
            if by_amount and totals["commits"] and not totals["recorded"]:
                raise DeclarationError(
                    f"no message of {stage} has an amount in the journal. Call ctx.record_amount in its handler, or "
                    "compare ids alone, without --amount."
                )
            judged = _Judged()
            if totals["differing"]:
                with step("comparing flows in buckets that differ"):
                    unequal = F.broadcast(buckets.where("NOT is_equal").select("bucket"))
                    some = in_buckets(events.unionByName(lines)).join(unequal, "bucket", "left_semi")
                    judged = _judge(spark, service, some, terms, options)
            service.check_unmoved()
    except SPARK_ERRORS as error:
        raise ReconcileFailed(f"the rows were not compared, so nothing is proved: {describe_error(error)}") from error
    counts = {name: judged.counts.get(name, 0) for name in VERDICTS}
    counts["ok"] += totals["equal"]
    return RowsReport(
        url=shown_url(service.url),
        stage=stage,
        seen_until=to_datetime(service.seen_until).isoformat(),
        proved_from=None if whole_from is None else whole_from.isoformat(),
        rows=count,
        counts={**counts, "unreadable": count_unreadable},
        amount=_plain(totals["amount"]) if by_amount else None,
        committed_amount=_plain(totals["committed_amount"]) if by_amount else None,
        held=held,
        buckets=totals["buckets"],
        differing=totals["differing"],
        findings={**judged.listed, "unreadable": unreadable},
    )


def _moment(at: int | None) -> datetime | None:
    return None if at is None else to_datetime(at)


def check_stage(service: Service, stage: str) -> None:
    """Raise ``DeclarationError`` for a stage that no app of the store declares, as far as the store knows apps."""
    if service.stages and stage not in service.stages:
        raise DeclarationError(
            f"no app of {shown_url(service.url)} declares a stage {stage!r}; the stages are "
            f"{listed(sorted(service.stages))}. Name one with --stage."
        )


@dataclass(frozen=True, slots=True)
class _Judged:
    """The number of rows by verdict, and the listed flows."""

    counts: Mapping[str, int] = field(default_factory=dict)
    listed: Mapping[str, Rows] = field(default_factory=lambda: {name: [] for name in LISTED})


def _judge(
    spark: SparkSession, service: Service, events: DataFrame, terms: RowTerms, options: Mapping[str, str | int]
) -> _Judged:
    with kept(row_verdicts(per_flow(events), terms)) as judged:
        final = judged
        missing = judged.where(F.col("verdict") == MISSING).select("flow_id")
        if missing.limit(1).collect():
            journal = read_journal(spark, service.url, JOURNAL_COLUMNS, service.archived, **options)
            # A flow may have moved since the position was taken.
            head = read_table(spark, service.url, "journal", ("flow_id",), **{"from": str(service.until)})
            asked = (each.join(missing, "flow_id", "left_semi") for each in (journal, head))
            final = explained(judged, flow_ends(*asked), terms)
        with kept(final) as found:
            number = F.when(F.col("rows") == 0, F.col("commits")).otherwise(F.col("rows"))
            counts = found.groupBy("verdict").agg(F.sum(number).alias("rows")).collect()
            listed = {name: _listed(found.where(F.col("verdict") == name)) for name in LISTED}
    return _Judged({row["verdict"]: row["rows"] for row in counts}, listed)


def _unreadable(rows: DataFrame) -> tuple[Rows, int]:
    bad = rows.where("reason IS NOT NULL")
    count = bad.count()
    found = bad.select("place", "reason").orderBy("place").limit(LISTED_MAX).collect() if count else []
    return [row.asDict() for row in found], count


def _totals(buckets: DataFrame) -> dict[str, Any]:
    (row,) = buckets.agg(
        F.count("*").alias("buckets"),
        F.count_if(~F.col("is_equal")).alias("differing"),
        F.coalesce(F.sum("commits"), F.lit(0)).alias("commits"),
        F.coalesce(F.sum("recorded"), F.lit(0)).alias("recorded"),
        F.coalesce(F.sum(F.when(F.col("is_equal"), F.col("rows"))), F.lit(0)).alias("equal"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("amount", "committed_amount")),
    ).collect()
    return row.asDict()


def _listed(flows: DataFrame) -> Rows:
    names = ("flow_id", "rows", "commits", "amount", "committed_amount", "place", "origin_at")
    found = flows.select(*names).orderBy("flow_id").limit(LISTED_MAX).collect()
    return [{name: _shown(value) for name, value in row.asDict().items()} for row in found]


def _shown(value: Any) -> Any:
    return _plain(value) if isinstance(value, Decimal) else shown(value)


def _plain(amount: Decimal) -> str:
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
