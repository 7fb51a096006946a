"""Latency of hops: the wait in the queue, and the run of the handler."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.transforms.messages import stage_shown

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def hop_latency(messages: DataFrame) -> DataFrame:
    """Return one row a stage: ``wait_…`` from sent to first claimed, ``run_…`` of the committed attempt's handler.

    Both are in milliseconds. ``backwards`` counts messages received before they were sent, because clocks disagree.
    """
    wait = _milliseconds("sent_at", "received_at")
    done = messages.where(F.col("standing") == "committed")
    hops = done.groupBy(stage_shown().alias("stage")).agg(
        F.count("*").alias("messages"),
        F.count_if(wait < 0).alias("backwards"),
        *(F.percentile_approx(wait, share).alias(f"wait_{name}") for name, share in PERCENTILES.items()),
        *(F.percentile_approx("ms", share).alias(f"run_{name}") for name, share in PERCENTILES.items()),
    )
    return hops.orderBy("stage")


def _milliseconds(begin: str, end: str) -> Column:
    return (F.unix_micros(F.col(end)) - F.unix_micros(F.col(begin))) / F.lit(1000.0)
