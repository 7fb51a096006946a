"""A worker process: how it starts, and what it says when it cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stagepost.runtime.settings import Place, handing_down
from stagepost.worker.child import EXIT_CANNOT_START, EXIT_DRAINED, Plan
from tests.faults.books import Flow, chores
from tests.faults.sqlite_books import SqliteBooks
from tests.faults.worker_fleet import WorkerFleet
from tests.processes import ROOT
from tests.waiting import PATIENCE_SECONDS, wait_until


def plan(**changes: object) -> str:
    said = Plan(
        app="tests.faults.bank:app",
        threads=1,
        drain=True,
        grace_seconds=1.0,
        supervisor=os.getpid(),
    )
    return msgspec.json.encode(msgspec.structs.replace(said, **changes)).decode()


def ended(argument: str, database: str = "sqlite:///bank.db") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stagepost.worker.process", argument],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        stdin=subprocess.DEVNULL,
        env=handing_down(Place(database, None)),
    )


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[WorkerFleet]:
    fleet = WorkerFleet(SqliteBooks(tmp_path / "bank.db"), tmp_path)
    yield fleet
    fleet.kill_all()


def test_a_plan_comes_through_as_it_was_said() -> None:
    said = plan(paused_after_seconds=1.5, log_json=True)
    assert msgspec.json.encode(msgspec.json.decode(said, type=Plan)).decode() == said


def test_one_with_nothing_to_do_and_told_to_drain_ends_well_and_leaves_no_lock_file(tmp_path: Path) -> None:
    SqliteBooks(tmp_path / "bank.db")
    found = ended(plan(), f"sqlite:///{tmp_path}/bank.db")
    assert found.returncode == EXIT_DRAINED
    assert found.stderr == ""
    assert list((tmp_path / "bank.db-workers").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"app": "tests.faults.bank:nobody"}, "nobody"),
        ({"app": "tests.faults.nothing:app"}, "tests.faults.nothing"),
        ({"database": "payments.db"}, "payments.db"),
        ({"database": "memory:"}, "one process"),
    ],
)
def test_one_that_can_never_start_says_why_in_a_line_and_by_its_exit_code(
    changes: dict[str, object], wanted: str
) -> None:
    database = str(changes.pop("database", "sqlite:///bank.db"))
    found = ended(plan(**changes), database)
    assert found.returncode == EXIT_CANNOT_START
    assert len(found.stderr.strip().splitlines()) == 1
    assert wanted in found.stderr


def test_one_whose_parent_is_gone_when_it_starts_stops_by_itself(tmp_path: Path) -> None:
    SqliteBooks(tmp_path / "bank.db")
    url = f"sqlite:///{tmp_path}/bank.db"
    found = ended(plan(drain=False, supervisor=2**22 + 1), url)
    assert "parent process" in found.stderr


def test_a_stage_thread_that_breaks_ends_the_process_and_what_it_ran_is_not_blamed(
    fleet: WorkerFleet, tmp_path: Path
) -> None:
    """By a defect of ours: the step listener raises, which is no handler's doing."""
    books = SqliteBooks(tmp_path / "bank.db")
    books.start(chores(3))
    worker = fleet.module("tests.worker.breaking", books.url, str(tmp_path / "broken"))
    assert worker.wait() == 70
    assert worker.logged("broken")
    assert books.blamed("failed") == []
    fleet.command("--drain").wait()
    assert books.problems(chores(3)) == []
    assert books.blamed("died") == []


def test_an_idle_worker_takes_what_comes_without_being_told(fleet: WorkerFleet, tmp_path: Path) -> None:
    books = SqliteBooks(tmp_path / "bank.db")
    worker = fleet.process()
    wait_until(lambda: books.hearts_beat_since(0) == 1, "it lives")
    for number in range(3):
        flows = chores(2, name=f"c{number}.")
        books.start(flows)
        wait_until(books.is_drained, "it took them")
    assert worker.is_running()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert books.entries() == 6


def test_as_many_messages_are_handled_at_a_time_as_there_are_threads_and_no_more(
    fleet: WorkerFleet, tmp_path: Path
) -> None:
    books = SqliteBooks(tmp_path / "bank.db")
    flows = [Flow(f"c{number}", "chore", f"gate={tmp_path}/gate{number}") for number in range(5)]
    books.start(flows)
    fleet.process(threads=3)
    wait_until(lambda: len(list(tmp_path.glob("gate*.entered"))) == 3, "three are in their handlers")
    began = time.time()
    wait_until(lambda: books.hearts_beat_since(began + 1) == 1, "it had time to begin a fourth")
    assert len(list(tmp_path.glob("gate*.entered"))) == 3
    for number in range(5):
        (tmp_path / f"gate{number}.open").touch()
    wait_until(books.is_drained, "all are done")
    assert books.problems(flows) == []
