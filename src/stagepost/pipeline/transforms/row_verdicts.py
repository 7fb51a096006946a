"""Compare the rows of a file with the messages that a stage committed, by flow and amount.

A flow id is the key of a row. ``row`` events are the rows, and all other events are lines of the journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.flow.amounts import DECIMALS, DETAIL, WHOLE_DIGITS
from stagepost.pipeline.transforms.messages import SENT, merge_messages, message_facts

# The columns of the journal that are compared.
STAGE_COLUMNS = ("waypoint", "stage", "flow_id", "origin_at", "detail")
AMOUNT = f"decimal({WHOLE_DIGITS + DECIMALS},{DECIMALS})"
# Each bucket has the keys of one remainder. With few differences, few buckets differ.
BUCKETS = 4_096
ENDS = ("committed", "doubted", "dead", "replayed", "edited", "expired")
VERDICTS = ("ok", "lost", "unexpected", "duplicated", "unequal", "recovered", "in_flight", "dead", "unprovable")
# The stage has no message for the row. Only the other stages of its flow tell why.
MISSING = "missing"


@dataclass(frozen=True, slots=True)
class RowTerms:
    """The limits of a comparison.

    ``since``, ``until``  the file should have the flows that began in this time; None is no limit
    ``proved_from``       the journal may lack earlier flows, which were purged; None for a whole journal
    ``are_all_queued``    each started flow had reached the queue, and so the journal
    """

    since: datetime | None
    until: datetime | None
    proved_from: datetime | None
    are_all_queued: bool = True

    @property
    def is_whole(self) -> bool:
        """Say whether the journal has all flows that the file should have."""
        is_kept = self.proved_from is None or (self.since is not None and self.since >= self.proved_from)
        return is_kept and self.are_all_queued

    def holds(self) -> Column:
        """Return a column that is true for an event that belongs to the time, and for each row."""
        within = F.lit(True)
        if self.since is not None:
            within &= F.col("origin_at") >= F.lit(self.since)
        if self.until is not None:
            within &= F.col("origin_at") < F.lit(self.until)
        return F.col("origin_at").isNull() | within


def row_events(rows: DataFrame) -> DataFrame:
    """Return an event for each row of ``flow_id``, ``amount`` and ``place``."""
    moment = F.lit(None).cast("timestamp").alias("origin_at")
    return rows.select("flow_id", F.lit("row").alias("event"), F.col("amount").cast(AMOUNT), moment, "place")


def stage_events(journal: DataFrame, stage: str, *, by_amount: bool) -> DataFrame:
    """Return an event for each line about a message of ``stage``: ``started``, or a waypoint of ``ENDS``."""
    name = F.col("waypoint")
    event = F.when(name.isin(*SENT), "started").when(name.isin(*ENDS), name)
    amount = F.lit(None)
    if by_amount:
        amount = F.when(name == "committed", F.regexp_extract("detail", DETAIL, 1).try_cast(AMOUNT))
    place = F.lit(None).cast("string").alias("place")
    columns = ("flow_id", event.alias("event"), amount.cast(AMOUNT).alias("amount"), "origin_at", place)
    return journal.where(F.col("stage") == stage).select(*columns).where(F.col("event").isNotNull())


def in_buckets(events: DataFrame) -> DataFrame:
    return events.withColumn("bucket", F.pmod(F.xxhash64("flow_id"), F.lit(BUCKETS)))


def bucket_digests(events: DataFrame) -> DataFrame:
    """Return one row per bucket, with the counts and sums of rows and commits.

    ``is_equal``  the same flows are in the rows, were started and were committed, with the same amounts
    """
    # Sums do not depend on the order, and unlike XOR they do not cancel a flow that occurs twice.
    flow, pair = (F.xxhash64(*of).cast("decimal(20,0)") for of in (("flow_id",), ("flow_id", "amount")))
    is_row, is_started, is_committed = (F.col("event") == name for name in ("row", "started", "committed"))
    folded = (
        in_buckets(events)
        .groupBy("bucket")
        .agg(
            F.count_if(is_row).alias("rows"),
            F.count_if(is_started).alias("started"),
            F.count_if(is_committed).alias("commits"),
            F.sum(F.when(is_row, F.col("amount"))).alias("amount"),
            F.sum(F.when(is_committed, F.col("amount"))).alias("committed_amount"),
            F.count_if(is_committed & F.col("amount").isNotNull()).alias("recorded"),
            F.sum(F.when(is_row, flow)).alias("row_digest"),
            F.sum(F.when(is_started, flow)).alias("started_digest"),
            F.sum(F.when(is_row, pair)).alias("row_pairs"),
            F.sum(F.when(is_committed, pair)).alias("committed_pairs"),
        )
    )
    is_equal = (
        (F.col("rows") == F.col("started"))
        & (F.col("rows") == F.col("commits"))
        & F.col("row_digest").eqNullSafe(F.col("started_digest"))
        & F.col("row_pairs").eqNullSafe(F.col("committed_pairs"))
    )
    return folded.withColumn("is_equal", is_equal)


def per_flow(events: DataFrame) -> DataFrame:
    """Return one row per flow, with its counts and the sums of its amounts."""
    counts = {name: F.count_if(F.col("event") == name) for name in ("row", "started", *ENDS)}
    return events.groupBy("flow_id").agg(
        counts["row"].alias("rows"),
        counts["started"].alias("started"),
        # The mode ``best_effort`` repeats a run whose messages are in doubt.
        (counts["committed"] - counts["doubted"]).alias("commits"),
        (counts["dead"] - counts["replayed"]).alias("dead"),
        (counts["edited"] + counts["expired"]).alias("gone"),
        F.sum(F.when(F.col("event") == "row", F.col("amount"))).alias("amount"),
        F.sum(F.when(F.col("event") == "committed", F.col("amount"))).alias("committed_amount"),
        F.min("origin_at").alias("origin_at"),
        F.min("place").alias("place"),
    )


def row_verdicts(flows: DataFrame, terms: RowTerms) -> DataFrame:
    """Return the flows that have a row or a commit, each with a ``verdict`` of ``VERDICTS``, or ``MISSING``.

    ``unexpected``  the stage committed it, and it has no row
    ``duplicated``  it has not as many rows as commits
    ``unequal``     its rows and its commits have other amounts
    ``recovered``   the stage committed it, and the journal has no line of its start
    ``in_flight``   its message waits or runs
    ``dead``        its message is a dead letter
    """
    is_open = F.col("started") - F.col("commits") - F.col("gone") - F.col("dead") > 0
    verdict = (
        F.when(F.col("rows") == 0, "unexpected")
        .when((F.col("commits") < F.col("rows")) & (F.col("dead") > 0), "dead")
        .when((F.col("commits") < F.col("rows")) & is_open, "in_flight")
        .when(F.col("commits") == 0, MISSING)
        .when(F.col("commits") != F.col("rows"), "duplicated")
        .when(~F.col("amount").eqNullSafe(F.col("committed_amount")), "unequal")
        .when(F.col("started") == 0, "recovered")
        .otherwise("ok")
    )
    is_asked = (F.col("rows") > 0) | ((F.col("commits") > 0) & terms.holds())
    return flows.where(is_asked).withColumn("verdict", verdict)


def flow_ends(journal: DataFrame, head: DataFrame) -> DataFrame:
    """Return the flows of a journal: whether something of each is dead, or under way.

    ``journal`` has ``JOURNAL_COLUMNS``. ``head`` has the flows of lines that were written since.
    """
    messages = merge_messages(message_facts(journal))
    # A message that another service has may come back as a reply.
    under_way = F.col("standing").isin("open", "confirmed")
    ended = messages.select("flow_id", (F.col("standing") == "dead").alias("is_dead"), under_way.alias("is_open"))
    moved = head.select("flow_id", F.lit(False).alias("is_dead"), F.lit(True).alias("is_open"))
    both = ended.unionByName(moved).groupBy("flow_id")
    return both.agg(F.bool_or("is_dead").alias("is_dead"), F.bool_or("is_open").alias("is_open"))


def explained(judged: DataFrame, ends: DataFrame, terms: RowTerms) -> DataFrame:
    """Return the flows with a verdict in place of ``MISSING``, which follows from the other stages of the flow."""
    found = (
        F.when(F.col("verdict") != MISSING, F.col("verdict"))
        .when(F.col("is_dead"), "dead")
        .when(F.col("is_open"), "in_flight")
        .otherwise("lost" if terms.is_whole else "unprovable")
    )
    return judged.join(ends, "flow_id", "left").withColumn("verdict", found)
