"""``spark.read.format("stagepost")``: a store's tables as DataFrames."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_stagepost.batch import Range, StagepostReader
from pyspark_stagepost.options import Options
from pyspark_stagepost.schemas import DEAD_LETTERS, JOURNAL, QUEUE, TABLES
from pyspark_stagepost.source import StagepostSource
from stagepost.app.app import engine_of
from stagepost.flow.errors import DeclarationError
from stagepost.store.sqlite.export import SqliteExport
from stagepost.store.sqlite.lock_file import LockFile
from tests.pipeline.books import Books, SqliteBooks, orders
from tests.processes import ROOT
from tests.waiting import wait_until


def load(spark: SparkSession, books: Books, table: str | None = None, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("stagepost").option("url", books.url)
    if table is not None:
        reader = reader.option("table", table)
    if schema:
        reader = reader.schema(schema)
    return reader.options(**options).load()


def expected(books: Books, columns: str, table: str) -> list[tuple[Any, ...]]:
    return books.rows(f"SELECT {columns} FROM stagepost_{table} ORDER BY id")


@pytest.fixture
def busy_books(books: SqliteBooks) -> SqliteBooks:
    """One message in each place that a message can be in."""
    books.start(orders(2, name="done"))
    books.start(orders(1, "fail", entries=1, name="dead"))
    harness = books.harness()
    harness.drain()
    books.start(orders(1, name="claimed"))
    assert harness.claim_one() is not None
    books.start(orders(1, name="ready"))
    books.start(orders(1, name="delayed"), delay=3600)
    books.rows(
        "INSERT INTO stagepost_suspect (due_at, stage, message_id, flow_id, failures, deaths, deliveries, origin_at,"
        " envelope) VALUES (1, 'shop.done', 'suspect', 'suspect', 2, 1, 4, 5, x'00ff')"
    )
    harness.close()
    return books


# What is read


def test_spark_finds_the_source_by_its_package(spark: SparkSession, busy_books: SqliteBooks) -> None:
    """Without a word of ``register``, and the journal where no table is named."""
    found = load(spark, busy_books)
    assert found.schema == JOURNAL
    assert found.count() == busy_books.number("SELECT count(*) FROM stagepost_journal")


def test_the_journal_is_read_as_it_was_written(spark: SparkSession, busy_books: SqliteBooks) -> None:
    found = load(spark, busy_books, numPartitions=3).orderBy("id")
    moments = [f"unix_micros({name}) AS {name}" if name in ("at", "origin_at") else name for name in JOURNAL.names]
    rows = [tuple(row) for row in found.selectExpr(*moments).collect()]
    assert rows == expected(busy_books, ", ".join(JOURNAL.names), "journal")
    assert {row[1] for row in rows} >= {"accepted", "received", "committed", "sent", "failed", "delayed", "dead"}


def test_the_queue_shows_a_message_in_each_of_its_places(spark: SparkSession, busy_books: SqliteBooks) -> None:
    found = load(spark, busy_books, "queue")
    assert found.schema == QUEUE
    rows = {row.flow_id: row for row in found.selectExpr("*", "unix_micros(due_at) AS due").collect()}
    assert {flow: row.place for flow, row in rows.items()} == {
        "claimed0": "claimed",
        "ready0": "ready",
        "delayed0": "delayed",
        "suspect": "suspect",
    }
    assert rows["claimed0"].owner == "harness/1"
    assert rows["ready0"].owner is None
    assert [rows["delayed0"].due] == [due for (due,) in expected(busy_books, "due_at", "delayed")]
    suspect = rows["suspect"]
    assert (suspect.failures, suspect.deaths, suspect.deliveries, suspect.due) == (2, 1, 4, 1)
    assert suspect.envelope == "\x00\ufffd"


def test_dead_letters_are_read_whole(spark: SparkSession, busy_books: SqliteBooks) -> None:
    found = load(spark, busy_books, "dead_letters")
    assert found.schema == DEAD_LETTERS
    (row,) = found.selectExpr("*", "unix_micros(dead_at) AS dead").collect()
    texts = "id, message_id, flow_id, stage, reason, causes, stack, fingerprint, node, declared_at, failures, deaths"
    (letter,) = expected(busy_books, f"{texts}, deliveries, dead_at, CAST(envelope AS TEXT)", "dead_letter")
    assert (*(row[name] for name in texts.split(", ")), row.deliveries, row.dead, row.envelope) == letter


def test_an_empty_store_has_empty_tables(spark: SparkSession, books: SqliteBooks) -> None:
    for table, schema in TABLES.items():
        found = load(spark, books, table)
        assert found.schema == schema
        assert found.collect() == []


@pytest.mark.parametrize(
    ("table", "schema"),
    [
        ("journal", "waypoint string, id bigint"),
        ("journal", "origin_at timestamp"),
        ("queue", "envelope string, place string, deaths int"),
        ("dead_letters", "flow_id string, dead_at timestamp"),
    ],
)
def test_only_the_columns_that_were_named_are_read_in_the_order_in_which_they_were(
    spark: SparkSession, busy_books: SqliteBooks, table: str, schema: str
) -> None:
    found = load(spark, busy_books, table, schema)
    assert found.schema == StructType.fromDDL(schema)
    whole = load(spark, busy_books, table).select(*found.columns)
    assert sorted(found.collect()) == sorted(whole.collect())
    assert found.count() > 0


def test_bytes_that_are_no_text_can_be_read_all_the_same(spark: SparkSession, busy_books: SqliteBooks) -> None:
    """A dead letter keeps its envelope as it came, and a text column may hold what another program wrote."""
    hostile = b"\xff\xfe\x00{\xed\xa0\x80\xf5" + "ž\U0001f9fe".encode()
    busy_books.change("UPDATE stagepost_dead_letter SET envelope = ?", hostile)
    busy_books.change("UPDATE stagepost_dead_letter SET stack = CAST(? AS TEXT)", hostile)
    busy_books.change("UPDATE stagepost_ready SET envelope = ?", hostile)
    busy_books.change("UPDATE stagepost_journal SET detail = CAST(? AS TEXT) WHERE id = 1", hostile)
    readable = hostile.decode(errors="replace")
    (letter,) = load(spark, busy_books, "dead_letters").collect()
    assert (letter.envelope, letter.stack) == (readable, readable)
    assert {row.envelope for row in load(spark, busy_books, "queue").where("place = 'ready'").collect()} == {readable}
    assert load(spark, busy_books).where("id = 1").collect()[0].detail == readable


@pytest.mark.parametrize("name", ["my shop/a store.db", "účty/žurnál 100%.db", "a#b?c=d&e.db", "'quoted' \"twice\".db"])
def test_a_store_may_be_at_any_path(
    spark: SparkSession, tmp_path: Path, new_books: Callable[[str], SqliteBooks], name: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    books = new_books(name.removesuffix(".db"))
    books.start(orders(3))
    assert load(spark, books).count() == 3
    assert load(spark, books, "queue", "flow_id string").count() == 3


def test_a_store_may_be_named_by_a_path_from_the_working_folder(
    spark: SparkSession, books: SqliteBooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs make it absolute; Python's own reader does too, wherever its process happens to stand."""
    monkeypatch.chdir(tmp_path)
    assert Options.read({"url": "sqlite:///shop.db"}).store == SqliteExport(books.path)


