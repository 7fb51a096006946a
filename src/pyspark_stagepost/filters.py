"""Turn Spark's filters into conditions of a store, where both mean the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from stagepost.ports.export import TABLES, Condition, Kind, Operator

COMPARISONS: dict[type[Filter], Operator] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
# Longer lists are left to Spark.
VALUES_MAX = 100
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def conditions(table: str, filters: Sequence[Filter]) -> Iterator[Condition]:
    """Yield the conditions that follow from the filters. A filter that has no exact condition yields none."""
    for each in filters:
        # Each kind of filter has an attribute, which their common class does not declare.
        (name, *inner) = getattr(each, "attribute", ("", ""))
        kind = TABLES[table].get(name)
        if kind is None or inner:
            continue
        match each:
            case IsNull():
                yield Condition(name, "is null")
            case IsNotNull():
                yield Condition(name, "is not null")
            case EqualNullSafe(value=None):
                yield Condition(name, "is null")
            case In(value=values):
                # No value equals NULL.
                found = [_value(kind, value) for value in values if value is not None]
                if found and len(found) <= VALUES_MAX and None not in found:
                    yield Condition(name, "in", found)
            case _ if type(each) in COMPARISONS:
                value = _value(kind, each.value)  # type: ignore[attr-defined] # all comparisons have one
                if value is not None:
                    yield Condition(name, COMPARISONS[type(each)], value)


def _value(kind: Kind, value: object) -> str | int | float | None:
    """Return the value as the store compares it; None where the store compares it otherwise than Spark does."""
    match kind, value:
        case "text", str():
            return value
        case "integer" | "long", int() if not isinstance(value, bool):
            return value
        case "double", float() if math.isfinite(value):
            return value
        case "moment", datetime() if value.tzinfo is not None:
            return (value - EPOCH) // MICROSECOND
    return None
