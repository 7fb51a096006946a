"""Status of flows and messages, and the work of each node."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.transforms.losses import KEY
from stagepost.pipeline.transforms.messages import stage_shown


def flows(messages: DataFrame) -> DataFrame:
    """Return one row: the number of flows, and of those that completed, ended in a dead letter, or are under way."""
    by_flow = messages.groupBy("flow_id").agg(
        F.max((F.col("standing") == "open").cast("int")).alias("open"),
        F.max((F.col("standing") == "dead").cast("int")).alias("dead"),
    )
    return by_flow.agg(
        F.count("*").alias("flows"),
        F.count_if((F.col("open") == 0) & (F.col("dead") == 0)).alias("completed"),
        F.count_if((F.col("open") == 0) & (F.col("dead") == 1)).alias("dead"),
        F.count_if(F.col("open") == 1).alias("under_way"),
    )


def stages(messages: DataFrame) -> DataFrame:
    """Return one row a stage: the number of messages sent to it, and of each outcome."""
    return (
        messages.groupBy(stage_shown().alias("stage"))
        .agg(
            F.count("*").alias("sent"),
            F.count_if(F.col("standing").isin("committed", "confirmed")).alias("committed"),
            F.count_if(F.col("standing") == "expired").alias("expired"),
            F.count_if(F.col("standing") == "dead").alias("dead"),
            F.count_if(F.col("standing") == "edited").alias("edited"),
            F.count_if(F.col("standing") == "open").alias("open"),
            F.sum("failures").alias("failures"),
            F.sum("deaths").alias("deaths"),
        )
        .orderBy("stage")
    )


def stuck(messages: DataFrame, queue: DataFrame, *, now: datetime, after_seconds: int) -> DataFrame:
    """Return messages that were sent more than ``after_seconds`` ago and still wait or run, the oldest first."""
    waiting = messages.where(F.col("standing") == "open").join(queue.select(*KEY, "place", "due_at"), KEY)
    limit = F.lit(now) - F.expr(f"INTERVAL {after_seconds} SECONDS")
    return (
        waiting.where(F.col("sent_at") < limit)
        .select("stage", "message_id", "flow_id", "sent_at", "place", "due_at", "failures", "deaths")
        .orderBy("sent_at")
    )


def letter_groups(dead_letters: DataFrame) -> DataFrame:
    """Return dead letters grouped by failure and stage, the largest group first, with the latest one as a sample."""
    return (
        dead_letters.groupBy("fingerprint", "stage", "reason")
        .agg(
            F.count("*").alias("letters"),
            F.min("dead_at").alias("first_at"),
            F.max("dead_at").alias("last_at"),
            F.max_by("id", "dead_at").alias("sample_id"),
            F.max_by("causes", "dead_at").alias("sample"),
        )
        .orderBy(F.desc("letters"), "fingerprint", "stage")
    )


def work(messages: DataFrame) -> DataFrame:
    """Return the number of commits per node."""
    return (
        messages.where(F.col("standing") == "committed")
        .groupBy("node")
        .agg(F.count("*").alias("committed"))
        .orderBy("node")
    )