# What is asked for


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, 'needs .option("url", "sqlite:///payments.db")'),
        ({"url": "mysql://here"}, "is not a database URL Stagepost knows"),
        ({"url": "shop.db"}, "is not a database URL Stagepost knows"),
        ({"url": "sqlite:///"}, "is not a database URL Stagepost knows"),
        ({"url": "sqlite:///:memory:"}, "is not a database URL Stagepost knows"),
        ({"url": "sqlite:////no/such/shop.db"}, "/no/such/shop.db does not exist; check the option url"),
        ({"url": "*", "table": "inbox"}, "has no table 'inbox'; it has journal, queue, dead_letters, places, outbox"),
        (
            {"url": "*", "tabel": "queue"},
            "has no option 'tabel'; it has columns, from, lines, maxRowsPerBatch, numPartitions, pushFilters, reader,",
        ),
        ({"url": "*", "path": "/somewhere"}, "has no option 'path'"),
        (
            {"url": "*", "numPartitions": "0"},
            "numPartitions of the source stagepost must be a whole number from 1 to 100000, not '0'",
        ),
        ({"url": "*", "numPartitions": "-1"}, "option numPartitions of the source stagepost must be a whole number"),
        ({"url": "*", "numPartitions": "many"}, "must be a whole number from 1 to 100000, not 'many'"),
        ({"url": "*", "numPartitions": "2.0"}, "must be a whole number from 1 to 100000, not '2.0'"),
        ({"url": "*", "numPartitions": ""}, "must be a whole number from 1 to 100000, not ''"),
        ({"url": "*", "from": "first"}, "option from of the source stagepost must be a position of the journal"),
        ({"url": "*", "numPartitions": "100001"}, "whole number from 1 to 100000, not '100001'"),
        ({"url": "*", "numPartitions": "9" * 30}, "whole number from 1 to 100000, not '999"),
        ({"url": "*", "slots": "٣"}, "option slots of the source stagepost must be a whole number from 1 to 100000"),
        ({"url": "*", "from": f"1{'0' * 30}"}, "or a whole number, not '1000"),
        ({"url": "*", "until": "a-b:9223372036854775808"}, "option until of the source stagepost must be a position"),
        ({"url": "*", "lines": f"0:1{'0' * 18}"}, "must be two ids of the journal, such as 0:1000, not '0:1000"),
        ({"url": "*", "until": "-5"}, "as stagepost status --json prints it, or a whole number, not '-5'"),
    ],
    ids=lambda each: ",".join(f"{k}={v}" for k, v in each.items()) if isinstance(each, dict) else "",
)
def test_an_option_that_cannot_be_used_is_answered_with_what_could(
    books: SqliteBooks, options: dict[str, str], says: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        Options.read({name: books.url if value == "*" else value for name, value in options.items()})
    assert says in str(caught.value)


def test_the_answer_reaches_the_one_who_asked_through_spark(spark: SparkSession, books: SqliteBooks) -> None:
    with pytest.raises(PySparkException, match="has no table 'inbox'; it has journal, queue, dead_letters, places"):
        load(spark, books, "inbox")
    with pytest.raises(PySparkException, match="journal has no column 'colour'; it has id, waypoint"):
        load(spark, books, schema="id bigint, colour string").collect()


def test_option_names_are_read_in_any_case(books: SqliteBooks) -> None:
    found = Options.read({"URL": books.url, "TABLE": "journal", "NUMPARTITIONS": "7", "From": "3", "until": "9"})
    assert (found.table, found.partitions, found.span.begin, found.span.end) == ("journal", 7, 3, 9)


@pytest.mark.parametrize("option", ["from", "until"])
@pytest.mark.parametrize("table", ["queue", "dead_letters"])
def test_a_range_of_what_has_no_ranges_is_refused(books: SqliteBooks, table: str, option: str) -> None:
    with pytest.raises(DeclarationError, match=f"{table} is read whole"):
        Options.read({"url": books.url, "table": table, option: "5"})


def test_a_column_of_another_type_is_answered_with_its_name(busy_books: SqliteBooks) -> None:
    with pytest.raises(DeclarationError, match="column waypoint of journal is a string, not a int"):
        StagepostReader(Options.read({"url": busy_books.url}), StructType().add("waypoint", "integer"))


@pytest.mark.parametrize(
    ("columns", "names", "says"),
    [
        (None, ["id", "at", "id"], "the schema of journal names a column twice: id, at, id; name it once"),
        ("at", ["id"], "the option columns names at, and the schema id; give one of the two"),
    ],
)
def test_a_schema_that_contradicts_itself_or_an_option_is_refused(
    books: SqliteBooks, columns: str | None, names: list[str], says: str
) -> None:
    given = {"url": books.url} | ({} if columns is None else {"columns": columns})
    with pytest.raises(DeclarationError, match=says):
        StagepostReader(Options.read(given), StructType([JOURNAL[name] for name in names]))


def test_a_schema_that_says_a_column_is_never_null_is_refused(spark: SparkSession, books: SqliteBooks) -> None:
    """Spark would give all rows to the filter, though the column is null in each of them."""
    books.start(orders(2))
    with pytest.raises(PySparkException, match="column cause_id of journal is never null, which the source does not"):
        load(spark, books, schema="id bigint, cause_id string NOT NULL").where("cause_id IS NOT NULL").count()
    plain = load(spark, books).where("id IS NOT NULL AND cause_id IS NULL")
    again = spark.read.schema(plain.schema).format("stagepost").option("url", books.url).load()
    assert again.where("cause_id IS NULL").count() == plain.count() > 0


def test_a_file_that_is_no_store_is_said_to_be_none(spark: SparkSession, tmp_path: Path, books: SqliteBooks) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(b"not a database, but long enough to be taken for the beginning of one" * 20)
    with pytest.raises(PySparkException, match="It is a file of something else: check the database URL"):
        spark.read.format("stagepost").option("url", f"sqlite:///{other}").load().collect()


# Ranges


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 1000])
def test_partitions_hold_each_row_once_however_many_they_are(books: SqliteBooks, parts: int) -> None:
    books.start(orders(53))
    options = Options.read({"url": books.url, "numpartitions": str(parts)})
    reader = StagepostReader(options, StructType().add(JOURNAL["id"]))
    found = ids_of(reader)
    assert found == [row for (row,) in expected(books, "id", "journal")]


