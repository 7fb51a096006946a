"""Balance of the books: sent messages against their outcomes, per window of origin.

A window holds the flows that *began* in it, so all hops of a flow fall into one window, however slow they are. A window
is final when every flow that began in it has had time to end. Until then its open messages count as under way.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.transforms.losses import KEY


def balance(
    messages: DataFrame,
    lost: DataFrame,
    doubled: DataFrame,
    *,
    window_seconds: int,
    horizon: datetime,
    late_seconds: int,
) -> DataFrame:
    """Return one row a window: sent = committed + expired + dead + edited + open. ``lost`` are some of dead and open.

    A message that left the store counts as committed once the broker has confirmed it. ``digest`` covers stages and
    message ids. Two journals agree on a window if ``digest`` and ``sent`` are equal.
    """
    marked = messages.join(lost.select(*KEY, F.lit(1).alias("is_lost")), KEY, "left")
    marked = marked.join(doubled.select(*KEY).distinct().withColumn("is_doubled", F.lit(1)), KEY, "left")
    width = f"{window_seconds} seconds"
    windows = marked.groupBy(F.window("origin_at", width).alias("w")).agg(
        F.count_distinct("flow_id").alias("flows"),
        F.count("*").alias("sent"),
        F.count_if(F.col("standing").isin("committed", "confirmed")).alias("committed"),
        F.count_if(F.col("standing") == "expired").alias("expired"),
        F.count_if(F.col("standing") == "dead").alias("dead"),
        F.count_if(F.col("standing") == "edited").alias("edited"),
        F.count_if(F.col("standing") == "open").alias("open"),
        F.coalesce(F.sum("is_lost"), F.lit(0)).alias("lost"),
        F.coalesce(F.sum("is_doubled"), F.lit(0)).alias("doubled"),
        F.bit_xor(F.xxhash64("stage", "message_id")).alias("digest"),
    )
    end = F.col("w.end") + F.expr(f"INTERVAL {late_seconds} SECONDS")
    return windows.select(
        F.col("w.start").alias("window"),
        "flows",
        "sent",
        "committed",
        "expired",
        "dead",
        "edited",
        "open",
        "lost",
        "doubled",
        "digest",
        F.when(end <= F.lit(horizon), "final").otherwise("provisional").alias("state"),
    ).orderBy("window")
