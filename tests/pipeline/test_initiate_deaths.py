"""``stagepost initiate`` while processes die: each row is counted once, and no flow starts twice."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stagepost.pipeline.jobs.initiate import CHUNK, InitiationPlan, initiate
from stagepost.ports.runs import RunCounts
from stagepost.runtime.settings import Place
from tests.pipeline.books import Books
from tests.pipeline.commands import JAVA, Cli, Commands
from tests.pipeline.shop import module_of
from tests.pipeline.test_initiate_books import many_tasks
from tests.processes import kill
from tests.waiting import wait_until

__all__ = ["many_tasks"]

ROWS = 30 * CHUNK
REPEATED = 40
CONFLICTING = 30
MALFORMED = 20


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """With rows of every fate, near the end."""
    rows = [f"{number},1" for number in range(ROWS)]
    rows += [f"{number},1" for number in range(REPEATED)]
    rows += [f"{number},2" for number in range(CONFLICTING)]
    rows += [f"{number}" for number in range(MALFORMED)]
    file = tmp_path / "orders.csv"
    file.write_text("\n".join(["order_id,quantity", *rows, ""]))
    return file


def check(books: Books) -> None:
    """What is in the store, whoever put it there."""
    found = books.rows("SELECT flow_id, count(*) FROM stagepost_journal WHERE waypoint = 'accepted' GROUP BY flow_id")
    assert len(found) == ROWS
    assert {count for _, count in found} == {1}
    assert {flow: order.quantity for flow, order in books.waiting_messages().items()} == {
        f"o:{number}": 1 for number in range(ROWS)
    }
    assert books.waiting() == ROWS


def run_in_thread(spark: SparkSession, books: Books, folder: Path, file: Path) -> tuple[threading.Thread, list[Any]]:
    plan = InitiationPlan(module_of(folder), str(folder), Place(books.url, None), "shop.order", None, "run", "csv")
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(initiate(spark, plan, [str(file)], id_columns=["order_id"], flow_prefix="o"))
        except BaseException as error:  # noqa: BLE001 - it is looked at by the test
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def chunks(books: Books) -> int:
    return books.waiting() // CHUNK


def has_written(books: Books, wanted: int, victims: list[int], results: list[Any]) -> bool:
    """So many chunks are written, the last one by a process that was not killed."""
    return bool(results) or (chunks(books) >= wanted and writer(books) not in victims)


def writer(books: Books) -> int:
    """The Python process that wrote last."""
    (node,) = books.rows("SELECT node FROM stagepost_journal ORDER BY id DESC LIMIT 1")[0]
    return int(str(node).rpartition(":")[2])


@pytest.mark.usefixtures("many_tasks")
def test_a_python_process_killed_in_mid_write_is_tried_again_and_counts_once(
    spark: SparkSession, books: Books, orders: Path, tmp_path: Path
) -> None:
    thread, results = run_in_thread(spark, books, tmp_path, orders)
    victims: list[int] = []
    for written in (3, 10, 20):
        wait_until(partial(has_written, books, written, victims, results), "so much is written")
        assert not results, "it was done before it could be killed"
        victims.append(writer(books))
        kill(victims[-1])
    thread.join()
    assert results == [RunCounts(ROWS + REPEATED + CONFLICTING + MALFORMED, ROWS, REPEATED, CONFLICTING + MALFORMED)]
    check(books)
    assert len(set(victims)) == 3
    assert len(books.quarantine()) == CONFLICTING + MALFORMED


@pytest.mark.more
@pytest.mark.heavy
@pytest.mark.parametrize("victim", ["driver", pytest.param("java", marks=pytest.mark.soak)])
def test_a_run_whose_driver_or_java_is_killed_goes_on_when_it_is_run_again(
    victim: str, commands: Commands, cli: Cli, books: Books, orders: Path
) -> None:
    words = (orders, "--to", "shop.order", "--id", "order_id", "--flow-prefix", "o", "--app", cli.app, "--json")
    first = commands.start("initiate", *words)
    wait_until(lambda: chunks(books) >= 3 or not first.is_running(), "it has begun to write")
    assert first.is_running()
    if victim == "driver":
        first.kill()
    else:
        (java,) = commands.pids(JAVA)
        kill(java)
        assert first.answer().code not in (0, 2)
    wait_until(lambda: not [*commands.pids("pyspark"), *commands.pids(JAVA)], "no process of Spark's is left")
    started = books.waiting()
    assert 0 < started < ROWS
    assert books.rows("SELECT rows_in, ended_at FROM stagepost_run") == [(None, None)]
    answer = cli.initiate(orders, "--flow-prefix", "o", to="shop.order", by="order_id")
    assert (answer.code, answer.json["balanced"]) == (0, True)
    assert answer.json["started"] == ROWS - started
    assert answer.json["quarantined"] == CONFLICTING + MALFORMED
    check(books)


@pytest.mark.soak
def test_two_commands_at_once_start_each_flow_once(
    commands: Commands, books: Books, orders: Path, tmp_path: Path
) -> None:
    app = module_of(tmp_path)
    words = (orders, "--to", "shop.order", "--id", "order_id", "--flow-prefix", "o", "--app", app, "--json")
    both = [commands.start("initiate", *words) for _ in range(2)]
    answers = [each.answer() for each in both]
    assert [(each.code, each.json["balanced"]) for each in answers] == [(0, True)] * 2
    assert sum(each.json["started"] for each in answers) == ROWS
    assert [each.json["quarantined"] for each in answers] == [CONFLICTING + MALFORMED] * 2
    # Neither Java, nor Spark, nor Python has anything to say when all is well.
    assert [each.err for each in answers] == ["", ""]
    check(books)
