"""Reading files into rows that know where they come from."""

from __future__ import annotations

import codecs
import glob
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.failures import SPARK_ERRORS, explained
from stagepost.pipeline.transforms.numbering import placed

FileFormat = Literal["csv", "json", "parquet"]
FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)
SUFFIXES: dict[str, FileFormat] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
# The columns of the file, in one: their names may be any, and must not meet those of the pipeline.
ROW = "_stagepost_row"
# The raw text of a row that could not be read as its format; null for the others.
BROKEN = "_stagepost_broken"
# The whole line of a JSON file.
LINE = "_stagepost_line"
FIRST_LINE_SHOWN = 80
# Their first lines are not compared here: Spark finds a difference when it reads them.
COMPRESSED = {".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst"}


def chosen_format(said: str | None, file: str) -> FileFormat:
    """As it was said, else by the file's suffix. Raises ``DeclarationError`` where that says nothing."""
    for known in FORMATS:
        if said == known:
            return known
    path = Path(file)
    found = SUFFIXES.get(path.suffix.lower()) or SUFFIXES.get(Path(path.stem).suffix.lower())
    if found is None:
        raise DeclarationError(f"{file}: its name does not say what it is; say it with --format {' or '.join(FORMATS)}")
    return found


def read_records(
    spark: SparkSession, files: Sequence[str], file_format: FileFormat, *, separator: str = ","
) -> DataFrame:
    """Rows, each with its place (see ``transforms.numbering``): ``LINE`` of JSON, else ``ROW`` with the file's columns,
    and of CSV ``BROKEN``.

    Raises ``DeclarationError`` for what cannot be read.
    """
    if file_format == "csv" and (not separator or separator in {"\\", '"', "\n", "\r"}):
        raise DeclarationError(
            f"{separator!r} cannot be the separator of a CSV file; it is a character such as ',' or ';'"
        )
    files = _each_once(files)
    paths = [_literal(file) for file in files]
    with readable(files, file_format):
        match file_format:
            case "csv":
                _check_first_lines(files)
                return _read_csv(spark, paths, separator, files[0])
            case "json":
                return _read_json(spark, paths)
            case "parquet":
                read = spark.read.parquet(*paths)
                return placed(read, _row(read.columns))


@contextmanager
def readable(files: Sequence[str], file_format: FileFormat) -> Iterator[None]:
    """What Spark raises while it looks at the files is said of the files, by a ``DeclarationError``."""
    try:
        yield
    except (OSError, *SPARK_ERRORS) as error:
        raise DeclarationError(f"{', '.join(files)} cannot be read as {file_format}: {explained(error)}") from error


def _each_once(files: Sequence[str]) -> list[str]:
    """Local files as they are found, each once: named twice, one would be read twice and its records numbered on.

    Raises ``DeclarationError`` for what is not there.
    """
    found: dict[str, None] = {}
    for file in files:
        if "://" in file:
            found[file] = None
            continue
        # Not Path.glob, which takes no absolute pattern.
        matches = sorted(glob.glob(file)) if glob.has_magic(file) and not Path(file).exists() else [file]  # noqa: PTH207
        for match in matches or [file]:
            path = Path(match)
            if not path.exists():
                raise DeclarationError(f"{match} does not exist")
            if not path.is_file() and not path.is_dir():
                raise DeclarationError(
                    f"{match} is no file or folder. What comes through a pipe can be read only once: write it to "
                    "a file."
                )
            found[str(path.resolve())] = None
    return list(found)


def _literal(file: str) -> str:
    """A path as Spark takes it, which looks for patterns in all of them."""
    return file if "://" in file else re.sub(r"([\\*?\[\]{}])", r"\\\1", file)


def _check_first_lines(files: Sequence[str]) -> None:
    """Files are read by the names in the first one's first line. Raises ``DeclarationError`` where another differs."""
    known: tuple[Path, bytes] | None = None
    for path in (path for file in files if "://" not in file for path in _data_files(Path(file))):
        with path.open("rb") as opened:
            line = opened.readline().removeprefix(codecs.BOM_UTF8).rstrip()
        if line and known is None:
            known = path, line
        if line and known is not None and line != known[1]:
            raise DeclarationError(
                f"{path} and {known[0]} name their columns differently in their first lines: "
                f"{_shown(line)}, and {_shown(known[1])}. Make them alike, or start one after the other."
            )


def _data_files(path: Path) -> list[Path]:
    """Those that Spark reads: of a folder all but the hidden ones."""
    found = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.name[0] not in "._")
    return [each for each in found if each.is_file() and each.suffix not in COMPRESSED]


def _shown(line: bytes) -> str:
    return repr(line.decode(errors="replace")[:FIRST_LINE_SHOWN])


def _row(names: Sequence[str]) -> Column:
    quoted = [name.replace("`", "``") for name in names]
    return F.struct(*(F.col(f"`{name}`") for name in quoted)).alias(ROW)


def _read_csv(spark: SparkSession, paths: Sequence[str], separator: str, first: str) -> DataFrame:
    options = {"header": "true", "sep": separator, "quote": '"', "escape": '"', "encoding": "UTF-8"}
    names = spark.read.options(**options).csv(list(paths)).columns
    if len(set(names)) < len(names) or not names:
        raise DeclarationError(f"{first}: its first line must name the columns, each once; it has {names}")
    broken = BROKEN
    while any(broken == name.lower() for name in names):
        broken += "_"
    # All text: what a column is, the message's type says.
    schema = StructType()
    for name in (*names, broken):
        schema.add(name, StringType())
    read = (
        spark.read.schema(schema)
        .options(**options, mode="PERMISSIVE", columnNameOfCorruptRecord=broken, enforceSchema="false")
        # An empty cell is an empty text. What that means, the message's type says too.
        .options(nullValue="\u0000", emptyValue="")
        .csv(list(paths))
    )
    return placed(read, _row(names), F.col(broken).alias(BROKEN))


def _read_json(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """One JSON object a line. Spark's own reader would guess types, and make 1.10 of a decimal 1.1."""
    lines = spark.read.text(list(paths)).where("trim(value) != ''")
    return placed(lines, F.col("value").alias(LINE))
