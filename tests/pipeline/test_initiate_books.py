"""``stagepost initiate``: rows in = started + repeated + quarantined, whatever is in the files and in the store."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stagepost.flow import ids
from stagepost.pipeline.jobs.initiate import CHUNK, InitiationFailed, InitiationPlan, initiate
from stagepost.ports.runs import RunCounts
from stagepost.runtime.settings import Place
from stagepost.store.sql.runs import SqlRuns
from tests.pipeline.books import Books
from tests.pipeline.commands import Answer, Cli
from tests.pipeline.shop import Order, module_of


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(["order_id,quantity", *rows]) + "\n")
    return path


def start(cli: Cli, *files: Path) -> Answer:
    return cli.initiate(*files, "--flow-prefix", "o", to="shop.order", by="order_id")


def counts(answer: Answer) -> tuple[int, int, int, int]:
    """Rows in, started, repeated, quarantined."""
    assert answer.json["balanced"]
    told = answer.json
    assert answer.code == (1 if 0 < told["rows_in"] == told["quarantined"] else 0)
    return told["rows_in"], told["started"], told["repeated"], told["quarantined"]


def quantities(books: Books) -> dict[str, int]:
    return {flow: order.quantity for flow, order in books.waiting_messages().items()}


def test_of_rows_with_one_id_the_first_by_file_and_record_starts_whatever_order_the_files_are_named_in(
    cli: Cli, books: Books, tmp_path: Path
) -> None:
    first = write(tmp_path / "1.csv", "A,1", "A,1", "A,2", "B,1")
    second = write(tmp_path / "2.csv", "B,1", "A,3", "C,1", "bad,x", "C,1")
    assert counts(start(cli, second, first)) == (9, 3, 3, 3)
    assert quantities(books) == {"o:A": 1, "o:B": 1, "o:C": 1}
    assert [(name, record, reason.partition(":")[0]) for name, record, reason in books.quarantine()] == [
        ("1.csv", 3, "id-conflict"),
        ("2.csv", 2, "id-conflict"),
        ("2.csv", 4, "undecodable"),
    ]
    assert "but shop.order accepted the same id before" in books.quarantine()[1][2]


def test_run_again_it_starts_nothing(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "A,1", "A,2", "B,1", "B,1", "bad,x")
    assert counts(start(cli, file)) == (5, 2, 1, 2)
    before = books.rows("SELECT * FROM stagepost_ready")
    again = start(cli, file)
    assert counts(again) == (5, 0, 3, 2)
    assert books.rows("SELECT * FROM stagepost_ready") == before
    assert books.waypoints("accepted") == 2
    # Also when all that was started has long been done.
    books.drain()
    assert counts(start(cli, file)) == (5, 0, 3, 2)
    assert books.number("SELECT count(DISTINCT run_id) FROM stagepost_quarantine") == 3


def test_where_the_messages_are_in_another_database_that_is_where_rows_are_let_in(
    cli: Cli, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGEPOST_QUEUE", f"sqlite:///{tmp_path}/queue.db")
    file = write(tmp_path / "a.csv", "A,1", "A,2", "B,1", "B,1", "bad,x")
    assert counts(start(cli, file)) == (5, 2, 1, 2)
    assert counts(start(cli, file)) == (5, 0, 3, 2)
    with closing(sqlite3.connect(tmp_path / "queue.db")) as queue:
        assert queue.execute("SELECT flow_id FROM stagepost_ready ORDER BY flow_id").fetchall() == [("o:A",), ("o:B",)]
    assert books.waiting() == 0


def test_a_file_that_has_grown_starts_what_is_new(cli: Cli, books: Books, tmp_path: Path) -> None:
    rows = [f"{number},1" for number in range(20)]
    start(cli, write(tmp_path / "a.csv", *rows[:12]))
    Random(3).shuffle(rows)
    assert counts(start(cli, write(tmp_path / "b.csv", *rows))) == (20, 8, 12, 0)
    assert len(quantities(books)) == 20


def test_what_the_store_knows_with_other_content_is_a_conflict_that_changes_nothing(
    cli: Cli, books: Books, tmp_path: Path
) -> None:
    app = books.app
    app.start(app.target("shop.order"), Order("A", 1, ""), flow_id="o:A")
    file = tmp_path / "a.jsonl"
    file.write_text(
        '{"order_id": "A", "quantity": 1, "fault": ""}\n{"order_id": "A", "quantity": 9, "fault": ""}\n'
        '{"order_id": "B", "quantity": 1, "fault": ""}\n'
    )
    assert counts(start(cli, file)) == (3, 1, 1, 1)
    file.write_text('{"order_id": "A", "quantity": 9, "fault": ""}\n')
    answer = start(cli, file)
    assert counts(answer) == (1, 0, 0, 1)
    assert answer.json["examples"][0]["reason"].startswith("id-conflict: this content has the digest ")
    assert "but shop.order accepted the same id before with " in answer.json["examples"][0]["reason"]
    assert quantities(books) == {"o:A": 1, "o:B": 1}


def test_repeats_of_a_row_that_conflicts_with_the_store_are_repeats_of_it(
    cli: Cli, books: Books, tmp_path: Path
) -> None:
    """They have the content of the first row of their run, which the store refuses. Whatever they are called, they
    start nothing, and the books balance."""
    app = books.app
    app.start(app.target("shop.order"), Order("A", 1), flow_id="o:A")
    answer = start(cli, write(tmp_path / "a.csv", "A,9", "A,9", "A,9"))
    rows_in, started, repeated, quarantined = counts(answer)
    assert (rows_in, started, repeated + quarantined) == (3, 0, 3)


def test_what_has_the_content_of_a_refused_row_is_refused_with_it(cli: Cli, books: Books, tmp_path: Path) -> None:
    app = books.app
    app.start(app.target("shop.order"), Order("A", 1), flow_id="o:A")
    assert counts(start(cli, write(tmp_path / "a.csv", "A,9", "A,9"))) == (2, 0, 0, 2)


def test_what_was_accepted_before_stays_a_repeat_when_another_row_comes_first(
    cli: Cli, books: Books, tmp_path: Path
) -> None:
    assert counts(start(cli, write(tmp_path / "monday.csv", "A,1"))) == (1, 1, 0, 0)
    assert counts(start(cli, write(tmp_path / "tuesday.csv", "A,2", "A,1"))) == (2, 0, 1, 1)


def test_a_file_without_rows_starts_nothing(cli: Cli, books: Books, tmp_path: Path) -> None:
    assert counts(start(cli, write(tmp_path / "a.csv"))) == (0, 0, 0, 0)
    (tmp_path / "a.jsonl").write_text("")
    assert counts(start(cli, tmp_path / "a.jsonl")) == (0, 0, 0, 0)


def test_a_file_named_twice_is_read_once(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "A,1", "B,1", "bad,x")
    rows_in, started, repeated, quarantined = counts(start(cli, file, file))
    assert (rows_in, started, repeated, quarantined) == (3, 2, 0, 1)


def test_a_file_named_twice_has_the_records_that_it_has(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "A,1", "bad,x")
    start(cli, file, file)
    assert {record for _, record, _ in books.quarantine()} <= {2}


def test_a_run_is_on_record_with_its_files_and_its_counts(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "A,1", "B,1")
    run = start(cli, file).json["run_id"]
    assert books.rows("SELECT id, target, source, rows_in FROM stagepost_run") == [(run, "shop.order", str(file), 2)]
    assert books.number("SELECT count(*) FROM stagepost_run WHERE ended_at >= started_at") == 1
    assert {detail for (detail,) in books.rows("SELECT detail FROM stagepost_journal")} == {run}
    assert {run_id for (run_id,) in books.rows("SELECT run_id FROM stagepost_accepted")} == {run}
    assert books.nodes("accepted") == {"spark"}


# Larger than a chunk, and read in several tasks


@pytest.fixture
def many_tasks(spark: SparkSession) -> Iterator[SparkSession]:
    settings = {
        "spark.sql.files.maxPartitionBytes": "20000",
        "spark.sql.files.openCostInBytes": "0",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.shuffle.partitions": "5",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        spark.conf.unset(name) if old is None else spark.conf.set(name, old)


@pytest.mark.usefixtures("many_tasks")
def test_the_books_balance_over_many_tasks_and_chunks(cli: Cli, books: Books, tmp_path: Path) -> None:
    random = Random(7)
    rows = [f"{number},{number}" for number in range(4 * CHUNK)]
    rows += random.sample(rows, 300)
    rows += [f"{number},0" for number in range(100, 200)]
    rows += [f"{number},many" for number in range(900_000, 900_100)]
    rows += [",1"] * 100
    random.shuffle(rows)
    half = len(rows) // 2
    # The first row of an order starts it, by file and record.
    expected: dict[str, int] = {}
    for row in rows:
        order, quantity = row.split(",")
        if order and quantity.isdecimal():
            expected.setdefault(f"o:{order}", int(quantity))
    answer = start(cli, write(tmp_path / "1.csv", *rows[:half]), write(tmp_path / "2.csv", *rows[half:]))
    assert counts(answer)[:2] == (4 * CHUNK + 600, 4 * CHUNK)
    assert quantities(books) == expected
    repeated, quarantined = counts(answer)[2:]
    assert (repeated + quarantined, quarantined >= 300) == (600, True)
    assert books.number("SELECT count(*) FROM stagepost_run_task") == 5
    # Each record that was quarantined is the one that the file has there.
    for name, record, _ in books.quarantine():
        row = rows[record - 1 + (half if name == "2.csv" else 0)]
        assert row in books.text_of(name, record)


def test_two_runs_at_once_start_each_flow_once_and_count_each_row(
    spark: SparkSession, books: Books, tmp_path: Path
) -> None:
    """Two jobs of one session; two commands are two of these in processes of their own."""
    file = write(tmp_path / "a.csv", *(f"{number},1" for number in range(3 * CHUNK)))
    app = module_of(tmp_path)
    results: dict[str, Any] = {}

    def run(run_id: str) -> None:
        plan = InitiationPlan(app, str(tmp_path), Place(books.url, None), "shop.order", None, run_id, "csv")
        results[run_id] = initiate(spark, plan, [str(file)], id_columns=["order_id"], flow_prefix="o")

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [each.is_balanced for each in results.values()] == [True, True]
    assert sum(each.started for each in results.values()) == 3 * CHUNK
    assert sum(each.repeated for each in results.values()) == 3 * CHUNK
    assert quantities(books) == {f"o:{number}": 1 for number in range(3 * CHUNK)}
    assert books.waypoints("accepted") == 3 * CHUNK


def started_with(
    spark: SparkSession, books: Books, folder: Path, file: Path, on_counted: Callable[[int], None]
) -> RunCounts:
    plan = InitiationPlan(module_of(folder), str(folder), Place(books.url, None), "shop.order", None, "run", "csv")
    return initiate(spark, plan, [str(file)], id_columns=["order_id"], flow_prefix="o", on_counted=on_counted)


@pytest.mark.parametrize("quoted", [False, True])
def test_cores_that_come_after_the_rows_were_counted_drop_none(
    many_tasks: SparkSession, books: Books, tmp_path: Path, quoted: bool
) -> None:
    """Spark derives the size of blocks from their number. A cluster of executors that join is in ``test_cluster``."""
    rows = [f'{number},"1"' if quoted else f"{number},1" for number in range(3 * CHUNK)]
    file = write(tmp_path / "a.csv", *rows, *([] if not quoted else ['"a', 'b",1']))
    total = 3 * CHUNK + quoted
    cores = "spark.sql.leafNodeDefaultParallelism"
    many_tasks.conf.set(cores, "2")
    try:
        found = started_with(many_tasks, books, tmp_path, file, lambda rows: many_tasks.conf.set(cores, "5"))
    finally:
        many_tasks.conf.unset(cores)
    assert (found.rows_in, found.started, found.quarantined) == (total, 3 * CHUNK, int(quoted))
    assert found.is_balanced
    assert len(quantities(books)) == 3 * CHUNK


@pytest.mark.more
def test_blocks_that_are_not_those_that_were_counted_end_the_job(
    many_tasks: SparkSession, books: Books, tmp_path: Path
) -> None:
    """Whatever changed them: no row is left out, and none gets another one's number."""
    file = write(tmp_path / "a.csv", *(f"{number},1" for number in range(3 * CHUNK)))
    with pytest.raises(InitiationFailed, match="was not there when the file was counted"):
        started_with(
            many_tasks,
            books,
            tmp_path,
            file,
            lambda rows: many_tasks.conf.set("spark.sql.files.maxPartitionBytes", "3000"),
        )
    assert books.waiting() == 0


