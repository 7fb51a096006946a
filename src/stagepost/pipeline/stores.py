"""Read a store's tables as DataFrames."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_stagepost.schemas import TABLES
from stagepost.pipeline.session import slots


def read_table(
    spark: SparkSession, url: str, table: str, columns: Sequence[str] | None = None, **options: str | int
) -> DataFrame:
    """Read a table of the store at ``url``, with the data source's ``options``.

    If ``columns`` are given, only these are read. Spark would otherwise transfer all of them. The parts of the journal
    follow the slots of the session, which the data source is not told.
    """
    reader = spark.read.format("stagepost").options(url=url, table=table, slots=slots(spark), **options)
    if columns is not None:
        reader = reader.schema(StructType([TABLES[table][name] for name in columns]))
    return reader.load()
