"""Reconcile the journals of services that send to each other over a broker.

Digests of windows are compared first. Ids are compared only in windows that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.flow.clock import Clock, to_datetime, to_microseconds
from stagepost.flow.errors import StagepostError
from stagepost.flow.urls import shown_url
from stagepost.pipeline.archived_journal import ArchivedJournal, archived_journal, read_journal
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error
from stagepost.pipeline.report.summary import summary_of
from stagepost.pipeline.session import job_description, require_one_host
from stagepost.pipeline.stores import read_table
from stagepost.pipeline.transforms.deliveries import (
    LINE_COLUMNS,
    VERDICTS,
    WINDOW_KEY,
    DeliveryTerms,
    delivery_lines,
    in_windows,
    overtaken_until,
    per_message,
    verdicts,
    window_digests,
)
from stagepost.pipeline.tuning import tuned
from stagepost.ports.journal import Position, Span
from stagepost.ports.registry import driver_of
from stagepost.ports.session import Session
from stagepost.runtime.settings import Place
from stagepost.transaction.arrivals import replies_address

# The report counts all findings, and lists at most this number of each.
LISTED_MAX = 100
LISTED = ("lost", "duplicated", "unexpected")

Rows = list[dict[str, Any]]


class ReconcileFailed(StagepostError):
    """Spark could not read or compare the journals; the cause is its own error."""

    code = "reconcile-failed"


@dataclass(frozen=True, slots=True)
class Service:
    """The journal of one service.

    ``until``       its position, at which the reading ends
    ``seen_until``  what happened before this moment is below the position, in microseconds
    ``stages``      the stages that its apps declare
    ``uuid``        the uuid of its store, to which replies are addressed
    ``archived``    the archived lines of its journal, if they are to be read too
    """

    url: str
    until: Position
    seen_until: int
    stages: Sequence[str]
    uuid: str
    archived: ArchivedJournal | None = None

    @classmethod
    def read(cls, url: str, session: Session, clock: Clock, archive: Path | None = None) -> Self:
        """Return the journal of a store, and of its archive if one is named, up to now."""
        archived = None if archive is None else archived_journal(archive, session)
        # The time is read before the position, so what happened before it is below the position.
        at = clock.now()
        until = session.journal.position()
        oldest = session.journal.since(until).lines.oldest_at
        stages = [each.stage for each in session.declarations.listed()]
        return cls(url, until, at if oldest is None else min(at, oldest), stages, session.edge.store(), archived)

    def check_unmoved(self) -> None:
        """Raise ``ArchiveConflict`` if lines left the store for the archive while both were read."""
        if self.archived is not None:
            self.archived.check_unmoved(self.url)

    @property
    def addresses(self) -> list[str]:
        """The addresses at which it receives."""
        return [*self.stages, replies_address(self.uuid)]


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """The verdicts on the messages between the services.

    ``services``   the URL of each, and the moment up to which its journal was read, and from which it is whole
    ``addresses``  one row for each address of a service: its verdicts, its windows, and how many of them differ
    ``elsewhere``  addresses at which none of the services receives, which were not compared
    ``lost``, ``duplicated``, ``unexpected``  at most ``LISTED_MAX`` messages each
    """

    services: Rows
    addresses: Rows
    elsewhere: Rows
    lost: Rows
    duplicated: Rows
    unexpected: Rows

    @property
    def is_clean(self) -> bool:
        return not any(row["lost"] or row["duplicated"] for row in self.addresses)

    def as_dict(self) -> dict[str, Any]:
        return {"clean": self.is_clean, **asdict(self)}

    def __repr__(self) -> str:
        """Return a summary for a notebook, which would show all fields otherwise."""
        verdict = (
            "no message was lost, and none arrived twice" if self.is_clean else "messages were lost, or arrived twice"
        )
        return summary_of(
            self,
            f"{verdict}, between {' and '.join(each['url'] for each in self.services)}",
            {name: sum(row[name] for row in self.addresses) for name in ("sent", *VERDICTS)},
            {name: [row["flow_id"] for row in getattr(self, name)] for name in LISTED},
        )


def reconcile(
    spark: SparkSession,
    services: Sequence[Service],
    *,
    window_seconds: int = 60,
    late_seconds: int = 300,
    overdue_seconds: int = 86_400,
    describe: Callable[[str], None] = lambda text: None,
) -> ReconcileReport:
    """Compare what the services sent to each other with what arrived. Raises ``ReconcileFailed`` if Spark gives up.

    ``late_seconds``     a message is lost if one that left so much later at its address has arrived
    ``overdue_seconds``  a message is lost if it left so long ago
    """
    for each in services:
        require_one_host(spark, Place(each.url, None))

    def step(text: str) -> AbstractContextManager[None]:
        describe(text)
        return job_description(spark, f"stagepost reconcile: {text}")

    try:
        with tuned(spark, sum(lines_until(each) for each in services)) as partitions:
            with step("looking for purged lines"):
                whole_from = [proved_from(spark, each) for each in services]
            terms = DeliveryTerms(
                seen_until=to_datetime(min(each.seen_until for each in services)),
                proved_from=max((each for each in whole_from if each is not None), default=None),
                late_seconds=late_seconds,
                overdue_seconds=overdue_seconds,
            )
            lines = reduce(DataFrame.unionByName, (_lines_of(spark, each, partitions) for each in services))
            known = {address for each in services for address in each.addresses}
            with kept(window_digests(lines, window_seconds)) as windows:
                with step("comparing windows"):
                    summed = _summed(windows)
                judged = _Judged()
                differing = {row["address"] for row in summed if row["windows"] > row["equal_windows"]} & known
                if differing:
                    with step("comparing ids in windows that differ"):
                        unequal = windows.where(~F.col("is_equal") & F.col("address").isin(*differing))
                        judged = _judge(in_windows(lines, window_seconds), windows, unequal, terms)
            for each in services:
                each.check_unmoved()
    except SPARK_ERRORS as error:
        raise ReconcileFailed(
            f"the journals were not compared, so nothing is proved: {describe_error(error)}"
        ) from error
    return ReconcileReport(
        services=[
            {
                "url": shown_url(each.url),
                "seen_until": to_datetime(each.seen_until).isoformat(),
                "proved_from": None if begin is None else begin.isoformat(),
            }
            for each, begin in zip(services, whole_from, strict=True)
        ],
        addresses=[_address_row(row, judged.counts) for row in summed if row["address"] in known],
        elsewhere=[
            {"address": row["address"], "sent": row["sent"]}
            for row in summed
            if row["address"] not in known and row["sent"]
        ],
        **judged.listed,
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """The number of messages by address and verdict, and the listed ones."""

    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    listed: Mapping[str, Rows] = field(default_factory=lambda: {name: [] for name in LISTED})


@contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep the rows of a frame for the block, which reads them several times."""
    try:
        yield frame.persist()
    finally:
        frame.unpersist()


