"""The tables that can be read, and their columns. Timestamps are UTC.

The schemas are types, not text. Spark parses text only in a session, and the source's readers have none.
"""

from __future__ import annotations

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

TEXT = StringType()
INT = IntegerType()
LONG = LongType()
DOUBLE = DoubleType()
MOMENT = TimestampType()


def table(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


JOURNAL = table(
    id=LONG,
    waypoint=TEXT,
    at=MOMENT,
    node=TEXT,
    stage=TEXT,
    message_id=TEXT,
    flow_id=TEXT,
    attempt=INT,
    origin_at=MOMENT,
    cause_id=TEXT,
    kind=TEXT,
    ordinal=INT,
    ms=DOUBLE,
    bytes=LONG,
    detail=TEXT,
)

QUEUE = table(
    place=TEXT,
    id=LONG,
    stage=TEXT,
    message_id=TEXT,
    flow_id=TEXT,
    failures=INT,
    deaths=INT,
    deliveries=INT,
    owner=TEXT,
    origin_at=MOMENT,
    due_at=MOMENT,
    envelope=TEXT,
)

DEAD_LETTERS = table(
    id=LONG,
    message_id=TEXT,
    flow_id=TEXT,
    stage=TEXT,
    reason=TEXT,
    causes=TEXT,
    stack=TEXT,
    fingerprint=TEXT,
    failures=INT,
    deaths=INT,
    deliveries=INT,
    origin_at=MOMENT,
    dead_at=MOMENT,
    node=TEXT,
    declared_at=TEXT,
    envelope=TEXT,
)

# Every table that a message can be in, without its envelope.
PLACES = table(place=TEXT, stage=TEXT, message_id=TEXT, due_at=MOMENT)

TABLES = {"journal": JOURNAL, "queue": QUEUE, "dead_letters": DEAD_LETTERS, "places": PLACES}
