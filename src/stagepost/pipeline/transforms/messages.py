"""Fold the journal into one row per message and stage, from which the audit derives all other facts."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

SENT = ("accepted", "sent", "arrived")


def per_message(journal: DataFrame) -> DataFrame:
    """Return one row per message and stage, with its facts from the journal.

    ``sender``        the stage that sent it; null for a message from outside
    ``sent_at``       when it was accepted or sent, or arrived from a broker; null if the journal no longer has it
    ``received_at``   when it was first claimed
    ``committed_at``, ``node``, ``ms``  its commit: the time, the node, and how long the handler ran
    ``waypoints``     the number of its lines in the journal
    ``commits``       1 if it was executed exactly once
    ``standing``      ``committed``, ``confirmed`` (it left, and the broker has it), ``expired``, ``edited`` (another
                      message replaced it, with this one as its cause), ``dead`` (and not replayed since), else ``open``
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
        _count("confirmed").alias("confirms"),
    )
    return folded.withColumn(
        "standing",
        F.when(F.col("commits") > 0, "committed")
        .when(F.col("confirms") > 0, "confirmed")
        .when(F.col("edits") > 0, "edited")
        .when(F.col("expiries") > 0, "expired")
        .when(F.col("buried") > F.col("replays"), "dead")
        .otherwise("open"),
    )


def stage_shown() -> Column:
    """Return the stage, with one name for all replies to callers outside stages. Each process has its own address."""
    return F.regexp_replace("stage", r"\.reply\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(@.*)?$", ".reply")


def _at(*waypoints: str) -> Column:
    return F.when(F.col("waypoint").isin(*waypoints), F.col("at"))


def _count(waypoint: str) -> Column:
    return F.count_if(F.col("waypoint") == waypoint)
