"""The books, balanced: per window of origin, what was sent against what became of it.

Windows are of the time the *flow* began, so all hops of a flow fall into one, and a slow hop shifts nothing. A window
is final when every flow that began in it had time enough to end; until then what is open in it is merely under way.
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
    """One row a window: sent = committed + expired + dead + edited + open, and of the dead and open ones, lost.

    ``digest`` is over stages and message ids: with ``sent`` beside it, it compares two journals of one window.
    """
    marked = messages.join(lost.select(*KEY, F.lit(1).alias("is_lost")), KEY, "left")
    marked = marked.join(doubled.select(*KEY).distinct().withColumn("is_doubled", F.lit(1)), KEY, "left")
    width = f"{window_seconds} seconds"
    windows = marked.groupBy(F.window("origin_at", width).alias("w")).agg(
        F.count_distinct("flow_id").alias("flows"),
        F.count("*").alias("sent"),
        F.count_if(F.col("standing") == "committed").alias("committed"),
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
