"""Which record of its file a row is, counted from 1, without reading a file in one piece.

Spark reads files in blocks and numbers rows only within a task. So the rows of each block are counted first; a row's
number is then the sum of the blocks before its own, and its place in that.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

FILE = "_stagepost_file"
BLOCK = "_stagepost_block"
PLACE = "_stagepost_place"
RECORD = "_stagepost_record"


def placed(read: DataFrame, *columns: Column) -> DataFrame:
    """The columns, and a row's file, block, and place: to be put on directly where files are read, for it follows
    Spark's own order."""
    # An address, in which a plus sign is one; url_decode takes it for a blank.
    address = F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B"))
    return read.select(
        *columns,
        F.regexp_replace(F.url_decode(address), "^file:/*", "/").alias(FILE),
        F.col("_metadata.file_block_start").alias(BLOCK),
        F.monotonically_increasing_id().alias(PLACE),
    )


def blocks(rows: DataFrame) -> DataFrame:
    """One row a block: where its rows' places begin, how many they are, and how many of the file come before it."""
    counted = rows.groupBy(FILE, BLOCK).agg(F.min(PLACE).alias("first_place"), F.count("*").alias("rows"))
    before = Window.partitionBy(FILE).orderBy(BLOCK).rowsBetween(Window.unboundedPreceding, -1)
    return counted.withColumn("rows_before", F.coalesce(F.sum("rows").over(before), F.lit(0)))


def numbered(rows: DataFrame, counted_blocks: DataFrame) -> DataFrame:
    """Rows with ``_stagepost_file`` and ``_stagepost_record`` in place of what ``placed`` put on."""
    known = F.broadcast(counted_blocks.drop("rows"))
    joined = rows.join(known, [FILE, BLOCK])
    record = F.col("rows_before") + F.col(PLACE) - F.col("first_place") + 1
    return joined.withColumn(RECORD, record).drop(BLOCK, PLACE, "rows_before", "first_place")
