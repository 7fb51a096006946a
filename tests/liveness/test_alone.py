"""The child that runs suspects, where nobody is left who would hear what it answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from stagepost.app.settings import Place, handing_down
from stagepost.liveness.alone import EXIT_ORPHANED
from stagepost.liveness.isolation import AppToRun, Plan
from tests.faults.crew import ALONE, APP, ROOT
from tests.faults.sqlite_books import SqliteBooks


def test_a_child_whose_parent_does_not_hear_its_answer_ends_without_a_word(tmp_path: Path) -> None:
    books = SqliteBooks(tmp_path / "bank.db")
    heard, answers = os.pipe()
    os.close(heard)
    plan = Plan(AppToRun(APP, str(ROOT)), "bank/nobody", answers, os.getpid())
    child = subprocess.run(
        [sys.executable, "-m", ALONE, msgspec.json.encode(plan).decode()],
        cwd=ROOT,
        input=b'{"row": 1}\n',
        capture_output=True,
        pass_fds=[answers],
        timeout=120,
        env=handing_down(Place(books.url, None)),
    )
    os.close(answers)
    assert (child.returncode, child.stderr) == (EXIT_ORPHANED, b"")
