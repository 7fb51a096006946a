"""Columns and filters that reach the database: other columns stay there, and a filter leaves out only rows that Spark
drops."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from pyspark_stagepost.batch import PushingReader
from pyspark_stagepost.options import Options
from pyspark_stagepost.schemas import JOURNAL, TABLES
from stagepost.flow.errors import DeclarationError
from stagepost.ports.export import TableQuery
from stagepost.store.postgres.arrow_reader import READ_ONLY, _statement
from stagepost.store.postgres.store import migrate_database
from stagepost.store.sqlite.store import migrate_file
from tests.books import Books, InPostgres, InSqlite

TEXTS = ["a", "B", "b", "ä", "é", "z", "Z", "", " ", "�", "世", "\U0001f9fe", "ab", "a b", "a-b", "A"]
MOMENT = datetime(2026, 3, 1, 12, 30, 0, 5, tzinfo=UTC)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def books(request: pytest.FixtureRequest, tmp_path: Path) -> Books:
    """A row for each of the texts, and numbers that are missing in every third."""
    made: Books
    if request.param == "sqlite":
        migrate_file(tmp_path / "store.db")
        made = InSqlite(tmp_path / "store.db")
    else:
        url = request.getfixturevalue("new_postgres")()
        migrate_database(url)
        made = InPostgres(url)
    micros = int(MOMENT.timestamp()) * 1_000_000 + 5
    for number, text in enumerate(TEXTS):
        made.rows(
            "INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, kind,"
            " ms) VALUES (?, ?, 'n', ?, ?, 'f', ?, 1, ?, ?) RETURNING id",
            text, micros + number - 5, text, text, number, *((None, None) if number % 3 else (text, number / 4)),
        )  # fmt: skip
    return made


def reader_of(books: Books, columns: str = "id,waypoint,at,stage,attempt,kind,ms") -> PushingReader:
    options = Options.read({"url": books.url, "columns": columns, "pushfilters": "true"})
    return PushingReader(options, options.schema)


def rows_of(reader: PushingReader) -> list[dict[str, Any]]:
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: int(row["id"]))


def kept(condition: Filter, row: dict[str, Any]) -> bool:
    """As Spark decides it: texts by their bytes, and NULL keeps nothing."""
    compare: dict[type[Filter], Callable[[Any, Any], bool]] = {
        EqualTo: operator.eq,
        LessThan: operator.lt,
        LessThanOrEqual: operator.le,
        GreaterThan: operator.gt,
        GreaterThanOrEqual: operator.ge,
    }
    value = row[condition.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(condition, IsNull):
        return value is None
    if isinstance(condition, EqualNullSafe):
        return bool(value == condition.value)
    if value is None:
        return False
    if isinstance(condition, IsNotNull):
        return True
    if isinstance(condition, In):
        return value in condition.value
    given = condition.value  # type: ignore[attr-defined]
    if isinstance(value, str):
        value, given = value.encode(), given.encode()
    return compare[type(condition)](value, given)


def filters() -> Iterator[Filter]:
    for kind in (EqualTo, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual):
        # The waypoint has the database's own order, and the stage that of bytes.
        for column, text in (("waypoint", "b"), ("waypoint", "ä"), ("stage", "Z"), ("kind", "�"), ("stage", "a\0")):
            yield kind((column,), text)
        yield kind(("attempt",), 7)
        yield kind(("id",), 2**40)
        yield kind(("ms",), 0.75)
        yield kind(("ms",), float("inf"))
        yield kind(("at",), (MOMENT + timedelta(microseconds=3)).astimezone(timezone(timedelta(hours=-5))))
    yield EqualTo(("stage",), "'; DROP TABLE stagepost_journal; --")
    for column in ("stage", "kind", "ms"):
        yield IsNull((column,))
        yield IsNotNull((column,))
    yield EqualNullSafe(("kind",), None)
    yield EqualNullSafe(("kind",), "a")
    yield In(("stage",), ("a", "世", "'", None))
    yield In(("attempt",), (1, 2, 77))
    yield In(("kind",), (None,))
    yield In(("stage",), tuple(f"a{n}" for n in range(500)))


def test_a_pushed_filter_leaves_out_no_row_that_spark_keeps(books: Books) -> None:
    everything = rows_of(reader_of(books))
    (partition,) = reader_of(books).partitions()
    assert [row["stage"] for row in everything] == TEXTS
    narrowed = 0
    for each in filters():
        reader = reader_of(books)
        assert list(reader.pushFilters([each])) == [each], "Spark applies it again"
        found = [row for batch in reader.read(partition) for row in batch.to_pylist()]
        lost = [row for row in everything if kept(each, row) and row not in found]
        assert lost == [], each
        assert all(row in everything for row in found)
        narrowed += len(found) < len(everything)
    # Those whose values are NUL or lists too long are Spark's alone, and on SQLite ranges of text.
    assert narrowed > (40 if isinstance(books, InPostgres) else 25)


def test_several_filters_narrow_together_and_the_unknown_ones_do_nothing(books: Books) -> None:
    reader = reader_of(books)
    given: list[Filter] = [
        GreaterThan(("attempt",), 2),
        Not(EqualTo(("stage",), "z")),
        StringStartsWith(("stage",), "a"),
        EqualTo(("no", "such"), 1),
        IsNotNull(("ms",)),
        EqualTo(("ms",), float("nan")),
        EqualTo(("attempt",), True),
        EqualTo(("at",), datetime(2026, 3, 1)),  # noqa: DTZ001 - without a zone it names no moment
    ]
    assert list(reader.pushFilters(given)) == given
    assert [row["attempt"] for row in rows_of(reader)] == [3, 6, 9, 12, 15]


def test_a_batch_has_exactly_the_types_that_spark_takes(books: Books) -> None:
    reader = reader_of(books, "at, stage, attempt, id, ms")
    (partition,) = reader.partitions()
    (batch,) = reader.read(partition)
    assert batch.schema == pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("stage", pa.string()),
            ("attempt", pa.int32()),
            ("id", pa.int64()),
            ("ms", pa.float64()),
        ]
    )
    assert batch.column("at")[5].as_py() == MOMENT


def test_columns_that_are_not_named_do_not_leave_the_database(new_postgres: Callable[[], str]) -> None:
    url = new_postgres()
    migrate_database(url)
    bounds = {"low": 1, "high": 9, "begin": 0, "end": 9, "restored": 0, "seen": "10:10:"}
    text, settings = _statement(TableQuery("journal", ["waypoint", "at"]), bounds)
    with psycopg.connect(url) as connection:
        connection.execute(READ_ONLY.encode())
        for name, value in settings.items():
            connection.execute("SELECT set_config(%s, %s, true)", (name, value))
        plan = [line for (line,) in connection.execute(b"EXPLAIN (VERBOSE, COSTS OFF) " + text.encode())]
    outputs = [line.partition("Output: ")[2] for line in plan if "Output: " in line and "waypoint" in line]
    assert outputs
    assert all(each.count(",") == 1 for each in outputs), plan


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("id, colour", "journal has no column 'colour'; it has id, waypoint"),
        ("id,id", "names a column twice: 'id,id'; name it once"),
        ("", "journal has no column ''"),
    ],
)
def test_columns_that_cannot_be_read_are_refused(tmp_path: Path, columns: str, says: str) -> None:
    migrate_file(tmp_path / "store.db")
    with pytest.raises(DeclarationError) as caught:
        Options.read({"url": f"sqlite:///{tmp_path}/store.db", "columns": columns})
    assert says in str(caught.value)


def test_every_table_has_the_columns_of_its_statement(books: Books) -> None:
    for table, schema in TABLES.items():
        options = Options.read({"url": books.url, "table": table})
        reader = PushingReader(options, StructType(list(reversed(schema.fields))))
        for each in reader.partitions():
            for batch in reader.read(each):
                assert batch.schema.names == schema.names[::-1]
                assert table == "journal"
    assert JOURNAL.names[0] == "id"
