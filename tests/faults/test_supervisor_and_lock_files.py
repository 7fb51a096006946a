"""Supervisors that are killed, and lock files that are removed, left behind or damaged."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.faults.books import Flow, transfers
from tests.faults.scenarios import settle
from tests.faults.sqlite_books import SqliteBooks
from tests.faults.worker_fleet import ALONE, PROCESS, WorkerFleet
from tests.waiting import wait_until


def lock_file_of(books: SqliteBooks, pid: int) -> Path:
    """Read and not locked: who opens and closes a lock file of its own drops its lock, and this is not ours."""
    (found,) = (each for each in books.locks.glob("*.lock") if f'"process":{pid},' in each.read_text())
    return found


def test_the_children_of_a_killed_supervisor_stop_by_themselves_and_the_next_worker_does_the_rest(
    books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [
        Flow("suspect", "chore", f"kill-once={tmp_path}/died gate-once={gate}1"),
        *transfers(30),
        Flow("slow", "chore", f"gate-once={gate}2"),
    ]
    books.start(flows)
    first = fleet.command("--processes", "2", "--threads", "2", "--grace", "3600", tune="death=0.1")
    wait_until(Path(f"{gate}1.entered").exists, "the suspect runs alone")
    wait_until(Path(f"{gate}2.entered").exists, "a worker process is in a handler")
    assert len(fleet.pids(PROCESS)) == 2
    first.kill()
    wait_until(lambda: not fleet.pids(ALONE), "the suspect's process has ended")
    wait_until(lambda: len(fleet.pids(PROCESS)) == 1, "the process that runs nothing has ended")
    second = fleet.command("--threads", "2", "--drain", tune="death=0.1")
    Path(f"{gate}2.open").touch()
    assert second.wait() == 0
    wait_until(lambda: not fleet.pids(), "the process that ran something has ended")
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.waypoints("died", "suspect") == 1
    assert books.waypoints("died", "slow") == 0


def test_a_worker_process_whose_lock_file_is_removed_notices_is_replaced_and_doubles_nothing(
    books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [*transfers(20), Flow("slow", "chore", f"gate-once={gate}"), *transfers(20, name="u")]
    books.start(flows)
    worker = fleet.command("--threads", "1")
    wait_until(Path(f"{gate}.entered").exists, "it is in its handler")
    (pid,) = fleet.pids(PROCESS)
    lock_file_of(books, pid).unlink()
    wait_until(lambda: worker.logged("orphaned"), "it has noticed")
    Path(f"{gate}.open").touch()
    settle(books)
    assert books.problems(flows) == []
    assert books.blamed("died") == []
    wait_until(lambda: fleet.pids(PROCESS) not in ([], [pid]), "it was replaced")


def test_a_draining_worker_process_whose_lock_file_is_removed_is_replaced_and_not_taken_for_drained(
    books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [Flow("slow", "chore", f"gate-once={gate}"), *transfers(20, name="u")]
    books.start(flows)
    worker = fleet.command("--threads", "1", "--drain")
    wait_until(Path(f"{gate}.entered").exists, "it is in its handler")
    (pid,) = fleet.pids(PROCESS)
    lock_file_of(books, pid).unlink()
    wait_until(lambda: worker.logged("orphaned"), "it has noticed")
    Path(f"{gate}.open").touch()
    assert worker.wait() == 0
    assert books.problems(flows) == []


@pytest.mark.more
def test_a_supervisor_whose_lock_file_is_removed_stops_and_says_that_something_is_wrong(
    books: SqliteBooks, fleet: WorkerFleet
) -> None:
    worker = fleet.command()
    wait_until(lambda: books.hearts_beat_since(0) == 2, "both live")
    lock_file_of(books, worker.pid).unlink()
    assert worker.wait() != 0
    assert fleet.pids() == []


@pytest.mark.more
def test_the_lock_files_of_the_dead_are_removed_by_the_living(books: SqliteBooks, fleet: WorkerFleet) -> None:
    flows = transfers(10)
    for _ in range(3):
        began = time.time()
        worker = fleet.command("--processes", "2")
        wait_until(lambda moment=began: books.hearts_beat_since(moment) >= 3, "all live")  # type: ignore[misc]
        for pid in (worker.pid, *fleet.pids(PROCESS)):
            fleet.end(pid)
        worker.wait()
    assert len(list(books.locks.glob("*.lock"))) >= 3
    books.start(flows)
    living = fleet.command()
    settle(books)
    wait_until(lambda: len(list(books.locks.iterdir())) == 2, "only the living have one")
    living.signal(signal.SIGTERM)
    assert living.wait() == 0
    assert list(books.locks.iterdir()) == []
    assert books.problems(flows) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bank@01900000-0000-7000-8000-000000000000.new", b""),
        ("bank@01900000-0000-7000-8000-000000000000.lock", b""),
        ("bank@01900000-0000-7000-8000-000000000000.lock", b"\0" * 4096),
        ("bank@01900000-0000-7000-8000-000000000000.lock", b"no record at all"),
    ],
    ids=["never finished", "empty", "zeroes", "nonsense"],
)
def test_lock_files_damaged_by_a_power_failure_disturb_nobody_and_are_removed(
    name: str, content: bytes, books: SqliteBooks, fleet: WorkerFleet
) -> None:
    books.locks.mkdir()
    damaged = books.locks / name
    damaged.write_bytes(content)
    flows = transfers(10)
    books.start(flows)
    assert fleet.command("--drain").wait() == 0
    assert books.problems(flows) == []
    assert not damaged.exists()


def test_claims_whose_owner_has_no_lock_file_at_all_are_given_back(books: SqliteBooks, fleet: WorkerFleet) -> None:
    flows = transfers(5)
    books.start(flows)
    with books.connected() as connection:
        connection.execute("UPDATE stagepost_ready SET owner = 'bank/nobody', deliveries = 1")
        connection.commit()
    assert fleet.command("--drain").wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("died") == []


def test_what_another_app_holds_in_the_same_store_is_left_alone(books: SqliteBooks, fleet: WorkerFleet) -> None:
    flows = transfers(5)
    books.start(flows)
    with books.connected() as connection:
        connection.execute("UPDATE stagepost_ready SET owner = 'bank2/nobody', deliveries = 1")
        connection.commit()
    more = transfers(5, name="u")
    books.start(more)
    fleet.command()
    wait_until(lambda: books.entries() == 25, "its own are done")
    assert books.number("SELECT count(*) FROM stagepost_ready WHERE owner = 'bank2/nobody'") == 5
