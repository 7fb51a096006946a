"""Read the flow ids and amounts of the rows of files. Flow ids are those that ``initiate`` makes of the same values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import NumericType, StringType, StructType

from stagepost.flow.amounts import DECIMALS, WHOLE_DIGITS, read_amount
from stagepost.flow.errors import DeclarationError, InvalidId, Undecodable
from stagepost.flow.texts import one_line
from stagepost.pipeline.files import FileFormat, chosen_separator, columns_shown, local_names, unique_files
from stagepost.pipeline.jobs.checking import NO_ID, Malformed, ReadSettings, RecordParser, UnreadableValue, values_of
from stagepost.pipeline.jobs.initiate import check_types
from stagepost.pipeline.jobs.records import BLOCK, FILE, PLACE, ROW, Records, read_records, record_batch
from stagepost.pipeline.session import time_zone
from stagepost.pipeline.transforms.identity import flow_id, text_of_value

VALUES = "_stagepost_values"
KEYED = pa.schema(
    [
        ("place", pa.string()),
        ("flow_id", pa.string()),
        ("amount", pa.decimal128(WHOLE_DIGITS + DECIMALS, DECIMALS)),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class RowFiles:
    """Files with rows, and the columns that are read of them. It is pickled to the tasks.

    ``flow_prefix``  flow ids are ``PREFIX:VALUE``; empty for values that are whole flow ids
    ``amount``       the column of the amount; None to compare ids alone
    """

    files: Sequence[str]
    file_format: FileFormat
    id_columns: Sequence[str]
    flow_prefix: str
    amount: str | None = None
    separator: str = ","

    @property
    def columns(self) -> list[str]:
        return [*self.id_columns, *([] if self.amount is None else [self.amount])]

    def check(self) -> list[str]:
        """Check what is known without Spark. Return the files, each once. Raises ``DeclarationError``."""
        if not self.flow_prefix and len(self.id_columns) != 1:
            raise DeclarationError(
                "several id columns need a flow prefix: flow ids are PREFIX:VALUE,VALUE. Name the one of the flows."
            )
        found = unique_files(self.files)
        names = local_names(found, self.file_format, chosen_separator(self.separator))
        if names is not None:
            self.check_names(names)
        return found

    def check_names(self, names: Sequence[str]) -> None:
        for column in self.columns:
            if column not in names:
                what = "amounts" if column == self.amount and column not in self.id_columns else "ids"
                raise DeclarationError(f"the rows have no column {column!r} for {what}; {columns_shown(names)}")


@contextmanager
def keyed_rows(spark: SparkSession, rows: RowFiles) -> Iterator[tuple[DataFrame, int]]:
    """Yield the rows as a frame of ``KEYED``, and their number.

    A row that cannot be compared has a ``reason``. Raises ``DeclarationError`` for unusable files or columns.
    """
    separator = chosen_separator(rows.separator)
    with read_records(spark, rows.check(), rows.file_format, separator) as records:
        if records.columns is not None:
            rows.check_names(records.columns)
        frame = records.frame
        if rows.file_format == "parquet":
            row = frame.schema[ROW].dataType
            assert isinstance(row, StructType)
            check_types(row, rows.id_columns, time_zone(spark))
            _check_amounts(row, rows.amount)
            # The tasks get no other column.
            nothing = F.struct(F.lit(0)).alias(ROW)
            frame = frame.select(FILE, BLOCK, PLACE, nothing, _values(row, rows.columns).alias(VALUES))
        yield (
            frame.mapInArrow(partial(_keyed_batches, rows, _settings(rows, records)), from_arrow_schema(KEYED)),
            (records.count),
        )


def _settings(rows: RowFiles, records: Records) -> ReadSettings:
    separator = chosen_separator(rows.separator)
    return ReadSettings(rows.file_format, rows.columns, rows.flow_prefix, separator, records.names, records.numbering)


def _values(row: StructType, columns: Sequence[str]) -> Column:
    return F.array(*(text_of_value(F.col(ROW)[column], row[column].dataType) for column in columns))


def _check_amounts(row: StructType, amount: str | None) -> None:
    if amount is not None and not isinstance(row[amount].dataType, NumericType | StringType):
        raise DeclarationError(
            f"column {amount!r} is of type {row[amount].dataType.simpleString()}; amounts are numbers, or texts such "
            "as 12.50"
        )


# In the tasks


def _keyed_batches(
    rows: RowFiles, reading: ReadSettings, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    reader = _RowReader(rows, reading)
    for batch in batches:
        records = zip(*map(values_of, batch.columns), strict=True)
        yield record_batch([row for row in (reader.read(*record) for record in records) if row is not None], KEYED)


@dataclass(slots=True)
class _RowReader:
    rows: RowFiles
    reading: ReadSettings
    parser: RecordParser = field(init=False)

    def __post_init__(self) -> None:
        self.parser = RecordParser(self.reading)

    def read(self, file: str, block: int | None, place: int, content: Any, more: Any) -> tuple[Any, ...] | None:
        """Read one record. Return None for the first line of a CSV file."""
        number = self.reading.numbering.number(file, block, place)
        if number == 0:
            return None
        where = f"{file}:{number}"
        try:
            values = self._values(file, content, more)
            flow = self._flow(values[: len(self.rows.id_columns)])
            amount = None if self.rows.amount is None else _amount(values[-1])
        except (Undecodable, InvalidId, Malformed, ValueError) as error:
            return where, None, None, one_line(str(error))
        return (where, flow, amount, None) if flow else (where, None, None, NO_ID)

    def _values(self, file: str, content: Any, more: Any) -> list[str | None]:
        if isinstance(more, UnreadableValue):
            raise Undecodable(f"Python cannot hold one of the row's values: {more.reason}")
        if self.rows.file_format == "parquet":
            values: list[str | None] = more
            return values
        return self.parser.parse(file, content, more).ids

    def _flow(self, values: Sequence[str | None]) -> str | None:
        return flow_id(self.rows.flow_prefix, values) if self.rows.flow_prefix else values[0]


def _amount(text: str | None) -> Decimal:
    if not text:
        raise ValueError("the row has no amount")
    return read_amount(text)
