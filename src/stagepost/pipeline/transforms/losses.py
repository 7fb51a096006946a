"""What is missing and what is there twice."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

KEY = ["stage", "message_id"]


def unaccounted(messages: DataFrame, queue: DataFrame, dead_letters: DataFrame) -> DataFrame:
    """Messages that were sent and neither committed nor expired, and that neither the queue nor the dead letters
    hold: also those that the journal calls dead. What was edited is nowhere any more: what went on in its place was
    sent, and is looked for like all others.

    ``queue`` and ``dead_letters`` must have been read after the journal, in this order: a message moves from the queue
    to the dead letters, or to the journal's end, and never back without a waypoint.
    """
    open_ones = messages.where(~F.col("standing").isin("committed", "expired", "edited") & F.col("sent_at").isNotNull())
    return open_ones.join(queue, KEY, "left_anti").join(dead_letters, KEY, "left_anti")


def lost(missing: DataFrame, journal_head: DataFrame) -> DataFrame:
    """Those of the unaccounted that nothing was written about since: ``journal_head`` is what came after the journal
    that they were found in."""
    return missing.join(journal_head, KEY, "left_anti")


def executed_twice(messages: DataFrame) -> DataFrame:
    """One message, one stage, two commits."""
    return messages.where(F.col("commits") > 1).select(
        "stage", "message_id", "flow_id", "origin_at", F.lit("two commits of one message").alias("how")
    )


def sent_twice(messages: DataFrame) -> DataFrame:
    """Two message ids for what one handler run can send only once: same sender, cause, kind, target and ordinal."""
    sent = messages.where(F.col("cause_id").isNotNull() & F.col("sent_at").isNotNull())
    place = ["flow_id", "stage", "sender", "cause_id", "kind", "ordinal"]
    twins = sent.groupBy(*place).agg(
        F.count("*").alias("ids"), F.max("message_id").alias("message_id"), F.min("origin_at").alias("origin_at")
    )
    return twins.where(F.col("ids") > 1).select(
        "stage", "message_id", "flow_id", "origin_at", F.lit("two messages from one send").alias("how")
    )


def edited_and_executed(messages: DataFrame) -> DataFrame:
    """What went on under another id was executed under its own, too. Edited twice, it is two messages from one send."""
    return messages.where((F.col("edits") > 0) & (F.col("commits") > 0)).select(
        "stage", "message_id", "flow_id", "origin_at", F.lit("committed, and edited into another message").alias("how")
    )


def doubled(messages: DataFrame) -> DataFrame:
    """One row a finding."""
    executed = executed_twice(messages).unionByName(edited_and_executed(messages))
    return executed.unionByName(sent_twice(messages))
