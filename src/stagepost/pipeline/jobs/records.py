"""Read files into records with their file and their number in it, counted from 1.

Spark cuts files into blocks, and numbers rows only within a task. So a first reading counts the rows of each block. A
record's number is the count of all blocks before its own, plus its place in its block. Both readings must cut a
file at the same places. Spark derives the size of blocks from its present number of cores, so that number is fixed
before the first reading.

One task reads a file whole if a record in it does not end with its line: a quoted cell of CSV, or an array of JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from stagepost.flow.errors import DeclarationError, StagepostError
from stagepost.pipeline import json_records
from stagepost.pipeline.csv_records import cut
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error
from stagepost.pipeline.files import (
    FIRST_LINE_BYTES_MAX,
    FileFormat,
    Head,
    check_folders,
    escaped,
    is_remote,
    names_of,
    with_folders,
)
from stagepost.pipeline.json_records import is_of_several_lines
from stagepost.pipeline.session import slots, with_settings

FILE = "_stagepost_file"
BLOCK = "_stagepost_block"
PLACE = "_stagepost_place"
# The bytes of a record of CSV or JSON, and the reason why it cannot be accepted.
TEXT = "_stagepost_text"
REASON = "_stagepost_reason"
# All columns of a Parquet file in one struct, because their names may equal those of the pipeline.
ROW = "_stagepost_row"
CUT = pa.schema(
    [(FILE, pa.string()), (BLOCK, pa.int64()), (PLACE, pa.int64()), (TEXT, pa.binary()), (REASON, pa.string())]
)
IN_PLACE = (FILE, BLOCK, PLACE)
# The size of a batch of cut records on its way to Spark, and of the rows that one commit writes.
CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_ROW_BYTES = 256
T = TypeVar("T")
BLOCKS_SETTING = "spark.sql.files.minPartitionNum"


class FileChanged(StagepostError):
    """A file was changed between its count and its reading."""

    code = "file-changed"


@dataclass(frozen=True, slots=True)
class Numbering:
    """The numbering of records, which is pickled to the tasks.

    ``offsets`` has the first number of each block, by file and by the block's first byte. ``folders`` has the values
    that the names of a file's folders give to all of its rows.
    """

    offsets: Mapping[tuple[str, int], int]
    folders: Mapping[str, Mapping[str, str | None]]

    def number(self, file: str, block: int | None, place: int) -> int:
        """Return a record's number, 0 for the first line of a CSV file. Raises ``FileChanged`` for an unknown block."""
        if block is None:
            return place
        offset = self.offsets.get((file, block))
        if offset is None:
            raise FileChanged(
                f"the block of {file} that begins at byte {block} was not there when the file was counted"
            )
        return offset + place


@dataclass(frozen=True, slots=True)
class Records:
    """The counted records of some files.

    ``frame`` has the columns of ``CUT``, or for Parquet ``FILE``, ``BLOCK``, ``PLACE`` and ``ROW``. ``count`` leaves
    out the first lines of CSV files. ``names`` are the names of a CSV file's cells. ``columns`` are all columns of a
    row, with those that the names of folders add, and None for JSON.
    """

    frame: DataFrame
    count: int
    numbering: Numbering
    names: Sequence[str] = ()
    columns: Sequence[str] | None = None


@contextmanager
def read_records(
    spark: SparkSession, files: Sequence[str], file_format: FileFormat, separator: str
) -> Iterator[Records]:
    """Yield the records of ``files``, counted. Spark deletes its copies on the executors' disks after the block.

    ``files`` are as ``unique_files`` returns them. Raises ``DeclarationError`` for files that cannot be read.
    """
    paths = [literal(file) for file in files]
    with ExitStack() as kept:
        if spark.conf.get(BLOCKS_SETTING, None) is None:
            kept.enter_context(with_settings(spark, {BLOCKS_SETTING: str(slots(spark))}))
        with _readable(files, file_format):
            _check_remote(spark, [file for file in files if is_remote(file)])
            if file_format == "parquet":
                records = _read_parquet(spark, paths)
            else:
                records = _read_lines(spark, paths, file_format, separator, kept)
        if file_format == "csv" and not records.names:
            raise DeclarationError(f"{files[0]}: its first line must name the columns, each once; it is empty")
        yield records


