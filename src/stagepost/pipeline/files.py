"""Find the format, the encoding and the column names of input files before any row is read.

This module does not need Spark, so it refuses a wrong local file before Java starts.
"""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from stagepost.flow.errors import DeclarationError
from stagepost.flow.texts import as_sentence
from stagepost.pipeline.csv_records import QUOTE, cells, cut

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
# The separators of CSV files that people use most.
SEPARATORS = ("\t", ";", "|", ",")
# Python opens some compressed files. Spark reads the first lines of the others.
OPENERS: dict[str, Callable[..., IO[Any]]] = {".gz": gzip.open, ".bz2": bz2.open}
UNOPENED = {".deflate", ".lz4", ".snappy", ".zst"}
# A longer first line cannot hold column names. The lines of such a file perhaps end without a line feed.
FIRST_LINE_BYTES_MAX = 64 * 1024
ENCODINGS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
GZIP = b"\x1f\x8b"
NANOSECONDS = "timestamp in nanoseconds"
# A file, its first record, and the reason why that record cannot be read, or None.
Head = tuple[str, bytes, str | None]


def chosen_format(name: str | None, files: Sequence[str]) -> FileFormat:
    """Return the named format, else that of the files' suffixes.

    Raises ``DeclarationError`` for an unknown suffix, and for suffixes of several formats.
    """
    named = next((known for known in FORMATS if known == name), None)
    found = named or _format_of_suffix(files[0])
    if found is None:
        raise DeclarationError(
            f"{files[0]}: its suffix names no known format; name it: --format {' or '.join(FORMATS)}"
        )
    for each in files[1:] if named is None else ():
        other = _format_of_suffix(each)
        if other not in (None, found):
            raise DeclarationError(
                f"{files[0]} is {found} by its suffix, and {each} is {other}. Start one after the other, or name the "
                "common format by --format."
            )
    return found


def _format_of_suffix(file: str) -> FileFormat | None:
    path = Path(file)
    return SUFFIXES.get(path.suffix.lower()) or SUFFIXES.get(Path(path.stem).suffix.lower())


def chosen_separator(text: str) -> str:
    """Return the separator, with ``\\t`` as a tab. Raises ``DeclarationError`` for text that cannot separate cells."""
    separator = "\t" if text == "\\t" else text
    if not separator or set(separator) & set('\\"\n\r'):
        raise DeclarationError(f"{text!r} cannot be the separator of a CSV file; use a character such as ',' or ';'")
    return separator


def unique_files(files: Sequence[str]) -> list[str]:
    """Return the files and folders, each once, because Spark would read a file twice that is named twice.

    Raises ``DeclarationError`` for a file that does not exist, and for one that Spark would leave out.
    """
    found: dict[str, None] = {}
    for file in files:
        if is_remote(file):
            found[file] = None
            continue
        for match in _matches(file) or [file]:
            path = Path(match)
            if not path.exists():
                where = "" if path.is_absolute() else f" in the folder {Path.cwd()}"
                raise DeclarationError(f"{match} does not exist{where}. Check its name.")
            if not path.is_file() and not path.is_dir():
                raise DeclarationError(
                    f"{match} is neither a file nor a folder. A pipe can be read only once: write its contents to a "
                    "file."
                )
            if path.is_file() and _is_hidden(path.name) and path.stat().st_size:
                raise DeclarationError(
                    f"{match} would be left out: to Spark, a file whose name begins with . or _ is not complete yet. "
                    "Rename it."
                )
            found[str(path.resolve())] = None
    return [file for file in found if is_remote(file) or not any(str(each) in found for each in Path(file).parents)]


def _matches(file: str) -> list[str]:
    """Return the files of a pattern without the hidden ones, which are left out of a folder too."""
    if not glob.has_magic(file) or Path(file).exists():
        return [file]
    # Path.glob takes no absolute pattern.
    return [each for each in sorted(glob.glob(file)) if not _is_hidden(Path(each).name)]  # noqa: PTH207


