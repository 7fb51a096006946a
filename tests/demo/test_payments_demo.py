"""The demo, as a newcomer plays it: once, once more, broken off, and with a ledger that somebody has falsified."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal

import pytest

from examples.payments import books
from examples.payments.commands import kill_busiest
from examples.payments.database import Database
from examples.payments.demo import Demo, consumer
from examples.payments.orders import CONFLICTING, DEADLY_ORDERS, FAILING, MALFORMED, REFUSED, REPEATED
from stagepost import App
from tests.demo.conftest import GOOD, Stage
from tests.waiting import PATIENCE_SECONDS, wait_until

STARTED = GOOD + REFUSED + FAILING + DEADLY_ORDERS
QUARANTINED = CONFLICTING + 2 * len(MALFORMED)
CLAIMS = {
    "rows in = started + repeated + quarantined",
    "started = executed exactly once + dead letters",
    "money to move = settled + held + refused",
    "the ledger adds up to nothing",
    "lost",
    "doubled",
    "executed = receipts taken by the consumer",
    "flows by the audit: completed + dead",
}


def rows(stage: Stage, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(stage.file, timeout=PATIENCE_SECONDS)) as connection:
        return connection.execute(statement).fetchall()


def finished(stage: Stage) -> int:
    return books.finished(stage.database) if stage.file.exists() and has_tables(stage) else 0


def has_tables(stage: Stage) -> bool:
    (found,) = rows(stage, "SELECT count(*) FROM sqlite_schema WHERE name IN ('receipt', 'stagepost_dead_letter')")[0]
    return found == 2


@pytest.mark.more
@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_every_order_is_executed_once_and_a_second_run_starts_nothing_and_sees_a_falsified_ledger(stage: Stage) -> None:
    first = stage.play()
    assert (first.code, first.claims) == (0, dict.fromkeys(CLAIMS, True)), first.out
    counts = f"{STARTED} started, {REPEATED} repeated, {QUARANTINED} quarantined"
    assert f"{STARTED + REPEATED + QUARANTINED} rows: {counts}" in first.out
    assert re.search(r"kill -9 \d+  after \d+ flows", first.out)
    assert "killed with SIGKILL" in first.out
    # On a busy machine the workers may have done everything before they heard that they should stop.
    if "Spark's executors run the remaining messages" in first.out:
        assert re.search(r"drained: \d+ messages by \d+ processes", first.out)
    assert "every order exactly once, or set aside with its reason" in first.out
    assert rows(stage, "SELECT reason, count(*) FROM stagepost_dead_letter GROUP BY reason ORDER BY reason") == [
        ("exhausted", FAILING),
        ("refused", REFUSED),
        ("worker-died", DEADLY_ORDERS),
    ]
    # By the ledger alone, which knows nothing of Stagepost.
    assert rows(stage, "SELECT count(*), count(DISTINCT order_id) FROM receipt") == [(GOOD, GOOD)]
    # The consumer failed some first requests, and took the receipt before other answers were lost.
    confirmations = books.read_confirmations(stage.taken)
    assert (confirmations.taken, confirmations.doubled) == (GOOD, 0)
    assert set(confirmations.answers) == {"taken", "error", "half", "late", "copy"}

    with closing(sqlite3.connect(stage.file)) as connection:
        connection.execute(
            "INSERT INTO posting (order_id, account, hundredths, what) SELECT order_id, account, hundredths, what"
            " FROM posting WHERE order_id = (SELECT min(order_id) FROM receipt) AND what = 'settle'"
        )
        connection.commit()
    everything = rows(stage, "SELECT * FROM posting"), rows(stage, "SELECT * FROM stagepost_journal")
    second = stage.play()
    assert f": 0 started, {STARTED + REPEATED} repeated, {QUARANTINED} quarantined" in second.out
    assert "nothing new: every good row of this file was started before" in second.out
    assert (rows(stage, "SELECT * FROM posting"), rows(stage, "SELECT * FROM stagepost_journal")) == everything
    assert second.code == 1, second.out
    assert "something is wrong: see above" in second.out
    # What was settled twice was taken from the held twice: the sums are as they were.
    assert {claim for claim, holds in second.claims.items() if not holds} == {
        "started = executed exactly once + dead letters",
        "lost",
        "doubled",
        "executed = receipts taken by the consumer",
        "flows by the audit: completed + dead",
    }


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_demo_that_was_broken_off_half_way_is_finished_by_the_next(stage: Stage) -> None:
    process = stage.start()
    wait_until(lambda: finished(stage) > 0.1 * STARTED or process.poll() is not None, "the workers are at work")
    stage.interrupt(process)
    assert 0 < finished(stage) < STARTED
    again = stage.play()
    assert (again.code, again.claims) == (0, dict.fromkeys(CLAIMS, True)), again.out
    assert ": 0 started, " in again.out
    assert re.search(r"drained: [1-9]\d* messages", again.out)
    assert books.read_books(stage.database, stage.orders).is_right
    assert rows(stage, "SELECT count(*), count(DISTINCT order_id) FROM receipt") == [(GOOD, GOOD)]


def test_a_file_that_has_grown_by_a_few_rows_plays_as_well(stage: Stage) -> None:
    """What was there before has ended; three orders are new."""
    stage.database.prepare()
    app: App = load_payments(stage.database.url)
    from examples.payments.app import Order

    pay, receipts = app.target("payments.pay"), app.target("payments.receipts")
    for number in range(23):
        order = Order(number, 1, "AB", "1", Decimal("1.00"))
        app.start(pay, order, flow_id=f"order:{number}", reply_to=receipts)
    with closing(sqlite3.connect(stage.file)) as connection:
        connection.executemany("INSERT INTO receipt (order_id, reference) VALUES (?, 'x')", [(n,) for n in range(20)])
        connection.execute("DELETE FROM stagepost_ready WHERE id <= 20")
        connection.commit()
    Demo(stage.orders, stage.database, stage.folder / "orders.log", stage.taken, address="", again="").work()


def test_a_demo_without_a_receipt_has_no_confirmations(stage: Stage) -> None:
    with consumer(stage.taken):
        pass
    assert books.read_confirmations(stage.taken) == books.Confirmations(0, 0, {})


def test_a_worker_that_an_order_killed_first_is_not_the_one_that_the_demo_kills() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert kill_busiest([{"node": "worker@vm:1", "process": gone.pid, "running": 2}]) is None
    assert kill_busiest([]) is None


def load_payments(url: str) -> App:
    from examples.payments.app import app

    app.database = url
    return app


def test_a_file_that_is_not_there_is_said_so(stage: Stage) -> None:
    stage.orders.unlink()
    assert stage.play().code == 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_same_app_plays_on_postgresql(stage: Stage, new_postgres: Callable[[], str]) -> None:
    url = new_postgres()
    stage.options = ["--database", url]
    played = stage.play()
    assert (played.code, played.claims) == (0, dict.fromkeys(CLAIMS, True)), played.out
    assert books.read_books(Database(url), stage.orders).is_right
    again = stage.play()
    assert (again.code, again.claims) == (0, dict.fromkeys(CLAIMS, True)), again.out
    assert "nothing new: every good row of this file was started before" in again.out
