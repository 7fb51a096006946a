"""The options of the source, and errors that reach a user of Spark as one paragraph."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql.types import StructType

from pyspark_stagepost.schemas import TABLES
from stagepost.flow.errors import DeclarationError, StagepostError
from stagepost.ports.export import Export
from stagepost.ports.journal import Position, Span
from stagepost.ports.registry import driver_of

DIVIDED = "journal"
# Of Spark's Python process. See ``pyspark.util.handle_worker_exception``.
HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
OF_STREAMS = ("reader", "maxRowsPerBatch")
OPTIONS = ("url", "table", "columns", "from", "until", "lines", "numPartitions", "slots", "pushFilters", *OF_STREAMS)
TRUTHS = {"true": True, "false": False}
# Each part is a task, a connection and an object of the driver.
PARTS_MAX = 100_000
NUMBER_MAX = 10**18 - 1
_NUMBER = re.compile(r"[0-9]{1,18}")
_LINES = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")
_NAME = re.compile(r"[\w.:/-]{1,200}")


@dataclass(frozen=True, slots=True)
class Options:
    """The validated options of one read, or of a stream.

    ``lines``        ids of the journal, from the first up to, but without, the second; None for all of the span
    ``partitions``   the number of tasks, at most; None if not set
    ``slots``        the number of tasks that run at a time
    ``reader``       the name under which a stream follows the journal; None for a read
    ``rows_a_batch`` of a stream, about; None for all that there are
    """

    url: str
    store: Export
    table: str
    columns: Sequence[str]
    span: Span
    lines: tuple[int, int] | None
    partitions: int | None
    slots: int
    pushes_filters: bool
    reader: str | None
    rows_a_batch: int | None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """Check the options, whose names Spark has put in lower case. Raises ``DeclarationError`` for a wrong one."""
        options = named(given, OPTIONS)
        if "url" not in options:
            raise DeclarationError('the source stagepost needs .option("url", "sqlite:///payments.db")')
        table = options.get("table", "journal")
        if table not in TABLES:
            raise DeclarationError(f"the source stagepost has no table {table!r}; it has {', '.join(TABLES)}")
        if table != DIVIDED and {"from", "until", "lines"} & set(options):
            raise DeclarationError(
                f"the options from, until and lines are for the journal, and {table} is read whole; leave them out"
            )
        return cls(
            options["url"],
            driver_of(options["url"]).export(options["url"]),
            table,
            _columns(table, options.get("columns")),
            Span(_position("from", options.get("from")), _position("until", options.get("until"))),
            _lines(options.get("lines")),
            _number_if_given("numPartitions", options, PARTS_MAX),
            whole_number("slots", options.get("slots", str(os.cpu_count() or 1)), PARTS_MAX),
            _truth("pushFilters", options.get("pushFilters", "false")),
            _reader(options.get("reader")),
            _number_if_given("maxRowsPerBatch", options),
        )

    @property
    def schema(self) -> StructType:
        return StructType([TABLES[self.table][name] for name in self.columns])


def named(given: Mapping[str, str], names: Sequence[str], role: str = "source") -> dict[str, str]:
    """Return the options of the source, or of the sink, by the names of ``names``, in whatever case they were given.

    Raises ``DeclarationError`` for one that is not among them.
    """
    known = {name.lower(): name for name in names}
    unknown = sorted(name for name in given if name.lower() not in known)
    if unknown:
        raise DeclarationError(f"the {role} stagepost has no option {unknown[0]!r}; it has {', '.join(sorted(names))}")
    return {known[name.lower()]: value for name, value in given.items()}


def whole_number(name: str, value: str, most: int = NUMBER_MAX) -> int:
    """Return the number. Raises ``DeclarationError`` for a text that is no whole number from 1 to ``most``."""
    number = int(value) if _NUMBER.fullmatch(value) else 0
    if not 0 < number <= most:
        raise DeclarationError(
            f"option {name} of the source stagepost must be a whole number from 1 to {most}, not {value!r:.60}"
        )
    return number


def check_columns(options: Options, schema: StructType) -> None:
    """Raise ``DeclarationError`` if the table does not have these columns with these types, each once.

    It is also raised for columns of an option that are not those of the user's schema.
    """
    table, names = options.table, schema.fieldNames()
    known = TABLES[table]
    if len(set(names)) < len(names):
        raise DeclarationError(f"the schema of {table} names a column twice: {', '.join(names)}; name it once")
    if list(options.columns) not in (names, known.fieldNames()):
        raise DeclarationError(
            f"the option columns names {', '.join(options.columns)}, and the schema {', '.join(names)}; give one of "
            "the two"
        )
    for field in schema:
        _check_name(table, field.name)
        declared = known[field.name].dataType
        if field.dataType != declared:
            raise DeclarationError(
                f"column {field.name} of {table} is a {declared.simpleString()}, not a "
                f"{field.dataType.simpleString()}; read it as it is, and cast it"
            )
        if not field.nullable:
            # Spark would believe it, and leave out its tests for null without looking at a row.
            raise DeclarationError(
                f"the schema says that column {field.name} of {table} is never null, which the source does not "
                "promise; leave NOT NULL, or nullable=False, out"
            )


def check_batch(options: Options) -> None:
    """Raise ``DeclarationError`` for options that only a stream has."""
    if options.reader is not None or options.rows_a_batch is not None:
        raise DeclarationError(
            f"the options {' and '.join(OF_STREAMS)} are for spark.readStream; leave them out of spark.read"
        )


def check_stream(options: Options) -> None:
    """Raise ``DeclarationError`` for options that a stream does not have, and for a missing name of its reader."""
    if options.table != DIVIDED:
        raise DeclarationError(
            f"spark.readStream follows the journal only, because the rows of {options.table} move and go; read "
            f"{options.table} with spark.read"
        )
    if options.reader is None:
        raise DeclarationError(
            'spark.readStream of the source stagepost needs .option("reader", "a name"): the store keeps the position '
            "of each named reader, so that nothing is purged that it has not read. Give each stream its own name"
        )
    if options.span.end is not None or options.pushes_filters or options.lines is not None:
        raise DeclarationError(
            "the options until, lines and pushFilters are for spark.read; leave them out of spark.readStream. The "
            "trigger availableNow ends a stream at the journal's present end"
        )


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let a user of Spark see an error of Stagepost's without the stack of Spark's Python process.

    The process ends with the error, so the variable hides no other stack.
    """
    try:
        yield
    except StagepostError:
        os.environ[HIDE_TRACEBACK] = "1"
        raise


