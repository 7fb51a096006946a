"""The pipeline on a PostgreSQL server: what it does on SQLite, it does there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pyspark_stagepost.batch import StagepostReader
from pyspark_stagepost.options import Options
from pyspark_stagepost.schemas import JOURNAL, TABLES
from stagepost.app.app import engine_of
from stagepost.pipeline.jobs.claim_loop import ProcessingPlan
from stagepost.pipeline.jobs.process import process
from stagepost.runtime.settings import Place
from stagepost.transaction.stage import Mode
from tests.pipeline.books import orders
from tests.pipeline.commands import Cli
from tests.pipeline.postgres_books import PostgresBooks, PostgresInTwo
from tests.pipeline.shop import STAGES, module_of
from tests.pipeline.test_data_source import ids_in, ids_of, load, test_dead_letters_are_read_by_one_task_at_one_moment
from tests.pipeline.test_initiate_books import counts, quantities, start, write
from tests.pipeline.test_initiate_formats import (
    test_a_value_that_no_text_or_moment_can_hold_is_quarantined_and_ends_no_job,
)

__all__ = [
    "test_a_value_that_no_text_or_moment_can_hold_is_quarantined_and_ends_no_job",
    "test_dead_letters_are_read_by_one_task_at_one_moment",
]

HOSTILE = b"\xff\xfe\x00{\xed\xa0\x80\xf5" + "ž\U0001f9fe".encode()
UNICODE = "žluť \U0001f9fe 世 界\n'quoted' \\ \"twice\""


@pytest.fixture
def books(new_postgres: Callable[[], str]) -> PostgresBooks:
    """In the place of the one in a file, also for ``cli``."""
    return PostgresBooks(new_postgres())


# From a file to its proof


def test_a_file_starts_its_flows_once_and_says_what_became_of_each_of_its_rows(
    cli: Cli, books: PostgresBooks, spark: SparkSession, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.csv", "A,1", "A,1", "A,2", "B,1", "ž世,4", "bad,x", "short")
    assert counts(start(cli, file)) == (7, 3, 1, 3)
    assert quantities(books) == {"o:A": 1, "o:B": 1, "o:ž世": 4}
    assert [(name, record, reason.partition(":")[0]) for name, record, reason in books.quarantine()] == [
        ("a.csv", 3, "id-conflict"),
        ("a.csv", 6, "undecodable"),
        ("a.csv", 7, "malformed"),
    ]
    before = books.rows("SELECT * FROM stagepost_ready ORDER BY id")
    assert counts(start(cli, file)) == (7, 0, 4, 3)
    assert books.rows("SELECT * FROM stagepost_ready ORDER BY id") == before
    assert books.waypoints("accepted") == 3
    assert books.number("SELECT count(*) FROM stagepost_run WHERE rows_in = 7 AND ended_at >= started_at") == 2
    assert books.nodes("accepted") == {"spark"}
    quarantine = plain(books, "quarantine")
    assert (read(spark, books, "quarantine"), len(quarantine)) == ((quarantine, 1), 6)


def test_what_waits_is_processed_once_by_the_executors_and_the_audit_proves_it(
    cli: Cli, books: PostgresBooks, tmp_path: Path
) -> None:
    flows = [
        *orders(20),
        *orders(2, f"fail-once={tmp_path}/failed", name="once"),
        *orders(2, "fail", entries=1, name="bad"),
        *orders(1, f"kill-once={tmp_path}/died", name="dies"),
        *orders(3, name="late"),
    ]
    books.start(flows[:-3])
    books.start(flows[-3:], delay=0.5)
    answer = cli("process", cli.app, "--json")
    assert answer.code == 0
    assert books.problems(flows) == []
    assert (books.proofs_of_life(), books.in_doubt()) == ([], 0)
    # Suspects are run by a child of the driver.
    assert books.nodes("committed") <= {"spark", "alone"}
    committed = "SELECT node, count(*) FROM stagepost_journal WHERE waypoint = 'committed' GROUP BY node"
    assert answer.json["committed"] == dict(books.rows(committed))
    assert sum(answer.json["committed"].values()) == 26 * len(STAGES) + 2
    again = cli("process", cli.app, "--json")
    assert (again.code, again.json["committed"]) == (0, {})

    found = cli.audit()
    assert (found.code, found.json["clean"]) == (0, True)
    assert found.json["flows"] == {"flows": 28, "completed": 26, "dead": 2, "under_way": 0}
    assert found.json["waypoints"] == books.number("SELECT count(*) FROM stagepost_journal")
    assert {row["stage"]: (row["sent"], row["committed"], row["dead"]) for row in found.json["stages"]} == {
        "shop.order": (28, 28, 0),
        "shop.stock": (28, 26, 2),
        "shop.order.pack": (26, 26, 0),
        "shop.done": (26, 26, 0),
    }
    assert sum(row["committed"] for row in found.json["work"]) == 26 * len(STAGES) + 2


def test_what_was_removed_is_lost_and_what_was_done_twice_is_doubled(cli: Cli, books: PostgresBooks) -> None:
    books.start([*orders(5), *orders(1, "fail", entries=1, name="bad")])
    books.drain()
    books.start(orders(3, name="waits"))
    books.change("DELETE FROM stagepost_ready WHERE flow_id = 'waits1'")
    books.change("DELETE FROM stagepost_dead_letter")
    books.forge("committed", "flow_id = 'o2' AND stage = 'shop.stock'")
    books.forge("sent", "flow_id = 'o3' AND stage = 'shop.done'", message_id="'another'")
    books.forge("committed", "flow_id = 'o3' AND stage = 'shop.done'", message_id="'another'")
    answer = cli.audit()
    found = answer.json
    assert (answer.code, found["clean"]) == (1, False)
    assert sorted((row["flow_id"], row["stage"]) for row in found["lost"]) == [
        ("bad0", "shop.stock"),
        ("waits1", "shop.order"),
    ]
    assert sorted((row["flow_id"], row["stage"], row["how"]) for row in found["doubled"]) == [
        ("o2", "shop.stock", "two commits of one message"),
        ("o3", "shop.done", "two messages from one send"),
    ]
    assert (found["lost_count"], found["doubled_count"]) == (2, 2)


@pytest.mark.parametrize("mode", ["outbox", "two_phase"])
def test_messages_in_another_database_than_the_ledger_are_all_processed_once(
    spark: SparkSession, new_postgres: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    queue = PostgresBooks(new_postgres())
    books = PostgresInTwo(PostgresBooks(new_postgres()), queue, mode)
    flows = [
        *orders(12),
        *orders(1, f"fail-once={tmp_path}/failed", name="once"),
        *orders(1, "fail", entries=1, name="bad"),
        *orders(2, name="late"),
    ]
    books.start(flows[:-2])
    books.start(flows[-2:], delay=0.5)
    assert (books.number("SELECT count(*) FROM stagepost_outbox"), queue.waiting()) == (16, 0)
    plan = ProcessingPlan(module_of(tmp_path, mode=mode), str(tmp_path), Place(books.url, queue.url), "CRITICAL")
    done = process(spark, plan)
    assert books.problems(flows) == []
    assert (sum(done.committed.values()), done.failed) == (15 * len(STAGES) + 1, 0)
    assert (queue.proofs_of_life(), books.nodes("committed")) == ([], {"spark"})
    # Of what is one store's where both are one, each has its own.
    assert books.number("SELECT count(*) FROM stagepost_inbox") == (15 * len(STAGES) + 1 if mode == "outbox" else 0)
    assert queue.number("SELECT count(*) FROM stagepost_inbox") == 0
    assert queue.number("SELECT count(*) FROM ledger") == 0


# The source


@pytest.fixture
def busy_books(books: PostgresBooks) -> PostgresBooks:
    """One message in each place that a message can be in, and bytes and texts of all kinds."""
    books.start([*orders(6, name="done"), *orders(1, "fail", entries=1, name="dead0-")])
    books.start(orders(1, "fail", entries=1, name="dead1-"))
    harness = books.harness()
    harness.drain()
    books.start(orders(1, name="claimed"))
    assert harness.claim_one() is not None
    books.start(orders(2, name="ready"))
    books.start(orders(1, name="delayed"), delay=3600)
    books.change(
        "INSERT INTO stagepost_suspect (due_at, stage, message_id, flow_id, failures, deaths, deliveries, origin_at,"
        " envelope) VALUES (1, 'shop.done', 'suspect', ?, 2, 1, 4, 5, ?)", UNICODE, b""
    )  # fmt: skip
    books.change("UPDATE stagepost_ready SET envelope = ? WHERE flow_id = 'ready0'", HOSTILE)
    books.change(
        "UPDATE stagepost_dead_letter SET envelope = ?, stack = ? WHERE flow_id LIKE 'dead0%'", HOSTILE, UNICODE
    )
    books.change("UPDATE stagepost_journal SET detail = ? WHERE id = 1", UNICODE)
    harness.close()
    return books


PLAIN = {
    "journal": ["SELECT * FROM stagepost_journal"],
    "queue": [
        "SELECT 'ready' AS place, NULL AS due_at, * FROM stagepost_ready WHERE owner IS NULL",
        "SELECT 'claimed' AS place, NULL AS due_at, * FROM stagepost_ready WHERE owner IS NOT NULL",
        "SELECT 'delayed' AS place, NULL AS owner, * FROM stagepost_delayed",
        "SELECT 'suspect' AS place, NULL AS owner, * FROM stagepost_suspect",
    ],
    "dead_letters": ["SELECT * FROM stagepost_dead_letter"],
    "quarantine": ["SELECT * FROM stagepost_quarantine"],
}


def plain(books: PostgresBooks, table: str, where: str = "true", *parameters: int) -> list[tuple[Any, ...]]:
    """What the tables hold, by no code of ours; bytes that are no text as Python reads them."""
    columns = ", ".join(TABLES[table].names)
    found: list[tuple[Any, ...]] = []
    for query in PLAIN[table]:
        found += books.rows(f"SELECT {columns} FROM ({query}) AS t WHERE {where}", *parameters)
    return in_order(tuple(readable(value) for value in row) for row in found)


def readable(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def in_order(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def read(spark: SparkSession, books: PostgresBooks, table: str, **options: Any) -> tuple[list[tuple[Any, ...]], int]:
    """The rows as Spark has them, moments in microseconds, and by how many tasks they were read."""
    frame = load(spark, books, table, **options)
    assert frame.schema == TABLES[table]
    moment = JOURNAL["at"].dataType
    moments = [f"unix_micros({each.name})" if each.dataType == moment else each.name for each in frame.schema]
    rows = [tuple(row) for row in frame.selectExpr("spark_partition_id()", *moments).collect()]
    return in_order(row[1:] for row in rows), len({row[0] for row in rows})


def test_the_tables_hold_what_a_plain_query_says_however_many_tasks_read_them(
    spark: SparkSession, busy_books: PostgresBooks
) -> None:
    for table, parts, tasks in (("journal", 3, 3), ("queue", 3, 1), ("dead_letters", 2, 1)):
        assert read(spark, busy_books, table, numPartitions=parts) == (plain(busy_books, table), tasks)
    # Of all that was said of NULL, of texts and of bytes, there is something in it.
    queue = {row[0]: row for row in plain(busy_books, "queue")}
    assert queue.keys() == {"ready", "claimed", "delayed", "suspect"}
    assert [(place, row[8], row[10]) for place, row in queue.items() if place in ("claimed", "suspect")] == [
        ("claimed", "harness/1", None),
        ("suspect", None, 1),
    ]
    assert (queue["suspect"][4], queue["suspect"][-1]) == (UNICODE, "")
    assert {row[-1] for row in plain(busy_books, "dead_letters")} >= {HOSTILE.decode(errors="replace")}


@pytest.mark.more
def test_the_journal_is_read_from_one_transaction_until_another(spark: SparkSession, books: PostgresBooks) -> None:
    for name, number in (("a", 4), ("b", 7), ("c", 5)):
        books.start(orders(number, name=name))
    # A number each: one too many or too few would show.
    (a,), (b,), (c,) = books.rows("SELECT DISTINCT txid FROM stagepost_journal ORDER BY txid")
    of_b = read(spark, books, "journal", numPartitions=2, **{"from": b, "until": c})
    assert of_b == (plain(books, "journal", "txid >= ? AND txid < ?", b, c), 2)
    assert len(of_b[0]) == 7
    for begin, end in ((0, b), (a, a), (a, c), (a, c + 1), (c, c + 9), (c + 1, c + 9), (c, a)):
        within = "SELECT id FROM stagepost_journal WHERE txid >= ? AND txid < ? ORDER BY id"
        expected = [number for (number,) in books.rows(within, begin, end)]
        for parts in ("1", "3", "50"):
            options = {"url": books.url, "from": str(begin), "until": str(end), "numpartitions": parts}
            assert ids_of(StagepostReader(Options.read(options), StructType().add(JOURNAL["id"]))) == expected


def reader_of(books: PostgresBooks, **options: str) -> StagepostReader:
    return StagepostReader(Options.read({"url": books.url, "numpartitions": "4", **options}), ONLY_IDS)


ONLY_IDS = StructType().add(JOURNAL["id"])


def line(connection: psycopg.Connection[Any], flow: str) -> None:
    connection.execute(
        "INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at)"
        " VALUES ('sent', 1, 'test', 'shop.stock', %s, %s, 1, 1)",
        (flow, flow),
    )


def test_all_tasks_of_a_read_see_the_journal_of_one_moment(books: PostgresBooks) -> None:
    """That of the driver: a transaction that commits between two tasks is in none of them, with none of its rows."""
    with books.connected() as early, books.connected() as late:
        for number in range(40):
            line(late if number % 2 else early, f"o{number}")
        early.commit()
        reader = reader_of(books)
        partitions = reader.partitions()
        assert len(partitions) == 4
        found = list(ids_in(reader, partitions[0]))
        late.commit()
        for partition in partitions[1:]:
            found += list(ids_in(reader, partition))
        by_early = [number for (number,) in books.rows("SELECT id FROM stagepost_journal ORDER BY id")][::2]
        assert found == by_early
        # What had committed is seen, though an older transaction is open.
        assert len(ids_of(reader_of(books))) == 40


def test_rows_behind_an_open_transaction_are_seen_where_no_end_is_given(books: PostgresBooks) -> None:
    """The audit asks so whether what looks lost has moved on meanwhile."""
    with books.connected() as held:
        line(held, "open")
        books.start(orders(3))
        with closing(engine_of(books.app).access().session) as session:
            until = session.journal.position()
        assert ids_of(reader_of(books, until=str(until))) == []
        assert len(ids_of(reader_of(books, **{"from": str(until)}))) == 3


def test_a_journal_that_was_restored_where_transactions_have_lower_numbers_is_read_whole(books: PostgresBooks) -> None:
    books.start(orders(3))
    books.change("UPDATE stagepost_journal SET txid = txid + 1000000")
    books.change("UPDATE stagepost_meta SET value = 'elsewhere' WHERE key = 'lineage'")
    reader = reader_of(books)
    partitions = reader.partitions()
    books.start(orders(5, name="later"))
    assert len([each for partition in partitions for each in ids_in(reader, partition)]) == 3
    assert len(ids_of(reader_of(books))) == 8
