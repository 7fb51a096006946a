"""Find messages that are missing, and messages that were executed or sent twice."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.transforms.messages import KEY
from stagepost.pipeline.transforms.windows import WindowGrid

# The key of a message in the tables that hold it.
PLACE_KEY = ["stage", "message_id"]


def located(messages: DataFrame, places: DataFrame) -> DataFrame:
    """Return the messages that have not ended, or are dead, each with its ``place``; null if it is nowhere.

    ``places`` must be read after the journal. An edited message is in no table any more. Its replacement was sent, and
    is checked like every message.
    """
    is_open = (F.col("standing") == "open") & F.col("sent_at").isNotNull()
    facts = ("origin_at", "standing", "sent_at", "last_at", "failures", "deaths", "direct")
    unended = messages.where(is_open | (F.col("standing") == "dead")).select(*KEY, *facts)
    return unended.join(places.select(*PLACE_KEY, "place", "due_at"), PLACE_KEY, "left")


def is_unaccounted(letters_removed: datetime | None) -> Column:
    """Return whether no table holds a message of ``located``, and it is not a dead one whose letter's time was over.

    A message is left out if the journal does not have that it was sent.
    ``letters_removed`` must be read after the tables. Letters that died up to then may have left the store.
    """
    return F.col("place").isNull() & F.col("sent_at").isNotNull() & ~has_left_by_age(letters_removed)


def has_left_by_age(letters_removed: datetime | None) -> Column:
    """Return whether a message of ``located`` is dead, and its letter may have left the store for its age."""
    if letters_removed is None:
        return F.lit(False)
    is_old = (F.col("standing") == "dead") & (F.col("last_at") <= F.lit(letters_removed))
    return F.col("place").isNull() & is_old


def lost(missing: DataFrame, journal_head: DataFrame) -> DataFrame:
    """Return the unaccounted messages without a line in ``journal_head``, the lines written after that journal.

    ``journal_head`` must be read after the tables: each message that leaves a table leaves a line.
    """
    return missing.join(journal_head, PLACE_KEY, "left_anti")


def lost_facts(gone: DataFrame, grid: WindowGrid) -> DataFrame:
    """Return one row per window: its lost messages, those in doubt, and how many of both are open by the journal."""
    return gone.groupBy(grid.begin_of(F.col("origin_at")).alias("window")).agg(
        F.count_if(~is_in_doubt()).alias("lost"),
        F.count_if(is_in_doubt()).alias("in_doubt"),
        F.count_if(F.col("standing") == "open").alias("lost_open"),
    )


def is_in_doubt() -> Column:
    """Return whether a message of ``lost`` went over the broker without a row. The broker may have it."""
    return F.col("direct") > 0


def is_stuck(*, now: datetime, after_seconds: int) -> Column:
    """Return whether a message of ``located`` was sent more than ``after_seconds`` ago and still waits or runs."""
    limit = F.lit(now) - F.expr(f"INTERVAL {after_seconds} SECONDS")
    return (F.col("standing") == "open") & F.col("place").isNotNull() & (F.col("sent_at") < limit)


def stuck(whereabouts: DataFrame, *, now: datetime, after_seconds: int) -> DataFrame:
    """Return the stuck messages, the oldest first. So those that are listed stay the same while more become stuck."""
    found = whereabouts.where(is_stuck(now=now, after_seconds=after_seconds)).select(
        "stage", "message_id", "flow_id", "sent_at", "place", "due_at", "failures", "deaths"
    )
    return found.orderBy("sent_at", *found.columns)


def latest_first(found: DataFrame, at: str) -> DataFrame:
    """Return findings by their moment ``at``, the latest first. So a new one is listed beside many old ones.

    All columns take part, so the order is total.
    """
    return found.orderBy(F.desc(at), *found.columns)


def executed_twice(messages: DataFrame) -> DataFrame:
    """Return messages with two commits at one stage. A doubt is a commit that the mode ``best_effort`` may repeat."""
    return messages.where(F.col("commits") - F.col("doubts") > 1).select(
        "stage", "message_id", "flow_id", "origin_at", F.lit("two commits of one message").alias("how")
    )


def sent_twice(messages: DataFrame) -> DataFrame:
    """Return messages that one handler run can send only once, but that have two ids.

    They have the same flow, sender, cause, kind, target and ordinal.
    """
    place = ["flow_id", "stage", "send"]
    sent = messages.where(F.col("send").isNotNull() & F.col("sent_at").isNotNull())
    # The first grouping has no texts to fold, and leaves few rows for the second.
    twins = sent.groupBy(*place).agg(F.count("*").alias("ids")).where(F.col("ids") > 1)
    found = sent.join(twins, place, "left_semi").groupBy(*place)
    return found.agg(F.max("message_id").alias("message_id"), F.min("origin_at").alias("origin_at")).select(
        "stage", "message_id", "flow_id", "origin_at", F.lit("two messages from one send").alias("how")
    )


def edited_and_executed(messages: DataFrame) -> DataFrame:
    """Return edited messages that were also executed under their own id. ``sent_twice`` returns those edited twice."""
    return messages.where((F.col("edits") > 0) & (F.col("commits") > 0)).select(
        "stage", "message_id", "flow_id", "origin_at", F.lit("committed, and edited into another message").alias("how")
    )


def doubled(messages: DataFrame, *, has_twins: bool = True) -> DataFrame:
    """Return all findings of messages executed or sent twice, one row each.

    Without ``has_twins`` it is known that no message was sent twice, which takes longest to find.
    """
    executed = executed_twice(messages).unionByName(edited_and_executed(messages))
    return executed.unionByName(sent_twice(messages)) if has_twins else executed