@contextmanager
def _readable(files: Sequence[str], file_format: FileFormat) -> Iterator[None]:
    """Turn Spark's errors about the files into a ``DeclarationError`` that names the files."""
    try:
        yield
    except (OSError, *SPARK_ERRORS) as error:
        raise DeclarationError(
            f"{', '.join(files)} cannot be read as {file_format}: {describe_error(error)}"
        ) from error


def _check_remote(spark: SparkSession, files: Sequence[str]) -> None:
    """Raise ``DeclarationError`` for files of addresses that Spark would skip without an error."""
    for file in files:
        every = spark.read.option("recursiveFileLookup", "true").text(file).inputFiles()
        root = file.partition("://")[2].strip("/").split("/")
        folders = {each: _between(root, each.partition("://")[2].strip("/").split("/")) for each in every}
        check_folders(file, folders)


def _between(root: Sequence[str], file: Sequence[str]) -> Sequence[str]:
    """Return the folders between a root, whose parts may be patterns, and a file."""
    return file[len(root) : -1]


def literal(file: str) -> str:
    """Return the path with its special characters escaped, because Spark treats every path as a pattern."""
    return file if is_remote(file) else escaped(file)


def _file() -> Column:
    # url_decode would turn a plus sign of the address into a blank.
    address = F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B"))
    return F.regexp_replace(F.url_decode(address), "^file:/*", "/").alias(FILE)


def _read_parquet(spark: SparkSession, paths: Sequence[str]) -> Records:
    """Read Parquet files. Spark merges their columns, so a column that a file lacks is null in its rows."""
    read = spark.read.option("mergeSchema", "true").parquet(*paths)
    names = [name.replace("`", "``") for name in read.columns]
    row = F.struct(*(F.col(f"`{name}`") for name in names)).alias(ROW)
    number = (F.col("_metadata.row_index") + 1).alias(PLACE)
    frame = read.select(_file(), F.lit(None).cast("bigint").alias(BLOCK), number, row)
    return Records(frame, read.count(), Numbering({}, {}), columns=read.columns)


def _read_lines(
    spark: SparkSession, paths: Sequence[str], file_format: FileFormat, separator: str, kept: ExitStack
) -> Records:
    """Read lines, which our own tasks decode.

    Spark's JSON reader guesses types and turns 1.10 into 1.1. Its CSV reader removes a quote that is never closed.
    """
    reader = spark.read.option("lineSep", "\n") if file_format == "csv" else spark.read
    lines = reader.text(list(paths))
    filled = lines.where(F.btrim("value", F.lit(" \r")) != "")
    folders = [F.col(f"`{name}`") for name in lines.columns[1:]]
    as_bytes = F.col("value").cast("binary").alias(TEXT)
    counted = (
        _with_places(filled, *folders)
        .groupBy(FILE, BLOCK)
        .agg(
            F.min(PLACE).alias("first"),
            F.max(PLACE).alias("last"),
            F.count("*").alias("size"),
            F.max(~is_record(separator) if file_format == "csv" else F.lit(False)).alias("is_cut"),
            F.min_by(F.substring(as_bytes, 1, FIRST_LINE_BYTES_MAX), PLACE).alias("head"),
            F.first(F.struct(*folders) if folders else F.lit(None)).alias("folders"),
        )
        .orderBy(FILE, BLOCK)
        .collect()
    )
    layout = _layout_of(counted, file_format)
    plain = _with_places(filled).select(*IN_PLACE, as_bytes, F.lit(None).cast("string").alias(REASON))
    frame = plain
    if layout.cut_files:
        is_cut = F.col(FILE).isin(layout.cut_files)
        whole = _with_places(lines).where(is_cut).repartition(FILE).sortWithinPartitions(*IN_PLACE)
        records = (
            whole.select(FILE, as_bytes)
            .mapInArrow(partial(_cut_batches, file_format, separator.encode()), from_arrow_schema(CUT))
            .persist(StorageLevel.DISK_ONLY)
        )
        kept.callback(records.unpersist)
        _count_cut(records, layout)
        frame = plain.where(~is_cut).unionByName(records)
    numbering = Numbering(layout.offsets, layout.folders)
    names = names_of(layout.heads, file_format, separator)
    return Records(frame, layout.count, numbering, names or (), names and with_folders(names, lines.columns[1:]))


