"""The types that id columns may have. Spark is not needed."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DataType, DateType, DoubleType, LongType, StringType, StructType, TimestampType

from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.jobs.initiate import check_types


def check(kind: DataType, zone: str = "UTC") -> None:
    check_types(StructType().add("key", kind), ["key"], zone)


@pytest.mark.parametrize("kind", [StringType(), LongType(), DateType()])
def test_a_value_that_has_one_text_everywhere_makes_an_id_in_any_zone(kind: DataType) -> None:
    check(kind, "Europe/Berlin")


def test_a_float_makes_no_id() -> None:
    with pytest.raises(DeclarationError, match="column 'key' is of type double; ids are made of texts"):
        check(DoubleType())


def test_timestamps_make_ids_in_utc_only() -> None:
    """Their text follows the session's zone, so a second session would start the same rows again."""
    check(TimestampType(), "UTC")
    with pytest.raises(
        DeclarationError, match=r"the time zone Europe/Berlin: .* Set spark\.sql\.session\.timeZone=UTC"
    ):
        check(TimestampType(), "Europe/Berlin")
