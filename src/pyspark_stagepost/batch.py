"""Read a table once, in tasks: each reads a range of the journal, or one of them the whole of another table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_stagepost.arrow import record_batch
from pyspark_stagepost.division import divide
from pyspark_stagepost.filters import conditions
from pyspark_stagepost.options import DIVIDED, Options, check_columns, plain_errors
from stagepost.flow.errors import DeclarationError
from stagepost.ports.export import Condition, Export, TableQuery
from stagepost.ports.journal import WHOLE, Bounds, Position, Span


@dataclass
class Range(InputPartition):
    """The part of a table that one task reads.

    ``bounds``  None for the whole table
    ``span``    limits the journal
    ``floor``   no line of the span is purged while the purge mark is not beyond it
    """

    bounds: Bounds | None
    span: Span = WHOLE
    floor: int = 0


class StagepostReader(DataSourceReader):
    """Read the columns of the schema. Spark applies the filters."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(options, schema)
        self._options = options
        self._schema = schema
        self._conditions: list[Condition] = []

    def partitions(self) -> Sequence[InputPartition]:
        if self._options.table != DIVIDED:
            return [Range(None)]
        with plain_errors():
            return ranges(self._options, self._options.span)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        query = TableQuery(self._options.table, self._schema.fieldNames(), self._conditions, partition.span)
        return read_batches(self._options.store, query, partition, self._schema)


class PushingReader(StagepostReader):
    """Read fewer rows where a filter allows it. Spark refuses such a reader unless a setting allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._conditions = list(conditions(self._options.table, filters))
        # Spark applies each filter again, so a condition only has to keep the rows that the filter keeps.
        return list(filters)


def ranges(options: Options, span: Span) -> list[InputPartition]:
    """Return the parts of the journal within the span, which all see the rows that the store has now.

    Raises ``DeclarationError`` for a position of another epoch, and for a begin below the purge mark.
    """
    store = options.store
    mark = store.purged_until()
    bounds = store.journal_bounds(span)
    if options.lines is not None:
        first, behind = options.lines
        bounds = bounds._replace(low=max(bounds.low, first), high=min(bounds.high, behind))
    # The whole journal is that of now, without the lines that were purged before.
    floor = (mark or 0) if span.begin is None else span.begin
    check_purged(mark, floor)
    parts = divide(bounds, store.sample_journal, options.partitions, options.slots)
    return [Range(each, span, floor) for each in parts]


def read_batches(store: Export, query: TableQuery, part: Range, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the part as Spark takes them. Raises ``DeclarationError`` if they are purged meanwhile."""
    target = to_arrow_schema(schema, timezone="UTC")
    with plain_errors():
        for columns in store.read(query, part.bounds):
            yield record_batch(columns, target)
        if query.table == DIVIDED:
            # A new snapshot: the one of the rows may be older than the purge.
            check_purged(store.purged_until(), part.floor)


def check_purged(mark: Position | None, begin: int) -> None:
    """Raise ``DeclarationError`` if the purge mark has passed the position ``begin``."""
    if mark is not None and mark > begin:
        raise DeclarationError(
            f"this read of the journal begins at {begin}, and the journal was purged up to {mark}: lines between the "
            f"two are no longer in the store. Begin with the option from={mark}, or read those lines from the archive."
        )
