"""One order passes through few files, and each run finds the same ones."""

from __future__ import annotations

import subprocess
import sys

from tests.house.ids import ROOT
from tests.waiting import PATIENCE_SECONDS

COMMAND = [sys.executable, "-m", "tests.house.crossings"]


def test_an_order_passes_through_no_more_files_than_the_limit() -> None:
    # A process of its own: here, pytest's threads would be traced too.
    done = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_ = lines = done.stdout.splitlines()
    assert first.split() == ["1", "app/app.py", "App.start"]
    # Both sides of the queue are on the list: the caller's thread and the stage thread.
    assert any("flow/context.py" in line for line in lines)


def test_two_runs_beside_each_other_list_the_same_files() -> None:
    runs = [subprocess.Popen(COMMAND, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    one, other = [run.communicate(timeout=PATIENCE_SECONDS)[0] for run in runs]
    assert one == other