def test_ids_in_the_store_are_those_that_python_makes(cli: Cli, books: Books, tmp_path: Path) -> None:
    names = ["1", "ž", "世 界", "a%b", "\U0001f9fe", "x" * 190]
    start(cli, write(tmp_path / "a.csv", *(f'"{name}",1' for name in [*names, "a,b"])))
    flows = [f"o:{name}".replace("%", "%25") for name in names] + ["o:a%2Cb"]
    assert {key for (key,) in books.rows("SELECT key FROM stagepost_accepted")} == {
        ids.from_key(flow, "shop.order", 0) for flow in flows
    }


@pytest.mark.parametrize("counted", [7, 3])
def test_books_that_do_not_balance_have_an_exit_code_of_their_own_and_say_what_to_do(
    cli: Cli, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: int
) -> None:
    """Also where every row that was read is quarantined, which has another code."""
    rows = ["bad,x"] * 5 if counted == 7 else ["A,1", "B,1", "bad,x", "bad,x", "bad,x"]
    end = SqlRuns.end
    monkeypatch.setattr(
        SqlRuns, "end", lambda runs, run_id, start, rows_in, now: end(runs, run_id, start, counted, now)
    )
    answer = start(cli, write(tmp_path / "a.csv", *rows))
    assert (answer.code, answer.json["balanced"], answer.json["rows_in"]) == (4, False, counted)
    assert answer.err.startswith(f"error (unbalanced): {counted} rows were counted, and 5 have an outcome.")
    assert "Run the same command again: it starts no flow twice" in answer.err
