"""The journal, folded: one row a message and stage. All other facts of the audit are made from it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

SENT = ("accepted", "sent")


def per_message(journal: DataFrame) -> DataFrame:
    """
    ``sender``        the stage that sent it; null for what came from outside
    ``sent_at``       when it was accepted or sent; null where the journal no longer knows
    ``received_at``   when it was first claimed
    ``committed_at``, ``node``, ``ms``  of its commit: when, by whom, and how long the handler ran
    ``waypoints``     how many lines of the journal tell of it
    ``commits``       one where it was executed exactly once
    ``standing``      ``committed``, ``expired``, ``edited`` (another message went on in its place, with this one as its
                      cause), ``dead`` (and not replayed since), else ``open``
    """
    folded = journal.groupBy("stage", "message_id").agg(
        F.first("flow_id").alias("flow_id"),
        F.min("origin_at").alias("origin_at"),
        F.max("cause_id").alias("cause_id"),
        F.max(F.when(F.col("waypoint") == "sent", F.col("detail"))).alias("sender"),
        F.max("kind").alias("kind"),
        F.max("ordinal").alias("ordinal"),
        F.min(_at(*SENT)).alias("sent_at"),
        F.min(_at("received")).alias("received_at"),
        F.max(_at("committed")).alias("committed_at"),
        F.max(F.when(F.col("waypoint") == "committed", F.col("node"))).alias("node"),
        F.max(F.when(F.col("waypoint") == "committed", F.col("ms"))).alias("ms"),
        F.count("*").alias("waypoints"),
        _count("committed").alias("commits"),
        _count("failed").alias("failures"),
        _count("died").alias("deaths"),
        _count("dead").alias("buried"),
        _count("replayed").alias("replays"),
        _count("edited").alias("edits"),
        _count("expired").alias("expiries"),
    )
    return folded.withColumn(
        "standing",
        F.when(F.col("commits") > 0, "committed")
        .when(F.col("edits") > 0, "edited")
        .when(F.col("expiries") > 0, "expired")
        .when(F.col("buried") > F.col("replays"), "dead")
        .otherwise("open"),
    )


def stage_shown() -> Column:
    """Replies to those who asked outside any stage under one name: each process has an address of its own."""
    return F.regexp_replace("stage", r"\.reply\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", ".reply")


def _at(*waypoints: str) -> Column:
    return F.when(F.col("waypoint").isin(*waypoints), F.col("at"))


def _count(waypoint: str) -> Column:
    return F.count_if(F.col("waypoint") == waypoint)
