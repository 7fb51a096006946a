"""Journals by value: what a test says happened, as the audit's transforms read it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_stagepost.schemas import TABLES

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def line(waypoint: str, message: str = "m", stage: str = "s", seconds: float = 0, **more: Any) -> dict[str, Any]:
    """One line of a journal, of the flow ``f`` that began at 0, unless it is said otherwise."""
    known = {"waypoint": waypoint, "message_id": message, "stage": stage, "at": at(seconds), "flow_id": "f"}
    # A message that goes over the broker without a row has an attempt with its sending already.
    attempt = 0 if waypoint in ("sent", "accepted") else 1
    return {"origin_at": BEGIN, "node": "worker@here:1", "attempt": attempt, **known, **more}


def sent(message: str, stage: str = "s", seconds: float = 0, **more: Any) -> dict[str, Any]:
    """A line of what a handler sent: the first request that ``c`` made, unless it is said otherwise."""
    return line("sent", message, stage, seconds, **{"cause_id": "c", "kind": "request", "ordinal": 0, **more})


def table(spark: SparkSession, name: str, lines: Iterable[dict[str, Any]]) -> DataFrame:
    """The columns that the lines say, of the type they have in that table; all of them where there is no line."""
    rows = list(lines)
    said = {column for row in rows for column in row}
    schema = TABLES[name]
    if rows:
        schema = StructType([field for field in schema if field.name in said])
    return spark.createDataFrame([tuple(row.get(column) for column in schema.fieldNames()) for row in rows], schema)


def journal(spark: SparkSession, lines: Iterable[dict[str, Any]]) -> DataFrame:
    """With every column, as the transforms expect."""
    schema = TABLES["journal"]
    rows = [tuple(row.get(column) for column in schema.fieldNames()) for row in lines]
    return spark.createDataFrame(rows, schema)