def ids_of(reader: StagepostReader) -> list[int]:
    partitions = reader.partitions()
    return sorted(each for partition in partitions for each in ids_in(reader, partition))


def ids_in(reader: StagepostReader, partition: InputPartition) -> Iterator[int]:
    for batch in reader.read(partition):
        assert isinstance(batch, pa.RecordBatch)
        yield from batch.column("id").to_pylist()


@pytest.mark.parametrize(
    ("bounds", "ids"),
    [
        ({"from": "5"}, range(5, 11)),
        ({"until": "5"}, range(1, 5)),
        ({"from": "3", "until": "8"}, range(3, 8)),
        ({"from": "11"}, []),
        ({"from": "99"}, []),
        ({"until": "0"}, []),
        ({"until": "99"}, range(1, 11)),
        ({"from": "8", "until": "3"}, []),
    ],
    ids=str,
)
def test_only_ids_from_the_one_until_the_other_are_read(
    books: SqliteBooks, bounds: dict[str, str], ids: range | list[int]
) -> None:
    books.start(orders(10))
    assert books.number("SELECT max(id) FROM stagepost_journal") == 10
    reader = StagepostReader(Options.read({"url": books.url, **bounds}), StructType().add(JOURNAL["id"]))
    assert ids_of(reader) == list(ids)


