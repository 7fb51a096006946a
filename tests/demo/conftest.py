from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.payments import orders
from examples.payments.database import Database
from tests.places import bare_environment
from tests.processes import ROOT, ProcessGroup

SEED = 11
# Enough that a worker can be killed among them, and few enough to wait for.
GOOD = 500


@dataclass(frozen=True)
class Run:
    """A demo that has ended."""

    code: int
    out: str

    @property
    def claims(self) -> dict[str, bool]:
        """What the last table says of each claim."""
        verdicts = {"holds": True, "BROKEN": False}
        lines = [line.rsplit(maxsplit=1) for line in self.out.splitlines() if line.strip()]
        return {line[0].split("  ")[0]: verdicts[line[1]] for line in lines if line[-1] in verdicts}


class Stage:
    """Where the demo is played: a folder with a file of orders, and what was started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.orders = folder / "orders.csv"
        self.file = folder / "orders.db"
        self.taken = folder / "orders.consumer.db"
        self.database = Database(f"sqlite:///{self.file}")
        # Beside the folder and the orders.
        self.options: list[str] = []
        self._processes = ProcessGroup()
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """``python -m examples.payments.demo``, in a process group of its own, as a shell starts it."""
        demo = [sys.executable, "-m", "examples.payments.demo"]
        words = [*demo, "--folder", str(self.folder), "--orders", str(self.orders), *self.options]
        with (self.folder / f"demo{len(self._started)}.out").open("w") as log:
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=bare_environment() | self._processes.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def play(self) -> Run:
        """Once, to its end."""
        process = self.start()
        code = process.wait()
        return Run(code, (self.folder / f"demo{len(self._started) - 1}.out").read_text())

    def interrupt(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the whole group, and what it started in groups of their own, and see them gone."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._processes.kill_all()

    def close(self) -> None:
        self._processes.kill_all()
        for process in self._started:
            process.wait()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """With a file like the one that the demo writes for itself, but smaller."""
    monkeypatch.setattr(orders, "GOOD", GOOD)
    stage = Stage(tmp_path)
    orders.write_orders(stage.orders, SEED)
    yield stage
    stage.close()
