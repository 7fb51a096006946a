"""Read a store's tables as DataFrames, over Arrow.

    spark.read.format("stagepost").option("url", "sqlite:///payments.db").option("table", "journal").load()

Options:

``url``            the store; for ``journal`` and ``dead_letters``
``table``          ``journal``, ``queue`` (messages that wait or run, at one moment), ``dead_letters``, or
                   ``places`` (the ids in the queue and in the dead letters, at one moment)
``numPartitions``  ``journal``: the number of tasks, which read ranges of ids; default 4. All see the rows that the
                   driver saw. One task reads each other table, because rows move between these
``from``           ``journal``: only rows from this position on
``until``          ``journal``: only rows before it. Two reads with the same ``until`` see the same rows. Without it, a
                   read sees all rows that have committed when it begins

Positions are the text that ``Journal.position`` returns: the store's epoch and a number. The number is the id of a row
in SQLite, and of a transaction in PostgreSQL. A restore or a promotion begins a new epoch, and positions from before it
are refused. A number alone belongs to the current epoch.

Name columns with ``.schema("stage string, at timestamp")`` to read only these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_stagepost.schemas import TABLES
from stagepost.flow.errors import DeclarationError
from stagepost.ports.export import Export
from stagepost.ports.journal import Bounds, Position, Span
from stagepost.ports.registry import driver_of

PARTITIONS = 4
DIVIDED = "journal"
OPTIONS = {"url", "table", "numpartitions", "from", "until"}


@dataclass(frozen=True, slots=True)
class Options:
    """The validated options of one read."""

    store: Export
    table: str
    partitions: int
    span: Span

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """Check the options, whose names Spark has put in lower case. Raises ``DeclarationError`` for a wrong one."""
        options = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(options) - OPTIONS)
        if unknown:
            raise DeclarationError(
                f"the source stagepost has no option {unknown[0]!r}; it has {', '.join(sorted(OPTIONS))}"
            )
        if "url" not in options:
            raise DeclarationError('the source stagepost needs .option("url", "sqlite:///payments.db")')
        table = options.get("table", "journal")
        if table not in TABLES:
            raise DeclarationError(f"the source stagepost has no table {table!r}; it has {', '.join(TABLES)}")
        if table != DIVIDED and {"from", "until"} & set(options):
            raise DeclarationError(
                f"the options from and until are for the journal, and {table} is read whole; leave them out"
            )
        return cls(
            driver_of(options["url"]).export(options["url"]),
            table,
            _count("numPartitions", options.get("numpartitions", str(PARTITIONS))),
            Span(_position("from", options.get("from")), _position("until", options.get("until"))),
        )


@dataclass
class Range(InputPartition):
    """The part of a table that one task reads. ``bounds`` is None for the whole table."""

    bounds: Bounds | None


class StagepostSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "stagepost"

    def schema(self) -> StructType:
        return TABLES[Options.read(self.options).table]

    def reader(self, schema: StructType) -> DataSourceReader:
        return StagepostReader(Options.read(self.options), schema)


class StagepostReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        table = TABLES[options.table]
        known = table.fieldNames()
        for field in schema:
            if field.name not in known:
                raise DeclarationError(f"{options.table} has no column {field.name!r}; it has {', '.join(known)}")
            declared = table[field.name].dataType
            if field.dataType != declared:
                raise DeclarationError(
                    f"column {field.name} of {options.table} is a {declared.simpleString()}, not a "
                    f"{field.dataType.simpleString()}; read it as it is, and cast it"
                )
        self._columns = [known.index(name) for name in schema.fieldNames()]

    def partitions(self) -> Sequence[InputPartition]:
        if self._options.table != DIVIDED:
            return [Range(None)]
        bounds = self._options.store.journal_bounds(self._options.span)
        ranges = divide(bounds.low, bounds.high, self._options.partitions) or [(0, 0)]
        return [Range(bounds._replace(low=low, high=high)) for low, high in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        target = to_arrow_schema(self._schema, timezone="UTC")
        for rows in self._options.store.read_rows(self._options.table, partition.bounds, self._options.span):
            columns = list(zip(*rows, strict=True))
            arrays = [pa.array(columns[at], type=field.type) for at, field in zip(self._columns, target, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=target)


def divide(low: int, high: int, parts: int) -> list[tuple[int, int]]:
    """Return at most ``parts`` ranges of about equal width, none empty, from ``low`` up to but not with ``high``."""
    width = -(-(high - low) // parts)
    return [(at, min(at + width, high)) for at in range(low, high, width)] if width > 0 else []


def _position(name: str, value: str | None) -> Position | None:
    found = None if value is None else Position.read(value)
    if found is None and value is not None:
        raise DeclarationError(
            f"option {name} of the source stagepost must be a position of the journal, as Journal.position gives it, "
            f"or a whole number, not {value!r}"
        )
    return found


def _count(name: str, value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise DeclarationError(f"option {name} of the source stagepost must be a whole number above 0, not {value!r}")
    return int(value)
