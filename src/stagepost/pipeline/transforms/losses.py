"""Find messages that are missing, and messages that were executed or sent twice."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

KEY = ["stage", "message_id"]


def unaccounted(messages: DataFrame, queue: DataFrame, dead_letters: DataFrame) -> DataFrame:
    """Return sent messages, neither committed, confirmed nor expired, that neither the queue nor the dead letters hold.

    These include messages that are dead according to the journal. An edited message is in no table any more. Its
    replacement was sent, and is checked like every message.

    ``queue`` and ``dead_letters`` must have been read after the journal, in this order: a message moves from the queue
    to the dead letters, or to the journal's end, and never back without a waypoint.
    """
    open_ones = messages.where(
        ~F.col("standing").isin("committed", "confirmed", "expired", "edited") & F.col("sent_at").isNotNull()
    )
    return open_ones.join(queue, KEY, "left_anti").join(dead_letters, KEY, "left_anti")


def lost(missing: DataFrame, journal_head: DataFrame) -> DataFrame:
    """Return the unaccounted messages without a line in ``journal_head``, the lines written after that journal."""
    return missing.join(journal_head, KEY, "left_anti")


def executed_twice(messages: DataFrame) -> DataFrame:
    """Return messages with two commits at one stage."""
    return messages.where(F.col("commits") > 1).select(
        "stage", "message_id", "flow_id", "origin_at", F.lit("two commits of one message").alias("how")
    )


def sent_twice(messages: DataFrame) -> DataFrame:
    """Return messages that one handler run can send only once, but that have two ids.

    They have the same sender, cause, kind, target and ordinal.
    """
    sent = messages.where(F.col("cause_id").isNotNull() & F.col("sent_at").isNotNull())
    place = ["flow_id", "stage", "sender", "cause_id", "kind", "ordinal"]
    twins = sent.groupBy(*place).agg(
        F.count("*").alias("ids"), F.max("message_id").alias("message_id"), F.min("origin_at").alias("origin_at")
    )
    return twins.where(F.col("ids") > 1).select(
        "stage", "message_id", "flow_id", "origin_at", F.lit("two messages from one send").alias("how")
    )


def edited_and_executed(messages: DataFrame) -> DataFrame:
    """Return edited messages that were also executed under their own id. ``sent_twice`` returns those edited twice."""
    return messages.where((F.col("edits") > 0) & (F.col("commits") > 0)).select(
        "stage", "message_id", "flow_id", "origin_at", F.lit("committed, and edited into another message").alias("how")
    )


def doubled(messages: DataFrame) -> DataFrame:
    """Return all findings of messages executed or sent twice, one row each."""
    executed = executed_twice(messages).unionByName(edited_and_executed(messages))
    return executed.unionByName(sent_twice(messages))