def test_a_journal_whose_beginning_was_purged_is_divided_from_where_it_begins(books: SqliteBooks) -> None:
    books.start(orders(30))
    books.change("DELETE FROM stagepost_journal WHERE id <= 20")
    reader = StagepostReader(Options.read({"url": books.url, "numpartitions": "2"}), StructType().add(JOURNAL["id"]))
    assert [each.bounds[:2] for each in reader.partitions() if isinstance(each, Range) and each.bounds] == [
        (21, 26),
        (26, 31),
    ]
    assert ids_of(reader) == list(range(21, 31))


WRITER = """
import sys
from tests.pipeline.books import SqliteBooks, orders
from pathlib import Path
books = SqliteBooks(Path(sys.argv[1]))
for number in range(100_000):
    books.start(orders(3, name=f"w{number}-"))
"""


def test_two_reads_until_one_id_see_the_same_rows_while_another_process_writes(
    spark: SparkSession, books: SqliteBooks
) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(books.path)], cwd=ROOT) as writer:
        try:
            wait_until(lambda: books.waypoints("accepted") > 100, "the other process writes")
            until = books.number("SELECT max(id) FROM stagepost_journal") + 1
            reads = []
            for parts in (1, 4, 9):
                read = load(spark, books, "journal", "id bigint", until=until, numPartitions=parts)
                reads.append(sorted(row.id for row in read.collect()))
                seen = reads[-1][-1]
                wait_until(partial(has_grown, books, seen + 10), "it writes on")
        finally:
            writer.kill()
    assert reads == [list(range(1, until))] * 3


def test_a_partition_that_is_read_late_holds_no_row_that_came_later(books: SqliteBooks) -> None:
    books.start(orders(10))
    options = Options.read({"url": books.url, "until": "11", "numpartitions": "3"})
    reader = StagepostReader(options, StructType().add(JOURNAL["id"]))
    partitions = reader.partitions()
    books.start(orders(10, name="later"))
    assert [each for partition in partitions for each in ids_in(reader, partition)] == list(range(1, 11))