def escaped(place: str) -> str:
    """Return the path or address with the special characters of Hadoop's patterns escaped."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", place)


def is_remote(file: str) -> bool:
    """Return whether the file is an address, which only Spark can open."""
    return "://" in file


def local_names(files: Sequence[str], file_format: FileFormat, separator: str) -> list[str] | None:
    """Return the column names of the local files, and those that the names of their folders add.

    Return None for JSON, and if no local file has column names. ``files`` are as ``unique_files`` returns them. Raises
    ``DeclarationError`` for files that cannot be read, or not together.
    """
    folders = [Path(file) for file in files if not is_remote(file)]
    paths = {path: folder for folder in folders for path in _data_files(folder)}
    if file_format == "parquet":
        names = _parquet_names(list(paths))
    else:
        heads = (head for path in paths for head in _heads(path, file_format, separator))
        names = names_of(heads, file_format, separator)
    given = (part.partition("=")[0] for path, folder in paths.items() for part in path.relative_to(folder).parts[:-1])
    return names and with_folders(names, given)


def with_folders(names: Sequence[str], given: Iterable[str]) -> list[str]:
    """Return the columns of the files, and those that the names of their folders add.

    Raises ``DeclarationError`` for a column that both have, in any letter case: Spark would drop the file's value.
    """
    folded = {name.casefold() for name in names}
    found = list(dict.fromkeys(given))
    twice = [name for name in found if name.casefold() in folded]
    if twice:
        raise DeclarationError(
            f"column {listed(twice)} is in the files and in the names of their folders. Rename one of them, or name "
            "the folders themselves, which then add no column."
        )
    return [*names, *found]


def names_of(heads: Iterable[Head], file_format: FileFormat, separator: str) -> list[str] | None:
    """Return the column names that the first records of CSV files agree on.

    Return None for JSON, and if there is no file. Raises ``DeclarationError`` for a file of another format, or with
    other names than the first one.
    """
    known: tuple[str, list[str]] | None = None
    for file, text, reason in heads:
        _check_text(file, text)
        if file_format == "json":
            continue
        if reason is not None:
            why = reason.partition(". ")[0]
            raise DeclarationError(
                f"{file}: its first line, which names the columns, cannot be read: {why}. Correct it."
            )
        names = _names(file, text, separator)
        known = known or (file, names)
        if names != known[1]:
            raise DeclarationError(
                f"{file} and {known[0]} name their columns differently in their first lines: {listed(names)}, and "
                f"{listed(known[1])}. Make them alike, or start one after the other."
            )
    return known and known[1]


def listed(names: Iterable[str]) -> str:
    """Return names for an error's text, in quotes if they hold a blank or a control character."""
    return ", ".join(name if name and name == name.strip() and name.isprintable() else repr(name) for name in names)


def columns_shown(names: Sequence[str], remedy: str = "Name one of them.") -> str:
    """Return the columns and the remedy for an error's text.

    One long name most likely holds all of them, with another separator. Then the remedy is to name that.
    """
    found = next((mark for mark in SEPARATORS if mark in names[0]), None) if len(names) == 1 else None
    if found is None:
        return f"the columns are {listed(names)}. {remedy}"
    shown = "\\t" if found == "\t" else found
    return f"the only column is {listed(names)}. If '{shown}' separates the cells, name it: --separator '{shown}'."


def _check_text(file: str, text: bytes) -> None:
    if text.startswith(GZIP):
        raise DeclarationError(f"{file} is compressed, and its name does not end in .gz. Rename it.")
    marked = next((name for mark, name in ENCODINGS.items() if text.startswith(mark)), None)
    if marked is not None or b"\0" in text:
        problem = f"is written in {marked}" if marked else "holds NUL bytes: it is written in UTF-16, or is no text"
        raise DeclarationError(f"{file} {problem}. Convert it to UTF-8: iconv -f {marked or 'UTF-16'} -t UTF-8")


def _names(file: str, text: bytes, separator: str) -> list[str]:
    text = text.rstrip(b"\r")
    if len(text) >= FIRST_LINE_BYTES_MAX or (b"\r" in text and QUOTE not in text):
        raise DeclarationError(
            f"{file}: its first line is longer than {FIRST_LINE_BYTES_MAX} bytes, or holds carriage returns. The lines "
            "of a CSV file end with a line feed, or with a carriage return and a line feed."
        )
    try:
        names = cells(text.decode(), separator)
    except UnicodeDecodeError as error:
        raise DeclarationError(
            f"{file}: its first line is not UTF-8: {as_sentence(error)} Convert the file to UTF-8."
        ) from error
    twice = repeated_names(names)
    if twice or not any(names):
        problem = f"it names {listed(twice)}" if twice else "it has no name"
        raise DeclarationError(f"{file}: its first line must name the columns, each once; {problem}")
    return names


def repeated_names(names: Sequence[str]) -> list[str]:
    """Return the names that occur twice in any letter case, because Spark ignores case."""
    folded = Counter(name.casefold() for name in names if name)
    return [name for name in names if folded[name.casefold()] > 1]


def _data_files(path: Path) -> list[Path]:
    """Return the files that Spark reads of a file or folder.

    Spark leaves out hidden files, and reads those folders within the folder that are named like ``day=2026-03-01``.
    Raises ``DeclarationError`` for other files and folders, which Spark would skip silently.
    """
    if path.is_file():
        return [path]
    within = {each: each.relative_to(path).parts for each in sorted(path.rglob("*")) if each.is_file()}
    seen = {file: parts for file, parts in within.items() if not any(_is_hidden(part) for part in parts)}
    check_folders(str(path), {str(file): parts[:-1] for file, parts in seen.items()})
    return list(seen)


