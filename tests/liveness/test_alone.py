"""The child that runs suspects, where nobody is left who would hear what it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from stagepost.runtime.isolation import Answer, AppToRun, Plan
from stagepost.runtime.settings import Place, handing_down
from stagepost.worker.alone import EXIT_ORPHANED
from tests.faults.sqlite_books import SqliteBooks
from tests.faults.worker_fleet import ALONE, APP
from tests.processes import ROOT
from tests.servers.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS


def child_of(url: str, answers: int, row: int = 1) -> subprocess.CompletedProcess[bytes]:
    plan = Plan(AppToRun(APP, str(ROOT)), "bank/nobody", answers, os.getpid())
    return subprocess.run(
        [sys.executable, "-m", ALONE, msgspec.json.encode(plan).decode()],
        cwd=ROOT,
        input=json.dumps({"row": row}).encode() + b"\n",
        capture_output=True,
        pass_fds=[answers],
        timeout=PATIENCE_SECONDS,
        check=False,
        env=handing_down(Place(url, None)),
    )


def test_a_child_whose_parent_does_not_hear_its_answer_ends_without_a_word(tmp_path: Path) -> None:
    books = SqliteBooks(tmp_path / "bank.db")
    heard, answers = os.pipe()
    os.close(heard)
    child = child_of(books.url, answers)
    os.close(answers)
    assert (child.returncode, child.stderr) == (EXIT_ORPHANED, b"")


def test_a_child_that_meets_a_database_that_is_away_says_so_in_a_line_and_counts_nothing() -> None:
    heard, answers = os.pipe()
    child = child_of(f"postgresql://postgres@127.0.0.1:{reserved_port()}/bank", answers)
    os.close(answers)
    assert (child.returncode, os.read(heard, 10)) == (0, Answer.BROKEN)
    os.close(heard)
    (line,) = child.stderr.decode().splitlines()
    assert "database unavailable, retrying in 1 s: postgresql://" in line
