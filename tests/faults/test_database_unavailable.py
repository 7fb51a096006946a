"""The database is full, read-only or locked for a while: nothing is counted or lost, and nobody has to help."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.faults.books import Flow, chores, transfers
from tests.faults.disks import full, mounted
from tests.faults.scenarios import settle
from tests.faults.sqlite_books import SqliteBooks
from tests.faults.worker_fleet import PROCESS, WorkerFleet
from tests.waiting import PATIENCE_SECONDS, wait_until

Outage = Callable[[SqliteBooks], AbstractContextManager[None]]


def came_by(counter: Path) -> int:
    return counter.stat().st_size if counter.exists() else 0


def held_flows(tmp_path: Path) -> list[Flow]:
    """They are counted each time they come to a gate, and wait there, before they touch the database."""
    return transfers(30, f"bank.transfer.credit:count={tmp_path}/count bank.transfer.credit:gate={tmp_path}/gate")


@contextmanager
def locked(books: SqliteBooks) -> Iterator[None]:
    """Another program has the write lock, and does not pass our writer lock."""
    connection = sqlite3.connect(books.path, isolation_level=None, timeout=PATIENCE_SECONDS)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@contextmanager
def immutable(*files: Path) -> Iterator[None]:
    try:
        subprocess.run(["chattr", "+i", *map(str, files)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"files cannot be made immutable here: {error}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *map(str, files)], check=True)


@contextmanager
def read_only(books: SqliteBooks) -> Iterator[None]:
    # Not the -shm: it is mapped, and a write to a page of an immutable file is a signal and not an error.
    with immutable(books.path, Path(f"{books.path}-wal")):
        yield


in_each_outage = pytest.mark.parametrize("outage", [locked, read_only])


@in_each_outage
def test_what_runs_into_an_outage_of_the_database_is_tried_again_uncounted_until_it_is_over(
    outage: Outage, books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    flows = held_flows(tmp_path)
    books.start(flows)
    fleet.command("--threads", "3", tune="writer=1")
    # All of them: one that claims would meet the outage there, and keep the others waiting for their turn to do so.
    wait_until(lambda: came_by(tmp_path / "count") == 3, "handlers are about to write")
    with outage(books):
        (tmp_path / "gate.open").touch()
        wait_until(lambda: came_by(tmp_path / "count") > 3, "a handler has run again")
    settle(books)
    assert books.problems(flows) == []
    assert books.blamed("died") == []
    assert books.blamed("failed") == []


@pytest.mark.more
@in_each_outage
def test_a_worker_that_is_killed_in_an_outage_of_the_database_is_replaced_and_works_when_it_is_over(
    outage: Outage, books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    flows = held_flows(tmp_path)
    books.start(flows)
    worker = fleet.command("--threads", "3", tune="writer=1")
    wait_until((tmp_path / "gate.entered").exists, "handlers are about to write")
    with outage(books):
        (tmp_path / "gate.open").touch()
        (pid,) = fleet.pids(PROCESS)
        fleet.end(pid)
        wait_until(lambda: fleet.pids(PROCESS), "it has been replaced")
        wait_until(lambda: worker.logged("database-unavailable"), "the new one waits for the database")
    settle(books)
    assert worker.is_running()
    assert books.problems(flows) == []
    assert books.blamed("failed") == []


@pytest.mark.more
def test_a_worker_whose_lock_file_cannot_be_made_for_a_while_comes_when_it_can(
    books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    flows = held_flows(tmp_path)
    books.start(flows)
    worker = fleet.command("--threads", "3", tune="writer=1")
    wait_until((tmp_path / "gate.entered").exists, "handlers are about to write")
    with immutable(books.locks):
        (pid,) = fleet.pids(PROCESS)
        fleet.end(pid)
        wait_until(lambda: "lock files cannot be made" in worker.log.read_text(), "its successor cannot begin")
    (tmp_path / "gate.open").touch()
    settle(books)
    assert worker.is_running()
    assert books.problems(flows) == []


@pytest.mark.more
def test_what_could_not_be_given_back_in_an_outage_is_given_back_or_done_after_it(
    books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """Quick ones first, so that the worker holds many that wait behind the slow one."""
    gate = tmp_path / "gate"
    flows = [*chores(60), Flow("slow", "chore", f"gate={gate}"), *chores(40, name="d")]
    books.start(flows)
    worker = fleet.command("--threads", "1", tune="writer=1")
    wait_until(Path(f"{gate}.entered").exists, "the slow one is in its handler")
    with locked(books):
        wait_until(lambda: worker.logged("database-unavailable"), "it could not give back what waits")
    Path(f"{gate}.open").touch()
    settle(books)
    assert books.problems(flows) == []


@pytest.mark.more
def test_a_suspect_that_could_not_be_settled_in_an_outage_is_settled_after_it(
    books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """Its process dies alone, and its death cannot be put on record."""
    gate = tmp_path / "gate"
    flows = [
        Flow("suspect", "chore", f"kill-once={tmp_path}/first gate-once={gate} kill-once={tmp_path}/second"),
        *chores(5),
    ]
    books.start(flows)
    worker = fleet.command("--threads", "1", tune="death=0.1,writer=1")
    wait_until(Path(f"{gate}.entered").exists, "the suspect runs alone")
    wait_until(lambda: books.waiting() == 1, "all else is done")
    with locked(books):
        Path(f"{gate}.open").touch()
        supervisors = {worker.pid}
        wait_until(
            lambda: {each["process"] for each in worker.logged("database-unavailable")} & supervisors,
            "the supervisor could not settle it",
        )
    settle(books)
    assert books.problems(flows) == []
    assert len(books.blamed("died")) == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "32m", 64) as disk:
        yield disk


@pytest.fixture
def small_bank(small_disk: Path) -> SqliteBooks:
    return SqliteBooks(small_disk / "bank.db")


@pytest.fixture
def small_fleet(small_bank: SqliteBooks, tmp_path: Path) -> Iterator[WorkerFleet]:
    fleet = WorkerFleet(small_bank, tmp_path)
    yield fleet
    fleet.kill_all()


@pytest.mark.parametrize(
    "is_killed",
    [pytest.param(False, id="left alone"), pytest.param(True, id="killed meanwhile")],
)
def test_a_full_disk_counts_against_no_message_and_all_is_done_once_there_is_room_again(
    is_killed: bool, small_bank: SqliteBooks, small_fleet: WorkerFleet, small_disk: Path, tmp_path: Path
) -> None:
    flows = held_flows(tmp_path)
    small_bank.start(flows)
    worker = small_fleet.command("--threads", "3")
    wait_until((tmp_path / "gate.entered").exists, "handlers are about to write")
    with full(small_disk):
        (tmp_path / "gate.open").touch()
        wait_until(lambda: came_by(tmp_path / "count") > 12, "handlers run again and again")
        if is_killed:
            (pid,) = small_fleet.pids(PROCESS)
            small_fleet.end(pid)
            wait_until(lambda: len(worker.logged("worker-ended")) >= 2, "its successor could not begin")
    settle(small_bank)
    assert worker.is_running()
    assert small_bank.problems(flows) == []
    assert small_bank.blamed("failed") == []
    assert is_killed or small_bank.blamed("died") == []


@pytest.mark.more
def test_a_disk_that_is_full_for_the_handlers_own_statement_counts_against_no_message_either(
    small_bank: SqliteBooks, small_fleet: WorkerFleet, small_disk: Path, tmp_path: Path
) -> None:
    flows = chores(2, f"gate={tmp_path}/gate count={tmp_path}/count late-write-much")
    small_bank.start(flows)
    small_fleet.command("--threads", "2")
    wait_until((tmp_path / "gate.entered").exists, "handlers are about to write")
    with full(small_disk):
        (tmp_path / "gate.open").touch()
        wait_until(lambda: came_by(tmp_path / "count") >= 2, "both have run into it")
        began = time.time()
        wait_until(lambda: small_bank.hearts_beat_since(began + 2) == 2, "they had time to make something of it")
    settle(small_bank)
    assert small_bank.problems(flows) == []
    assert small_bank.blamed("failed") == []
