"""Reading files into rows that know where they come from."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from stagepost.flow.errors import DeclarationError
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
# The raw text of a row that could not be read as its format; null for the others.
BROKEN = "_stagepost_broken"
# The whole line of a JSON file.
LINE = "_stagepost_line"


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
    """Rows, each with its place: see ``transforms.numbering``. Raises ``DeclarationError`` for what cannot be read."""
    files = _each_once(files)
    try:
        match file_format:
            case "csv":
                return placed(_read_csv(spark, files, separator))
            case "json":
                return placed(_read_json(spark, files))
            case "parquet":
                return placed(spark.read.parquet(*files))
    except AnalysisException as error:
        raise DeclarationError(f"{', '.join(files)} cannot be read as {file_format}: {_first_line(error)}") from error


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
        if not matches or not Path(matches[0]).exists():
            raise DeclarationError(f"{file} does not exist")
        for match in matches:
            found[str(Path(match).resolve())] = None
    return list(found)


def _read_csv(spark: SparkSession, files: Sequence[str], separator: str) -> DataFrame:
    options = {"header": "true", "sep": separator, "quote": '"', "escape": '"', "encoding": "UTF-8"}
    names = spark.read.options(**options).csv(list(files)).columns
    if len(set(names)) < len(names) or not names:
        raise DeclarationError(f"{files[0]}: its first line must name the columns, each once; it has {names}")
    # All text: what a column is, the message's type says.
    schema = StructType()
    for name in (*names, BROKEN):
        schema.add(name, StringType())
    return (
        spark.read.schema(schema)
        .options(**options, mode="PERMISSIVE", columnNameOfCorruptRecord=BROKEN, enforceSchema="false")
        # An empty cell is an empty text. What that means, the message's type says too.
        .options(nullValue="\u0000", emptyValue="")
        .csv(list(files))
    )


def _read_json(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """One JSON object a line. Spark's own reader would guess types, and make 1.10 of a decimal 1.1."""
    lines = spark.read.text(list(files)).withColumnRenamed("value", LINE)
    return lines.where("trim(" + LINE + ") != ''")


def _first_line(error: AnalysisException) -> str:
    return str(error).splitlines()[0]
