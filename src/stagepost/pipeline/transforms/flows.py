"""Status of flows, and messages that were sent twice."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.transforms.windows import WindowGrid


def flow_facts(messages: DataFrame, grid: WindowGrid) -> DataFrame:
    """Return one row per window of origin: its flows, and how many completed, ended in a dead letter, or are under way.

    ``twins`` counts the sends of one handler run that made two messages. Flows are told apart by a digest of 64 bits.
    Late copies alone are no flow.
    """
    told = F.when(F.col("send").isNotNull() & F.col("sent_at").isNotNull(), F.xxhash64("stage", "send"))
    narrow = messages.where(F.col("standing") != "copy").select(
        F.xxhash64("flow_id").alias("flow"),
        F.coalesce(told, F.xxhash64("stage", "message_id")).alias("send"),
        told.isNotNull().cast("bigint").alias("is_send"),
        "origin_at",
        (F.col("standing") == "open").cast("int").alias("open"),
        (F.col("standing") == "dead").cast("int").alias("dead"),
    )
    # One exchange serves both levels, because a flow's sends are where the flow is.
    sends = (
        narrow.repartition("flow")
        .groupBy("flow", "send")
        .agg(
            F.min("origin_at").alias("origin_at"),
            F.max("open").alias("open"),
            F.max("dead").alias("dead"),
            F.sum("is_send").alias("ids"),
        )
    )
    by_flow = sends.groupBy("flow").agg(
        F.min("origin_at").alias("origin_at"),
        F.max("open").alias("open"),
        F.max("dead").alias("dead"),
        F.count_if(F.col("ids") > 1).alias("twins"),
    )
    return by_flow.groupBy(grid.begin_of(F.col("origin_at")).alias("window")).agg(
        F.count("*").alias("flows"),
        F.count_if((F.col("open") == 0) & (F.col("dead") == 0)).alias("completed"),
        F.count_if((F.col("open") == 0) & (F.col("dead") == 1)).alias("dead_flows"),
        F.count_if(F.col("open") == 1).alias("under_way"),
        F.sum("twins").alias("twins"),
    )


def work(messages: DataFrame) -> DataFrame:
    """Return the number of committed messages per digest of a node."""
    committed = messages.where(F.col("standing") == "committed")
    return committed.groupBy("node_key").agg(F.count("*").alias("committed"))