def check_folders(root: str, folders: Mapping[str, Sequence[str]]) -> None:
    """Raise ``DeclarationError`` for files below ``root`` that Spark skips without an error.

    ``folders`` has the folders between the root and each file. If one is named like ``day=2026-03-01``, Spark reads
    files below such folders alone. Otherwise it reads files alone that are in the root itself.
    """
    by_value = [file for file, between in folders.items() if any("=" in part for part in between)]
    if by_value:
        others = [file for file in folders if file not in set(by_value)]
        if others:
            raise DeclarationError(
                f"{root} has files in folders that give them a column, such as {by_value[0]}, and other files, such as "
                f"{others[0]}, which are not read with these. Start the others apart, or move them into such a folder."
            )
        return
    nested = [file for file, between in folders.items() if between]
    if nested:
        raise DeclarationError(
            f"{root} has files in folders of its own, such as {nested[0]}, which are not read with it. Name the "
            "folders that hold the files."
        )


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _heads(path: Path, file_format: FileFormat, separator: str) -> Iterator[Head]:
    """Yield the file's first record, if it has one."""
    if path.suffix.lower() in UNOPENED:
        return
    try:
        with OPENERS.get(path.suffix.lower(), open)(path, "rb") as opened:
            # The read is bounded, because a file without line feeds is one line.
            lines = iter(partial(opened.readline, FIRST_LINE_BYTES_MAX), b"")
            filled = (line for line in lines if line.strip())
            first = next(filled, b"").removeprefix(codecs.BOM_UTF8)
            if first and file_format == "json":
                yield str(path), first, None
            elif first:
                whole = (line.removesuffix(b"\n") for line in chain([first], lines))
                yield from ((str(path), text, reason) for text, reason in islice(cut(whole, separator.encode()), 1))
    except (OSError, EOFError, zlib.error) as error:
        raise DeclarationError(f"{path} cannot be read as {file_format}: {error}") from error


def _parquet_names(paths: Sequence[Path]) -> list[str] | None:
    """Return the columns of Parquet files, or None without files.

    Raises ``DeclarationError`` if a file has other columns, or other types, than the first one.
    """
    known: tuple[Path, dict[str, list[str]]] | None = None
    for path in paths:
        try:
            opened = pq.ParquetFile(path)
            fields, schema = opened.schema_arrow, opened.schema
        except (OSError, pa.ArrowException) as error:
            raise DeclarationError(f"{path} cannot be read as parquet: {error}") from error
        twice = repeated_names(fields.names)
        if twice:
            raise DeclarationError(f"{path} has columns of equal name: {listed(twice)}. Write it with each name once.")
        # A column's path does not tell its name, which may hold dots itself.
        leaves = (schema.column(number) for number in range(len(schema)))
        kinds = {field.name: [_kind(each) for each in islice(leaves, _leaves(field.type))] for field in fields}
        _check_nanoseconds(path, kinds)
        known = known or (path, kinds)
        for name in sorted(kinds.keys() ^ known[1].keys()):
            has, lacks = (path, known[0]) if name in kinds else (known[0], path)
            raise DeclarationError(
                f"{has} has a column {listed([name])}, and {lacks} has none of that name. Make them alike, or start "
                "one after the other."
            )
        for name, kind in kinds.items():
            if kind != known[1][name]:
                raise DeclarationError(
                    f"column {listed([name])} is of type {', '.join(kind)} in {path}, and {', '.join(known[1][name])} "
                    f"in {known[0]}. Write them with one type, or start one after the other."
                )
    return known and list(known[1])


def _leaves(kind: pa.DataType) -> int:
    """Return how many columns of Parquet hold the values of the type."""
    if pa.types.is_dictionary(kind):
        return _leaves(kind.value_type)
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields)) or 1


def _check_nanoseconds(path: Path, kinds: Mapping[str, Sequence[str]]) -> None:
    for name, found in kinds.items():
        if NANOSECONDS in found:
            raise DeclarationError(
                f"column {listed([name])} of {path} has timestamps in nanoseconds, which Spark does not read. Write "
                "the file with microseconds; in pandas: to_parquet(…, coerce_timestamps='us', "
                "allow_truncated_timestamps=True)."
            )


def _kind(column: Any) -> str:
    """Return a column's type as Spark compares types, without the unit and the format of a timestamp."""
    logical = str(column.logical_type)
    if logical.startswith("Timestamp") and "timeUnit=nanoseconds" in logical:
        return NANOSECONDS
    if column.physical_type == "INT96" or logical.startswith("Timestamp"):
        return "timestamp without time zone" if "isAdjustedToUTC=false" in logical else "timestamp"
    is_plain = logical in ("None", "Int(bitWidth=32, isSigned=true)", "Int(bitWidth=64, isSigned=true)")
    return str(column.physical_type if is_plain else logical).lower()
