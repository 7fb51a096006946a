"""Rows of a run that claim the same id: the first, by file and record, wins."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

# Of its 64 hex digits; enough to tell two contents apart.
DIGEST_SHOWN = 16


def first_of_each(checked: DataFrame) -> DataFrame:
    """Adds ``outcome``: ``candidate`` for the first row of each ``key``, ``repeated`` for one with the same content as
    the first, ``quarantined`` for one with other content or with a ``reason`` of its own."""
    # A row without a key stands alone: grouped by their lack of one, they would all land in one task.
    alone = F.concat(F.col("file"), F.lit(":"), F.col("record").cast("string"))
    same_key = Window.partitionBy(F.coalesce("key", alone)).orderBy("file", "record")
    conflict = F.concat(
        F.lit("id-conflict: this content has the digest "),
        F.left("digest", F.lit(DIGEST_SHOWN)),
        F.lit("…, but record "),
        F.col("first_record").cast("string"),
        F.lit(" of "),
        F.col("first_file"),
        F.lit(", which has the same id, has "),
        F.left("first_digest", F.lit(DIGEST_SHOWN)),
        F.lit("…"),
    )
    ranked = checked.select(
        "*",
        F.row_number().over(same_key).alias("position"),
        F.first("digest").over(same_key).alias("first_digest"),
        F.first("file").over(same_key).alias("first_file"),
        F.first("record").over(same_key).alias("first_record"),
    )
    is_conflict = (F.col("position") > 1) & (F.col("digest") != F.col("first_digest"))
    judged = ranked.withColumn("reason", F.coalesce("reason", F.when(is_conflict, conflict)))
    outcome = (
        F.when(F.col("reason").isNotNull(), "quarantined")
        .when(F.col("position") == 1, "candidate")
        .otherwise("repeated")
    )
    return judged.withColumn("outcome", outcome).drop("position", "first_digest", "first_file", "first_record")