def _columns(table: str, text: str | None) -> Sequence[str]:
    if text is None:
        return TABLES[table].fieldNames()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        _check_name(table, name)
    if len(set(names)) < len(names):
        raise DeclarationError(f"option columns of the source stagepost names a column twice: {text!r}; name it once")
    return names


def _check_name(table: str, name: str) -> None:
    known = TABLES[table].fieldNames()
    if name not in known:
        raise DeclarationError(f"{table} has no column {name!r}; it has {', '.join(known)}")


def _position(name: str, value: str | None) -> Position | None:
    found = None if value is None else Position.read(value)
    if found is None and value is not None:
        raise DeclarationError(
            f"option {name} of the source stagepost must be a position of the journal, as stagepost status --json "
            f"prints it, or a whole number, not {value!r:.60}"
        )
    return found


def _lines(value: str | None) -> tuple[int, int] | None:
    found = _LINES.fullmatch(value or "")
    if found is None and value is not None:
        raise DeclarationError(
            f"option lines of the source stagepost must be two ids of the journal, such as 0:1000, not {value!r:.60}"
        )
    return None if found is None else (int(found[1]), int(found[2]))


def _number_if_given(name: str, options: Mapping[str, str], most: int = NUMBER_MAX) -> int | None:
    return whole_number(name, options[name], most) if name in options else None


def _reader(name: str | None) -> str | None:
    if name is not None and not _NAME.fullmatch(name):
        raise DeclarationError(
            f"option reader of the source stagepost must be 1 to 200 letters, digits, or one of . _ : / -, not {name!r}"
        )
    return name


def _truth(name: str, value: str) -> bool:
    if value.lower() not in TRUTHS:
        raise DeclarationError(f"option {name} of the source stagepost must be true or false, not {value!r}")
    return TRUTHS[value.lower()]
