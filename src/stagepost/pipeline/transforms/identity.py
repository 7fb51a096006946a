"""Flow ids from the values of id columns, and message ids in Spark's SQL, equal to those that Python makes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType

from stagepost.flow.ids import NAMESPACE, SEPARATOR


def flow_id(prefix: str, values: Sequence[str | None]) -> str | None:
    """Return ``prefix:value`` or ``prefix:value,value``, or None if a value is missing.

    A comma or a percent sign within a value is escaped, so that ("a,b", "c") and ("a", "b,c") stay two ids.
    """
    if not all(values):
        return None
    return f"{prefix}:{','.join(str(value).replace('%', '%25').replace(',', '%2C') for value in values)}"


def text_of_value(value: Column, kind: DataType) -> Column:
    """Return a column's value as the text that ids are made of, whatever the settings of the session are."""
    if isinstance(kind, DecimalType):
        # Without ANSI mode, Spark's cast gives 0E-18 for the zero of a decimal(38,18).
        return F.replace(F.format_number(value, kind.scale), F.lit(","), F.lit(""))
    return value.cast("string")


def message_id(flow: Column, target: str, ordinal: int = 0) -> Column:
    """Return the id that ``stagepost.flow.ids.from_key`` makes."""
    return uuid5(NAMESPACE, F.concat(flow, F.lit(f"{SEPARATOR}{target}{SEPARATOR}{ordinal}")))


def uuid5(namespace: uuid.UUID, name: Column) -> Column:
    """Return a UUID after RFC 9562, section 5.5: SHA-1 over namespace and name, with version and variant set."""
    digest = F.sha1(F.concat(F.lit(namespace.bytes), F.encode(name, "UTF-8")))
    variant = F.substring(F.lit("89ab" * 4), F.conv(F.substring(digest, 17, 1), 16, 10).cast("int") + 1, 1)
    text = F.concat_ws(
        "-",
        F.substring(digest, 1, 8),
        F.substring(digest, 9, 4),
        F.concat(F.lit("5"), F.substring(digest, 14, 3)),
        F.concat(variant, F.substring(digest, 18, 3)),
        F.substring(digest, 21, 12),
    )
    # concat_ws would make a text of nulls.
    return F.when(digest.isNotNull(), text)