def _with_places(lines: DataFrame, *more: Column) -> DataFrame:
    """Add the file, the block and the place of each line.

    The place is the order in which Spark reads, so no other step may come between the reading and this one.
    """
    block = F.col("_metadata.file_block_start").alias(BLOCK)
    return lines.select("value", _file(), block, F.monotonically_increasing_id().alias(PLACE), *more)


def is_record(separator: str) -> Column:
    """Return a column that is true for a line that is a whole record, with quotes as RFC 4180 allows them."""
    # Quantifiers are possessive, because Java would recurse once for each repetition of another one.
    mark = f"\\Q{separator}\\E"
    cell = f'(?:"[^"]*+(?:""[^"]*+)*+"|(?:(?!{mark})[^"])*+)'
    return ~F.col("value").contains('"') | F.col("value").rlike(f"\\A{cell}(?:{mark}{cell})*+\\r*+\\z")


@dataclass(slots=True)
class Layout:
    """The files' offsets, first records and count, from the count of their blocks."""

    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    folders: dict[str, Mapping[str, str | None]] = field(default_factory=dict)
    heads: list[Head] = field(default_factory=list)
    cut_files: list[str] = field(default_factory=list)
    count: int = 0


def _layout_of(counted: Sequence[Row], file_format: FileFormat) -> Layout:
    """Return the layout of ``counted`` blocks, which are in order by file and place in it.

    Raises ``DeclarationError`` for a file that is read twice.
    """
    layout = Layout()
    for file, of_file in groupby(counted, itemgetter(FILE)):
        blocks = list(of_file)
        if any(each["last"] - each["first"] + 1 != each["size"] for each in blocks):
            raise DeclarationError(f"{file} is named twice, perhaps by two patterns; name it once")
        if blocks[0]["folders"] is not None:
            layout.folders[file] = blocks[0]["folders"].asDict()
        head = bytes(blocks[0]["head"])
        if file_format == "json":
            layout.heads.append((file, head, None))
        if any(each["is_cut"] for each in blocks) or (file_format == "json" and _is_of_several_lines(head)):
            layout.cut_files.append(file)
            continue
        if file_format == "csv":
            layout.heads.append((file, head, None))
        # The first line of a CSV file is no record.
        before = -1 if file_format == "csv" else 0
        for each in blocks:
            layout.offsets[file, each[BLOCK]] = before - each["first"] + 1
            before += each["size"]
        layout.count += before
    return layout


def _is_of_several_lines(head: bytes) -> bool:
    # A cut line does not show whether it is whole.
    return is_of_several_lines(head if len(head) < FIRST_LINE_BYTES_MAX else head[:2])


def _count_cut(records: DataFrame, layout: Layout) -> None:
    is_head = F.col(PLACE) == 0
    found = records.groupBy(FILE).agg(
        F.max(PLACE).alias("size"),
        F.max(F.when(is_head, F.col(TEXT))).alias("head"),
        F.max(F.when(is_head, F.col(REASON))).alias("reason"),
    )
    for row in found.orderBy(FILE).collect():
        if row["head"] is not None:
            layout.heads.append((row[FILE], bytes(row["head"]), row["reason"]))
        layout.count += row["size"]


# In the tasks


def record_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cut_batches(
    file_format: FileFormat, separator: bytes, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Cut the lines of whole files into records. Number 0 is the first line of a CSV file."""
    lines = (line for batch in batches for line in zip(*(each.to_pylist() for each in batch.columns), strict=True))
    for file, of_file in groupby(lines, itemgetter(0)):
        texts = (text for _, text in of_file)
        is_csv = file_format == "csv"
        records = enumerate(cut(texts, separator), 0) if is_csv else enumerate(json_records.cut(texts), 1)
        rows = ((file, None, place, text, reason) for place, (text, reason) in records)
        for chunk in in_chunks(rows, lambda row: CHUNK_ROW_BYTES + len(row[3])):
            yield record_batch(chunk, CUT)


def in_chunks(rows: Iterable[T], size_of: Callable[[T], int], rows_max: int | None = None) -> Iterator[list[T]]:
    """Yield chunks of a bounded size in bytes, because a row may be large, and of at most so many rows.

    A chunk ends with the row that reaches the size.
    """
    chunk: list[T] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += size_of(row)
        if size > CHUNK_BYTES or len(chunk) == rows_max:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