def has_grown(books: SqliteBooks, beyond: int) -> bool:
    return books.number("SELECT max(id) FROM stagepost_journal") > beyond


def test_the_queue_is_read_at_one_moment(books: SqliteBooks) -> None:
    """A message that moves from table to table meanwhile is seen, and seen once."""
    books.start(orders(5))
    source = StagepostSource({"url": books.url, "table": "queue"})
    reader = source.reader(StructType().add(QUEUE["message_id"]).add(QUEUE["place"]))
    (partition,) = reader.partitions()
    read = reader.read(partition)
    books.change("INSERT INTO stagepost_delayed (due_at, stage, message_id, flow_id, failures, deaths, deliveries,"
                 " origin_at, envelope) SELECT 1, stage, message_id, flow_id, 0, 0, 1, origin_at, envelope"
                 " FROM stagepost_ready LIMIT 2")  # fmt: skip
    books.change("DELETE FROM stagepost_ready WHERE message_id IN (SELECT message_id FROM stagepost_delayed)")
    batches = (batch for batch in read if isinstance(batch, pa.RecordBatch))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len({row["message_id"] for row in rows}) == len(rows) == 5


def test_the_file_is_opened_by_pythons_own_sqlite_alone(spark: SparkSession, books: SqliteBooks) -> None:
    """A second SQLite library in one process drops the locks of the first, and committed rows vanish."""
    books.start(orders(1))
    script = (
        "import sys\nfrom pyspark_stagepost.batch import *\nfrom pyspark_stagepost.schemas import TABLES\n"
        f"reader = StagepostReader(Options.read({{'url': {books.url!r}}}), StructType().add(TABLES['journal']['id']))\n"
        "assert sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each)) == 1\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(sorted({line.split()[-1] for line in maps.splitlines() if 'sqlite' in line}), [m for m in sys.modules if"
        " 'adbc' in m])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    libraries, others = done.stdout.strip().rsplit(" [", 1)
    assert len([each for each in libraries.split(",") if "libsqlite3" in each]) <= 1
    assert others == "]"


def test_reading_writes_nothing(spark: SparkSession, busy_books: SqliteBooks) -> None:
    before = sqlite_dump(busy_books.path)
    for table in TABLES:
        load(spark, busy_books, table).collect()
    assert sqlite_dump(busy_books.path) == before


def test_reading_is_not_held_up_by_a_writer(spark: SparkSession, busy_books: SqliteBooks) -> None:
    with busy_books.connected() as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM stagepost_journal")
        assert load(spark, busy_books).count() > 0
        writer.execute("ROLLBACK")


def test_a_reader_does_not_drop_the_locks_of_its_process(books: SqliteBooks) -> None:
    """Spark's Python processes serve one job after the other: one may read while it holds an incarnation."""
    app = books.app
    incarnation = engine_of(app).incarnate("here")
    assert isinstance(incarnation, LockFile)
    books.start(orders(1))
    reader = StagepostReader(Options.read({"url": books.url}), StructType().add(JOURNAL["id"]))
    assert ids_of(reader) == [1]
    probe = (
        f"import fcntl, os; fcntl.lockf(os.open({str(incarnation.path)!r}, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode != 0
    incarnation.close()


def sqlite_dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def test_dead_letters_are_read_by_one_task_at_one_moment(books: SqliteBooks) -> None:
    """A letter that is replayed and dies again moves to the end of the table: it would be seen twice, or not at all."""
    books.start(orders(8, "fail", entries=1, name="dead"))
    books.drain()
    options = Options.read({"url": books.url, "table": "dead_letters", "numpartitions": "4"})
    reader = StagepostReader(options, StructType().add(DEAD_LETTERS["flow_id"]))
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    first = next(batches)
    last = books.number("SELECT max(id) FROM stagepost_dead_letter")
    columns = ", ".join(name for name in DEAD_LETTERS.names if name != "id")
    books.change(f"INSERT INTO stagepost_dead_letter ({columns}) SELECT {columns} FROM stagepost_dead_letter")
    books.change("DELETE FROM stagepost_dead_letter WHERE id <= ?", last)
    rows = [row["flow_id"] for batch in (first, *batches) for row in batch.to_pylist()]
    assert sorted(rows) == [f"dead{number}" for number in range(8)]