def _judge(lines: DataFrame, windows: DataFrame, unequal: DataFrame, terms: DeliveryTerms) -> _Judged:
    some = lines.join(F.broadcast(unequal.select(*WINDOW_KEY)), WINDOW_KEY, "left_semi")
    with (
        kept(per_message(some)) as messages,
        kept(verdicts(messages, overtaken_until(windows, messages), terms)) as judged,
    ):
        counts = judged.groupBy("address", "verdict").agg(F.count("*").alias("messages")).collect()
        listed = {name: _listed(judged.where(F.col("verdict") == name)) for name in LISTED}
    return _Judged({(row["address"], row["verdict"]): row["messages"] for row in counts}, listed)


def lines_until(service: Service) -> int:
    bounds = driver_of(service.url).export(service.url).journal_bounds(Span(None, service.until))
    return max(bounds.high - bounds.low, 0) + (0 if service.archived is None else service.archived.rows)


def _lines_of(spark: SparkSession, service: Service, partitions: int) -> DataFrame:
    limits: dict[str, str | int] = {"until": str(service.until), "numPartitions": partitions}
    return delivery_lines(read_journal(spark, service.url, LINE_COLUMNS, service.archived, **limits))


def proved_from(spark: SparkSession, service: Service) -> datetime | None:
    """Return the moment from which the journal is whole; None if it is whole from its beginning."""
    mark = driver_of(service.url).export(service.url).purged_until()
    archived = service.archived
    if mark is None or (archived is not None and archived.is_whole):
        return None
    if archived is not None and archived.since_gap:
        ((begin,),) = archived.lines(spark, archived.since_gap).agg(F.min("at")).collect()
        if begin is not None:
            return in_utc(begin)
    limits = {"from": str(mark), "until": str(service.until)}
    ((begin,),) = read_table(spark, service.url, "journal", ("at",), **limits).agg(F.min("at")).collect()
    return to_datetime(service.seen_until) if begin is None else in_utc(begin)


def _summed(windows: DataFrame) -> Rows:
    """Return the sums of each address, over all of its windows and over those that are equal."""
    folded = windows.groupBy("address").agg(
        F.count("*").alias("windows"),
        F.count_if("is_equal").alias("equal_windows"),
        F.sum("sent").alias("sent"),
        F.coalesce(F.sum(F.when(F.col("is_equal"), F.col("sent"))), F.lit(0)).alias("equal"),
    )
    return sorted((row.asDict() for row in folded.collect()), key=lambda row: row["address"])


def _listed(messages: DataFrame) -> Rows:
    names = ("address", "message_id", "flow_id", "sent_at", "confirmed_at", "arrived_at")
    found = messages.select(*names).orderBy("address", "message_id").limit(LISTED_MAX).collect()
    return [{name: shown(value) for name, value in row.asDict().items()} for row in found]


def _address_row(row: dict[str, Any], found: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    counts = {verdict: found.get((row["address"], verdict), 0) for verdict in VERDICTS}
    counts["ok"] += row["equal"]
    return {
        "address": row["address"],
        "sent": row["sent"],
        **counts,
        "windows": row["windows"],
        "differing": row["windows"] - row["equal_windows"],
    }


def shown(value: Any) -> Any:
    return in_utc(value).isoformat() if isinstance(value, datetime) else value


def in_utc(value: datetime) -> datetime:
    # Spark returns timestamps without a zone, in the time zone of this process.
    return to_datetime(to_microseconds(value.astimezone(UTC)))
