"""A supervisor: replaces those that die, and gives up only where another one would say the same."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.books import chores
from tests.faults.sqlite_books import SqliteBooks
from tests.faults.worker_fleet import PROCESS, WorkerFleet
from tests.waiting import wait_until


@pytest.fixture
def books(tmp_path: Path) -> SqliteBooks:
    return SqliteBooks(tmp_path / "bank.db")


@pytest.fixture
def fleet(books: SqliteBooks, tmp_path: Path) -> Iterator[WorkerFleet]:
    fleet = WorkerFleet(books, tmp_path)
    yield fleet
    fleet.kill_all()


def test_there_are_as_many_processes_as_were_asked_for_and_each_that_dies_is_replaced(
    books: SqliteBooks, fleet: WorkerFleet
) -> None:
    worker = fleet.command("--processes", "3", "--threads", "1")
    first = set(wait_until(lambda: three(fleet), "there are three"))
    for pid in first:
        fleet.end(pid)
    second = set(wait_until(lambda: three(fleet), "there are three again"))
    assert not first & second
    wait_until(lambda: len(worker.logged("worker-ended")) == 3, "each of them was told of")


def three(fleet: WorkerFleet) -> list[int]:
    found = fleet.pids(PROCESS)
    return found if len(found) == 3 else []


@pytest.mark.more
def test_one_that_dies_again_and_again_is_started_ever_less_often_and_never_given_up(
    books: SqliteBooks, fleet: WorkerFleet
) -> None:
    worker = fleet.command("--processes", "1", "--threads", "1")
    ends: list[dict[str, Any]] = []

    def told_of_other_than(known: list[dict[str, Any]]) -> dict[str, Any]:
        return next((each for each in worker.logged("worker-ended") if each not in known), {})

    for _ in range(4):
        (pid,) = wait_until(lambda: fleet.pids(PROCESS), "there is one")
        fleet.end(pid)
        ends.append(wait_until(lambda: told_of_other_than(ends), "it was told of"))
    assert all("SIGKILL" in each["text"] for each in ends)
    books.start(chores(3))
    wait_until(books.is_drained, "the last one works")
    assert worker.is_running()


def test_processes_that_can_never_start_stop_the_command_with_their_reason(
    books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """The command itself could open the app; the process it starts cannot."""
    worker = fleet.command("--processes", "2", app="tests.worker.two_faced:app")
    assert worker.wait() not in (0, None)
    assert "cannot start" in worker.log.read_text()
    assert "not in a worker" in worker.log.read_text()
    assert fleet.pids() == []


def test_the_command_says_what_it_runs_and_that_it_stopped(books: SqliteBooks, fleet: WorkerFleet) -> None:
    worker = fleet.command("--processes", "2", "--threads", "3")
    wait_until(lambda: books.hearts_beat_since(0) == 3, "all live")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    first, *_, last = (each["text"] for each in worker.lines())
    assert books.url in first
    assert "bank: stopped" in last


def test_a_worker_for_nothing_drains_and_says_so(books: SqliteBooks, fleet: WorkerFleet) -> None:
    worker = fleet.command("--processes", "2", "--drain")
    assert worker.wait() == 0
    assert worker.lines()[-1]["text"] == "bank: drained"
    assert list(books.locks.iterdir()) == []


def test_one_that_is_told_to_stop_while_its_processes_start_has_broken_off_nothing(
    books: SqliteBooks, fleet: WorkerFleet
) -> None:
    worker = fleet.command("--processes", "2", "--threads", "1")
    wait_until(lambda: fleet.pids(PROCESS), "one is being started")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert not worker.logged("broken-off")
