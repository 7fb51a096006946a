"""The tables that can be read, and their columns, in Spark's types. Timestamps are UTC.

The schemas are types, not text. Spark parses text only in a session, and the source's readers have none.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stagepost.ports import export
from stagepost.ports.export import Kind

TYPES: Mapping[Kind, DataType] = {
    "text": StringType(),
    "integer": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "moment": TimestampType(),
    "envelope": StringType(),
}
TABLES = {
    table: StructType([StructField(name, TYPES[kind]) for name, kind in columns.items()])
    for table, columns in export.TABLES.items()
}
JOURNAL = TABLES["journal"]
QUEUE = TABLES["queue"]
DEAD_LETTERS = TABLES["dead_letters"]
PLACES = TABLES["places"]
OUTBOX = TABLES["outbox"]
QUARANTINE = TABLES["quarantine"]
