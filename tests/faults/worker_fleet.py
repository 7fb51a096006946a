"""Workers, started as users start them. The test that started them ends all of them, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from stagepost.runtime.settings import Place, handing_down
from stagepost.worker.child import Plan
from tests.faults.books import Books
from tests.places import bare_environment
from tests.processes import ROOT, Process, ProcessGroup, kill
from tests.waiting import STANDSTILL_SECONDS, wait_until

APP = "tests.faults.bank:app"
SCRIPT = Path(sys.executable).with_name("stagepost")
PROCESS = "stagepost.worker.process"
ALONE = "stagepost.worker.alone"


class Member(Process):
    """A started worker, or a script. Its children write to ``log`` too."""

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.lines() if each.get("event") == event]

    def lines(self) -> list[dict[str, Any]]:
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                each = json.loads(line)
            except ValueError:
                continue
            if isinstance(each, dict):
                found.append(each)
        return found


class WorkerFleet:
    def __init__(self, books: Books, folder: Path) -> None:
        # These hold for each process that is started from now on: its URL of the database, and its settings (see bank).
        self.url = books.url
        # Other URLs of the same database, one for each command of a campaign.
        self.urls: list[str] = []
        self.environment: dict[str, str] = {}
        self.settings: dict[str, str] = dict(books.settings)
        self._folder = folder
        self._processes = ProcessGroup()
        self.pids = self._processes.pids
        self._members: list[Member] = []
        self.standstill_seconds = STANDSTILL_SECONDS

    def command(self, *options: str, app: str = APP, url: str | None = None, **settings: str) -> Member:
        """``stagepost worker``: a supervisor with its worker processes."""
        return self._start([str(SCRIPT), "worker", app, "--database", url or self.url, "--json", *options], settings)

    def process(
        self, *, paused_after_seconds: float = 30, threads: int = 4, grace: float = 30, **settings: str
    ) -> Member:
        """A worker process alone, whose parent is the test."""
        plan = Plan(
            app=APP,
            threads=threads,
            drain=False,
            grace_seconds=grace,
            supervisor=os.getpid(),
            log_level="INFO",
            log_json=True,
            paused_after_seconds=paused_after_seconds,
        )
        return self._start([sys.executable, "-m", PROCESS, msgspec.json.encode(plan).decode()], settings)

    def module(self, name: str, *arguments: str, **settings: str) -> Member:
        """``python -m name``: a script of the user's."""
        return self._start([sys.executable, "-m", name, *arguments], settings)

    def end(self, pid: int) -> None:
        kill(pid)
        wait_until(lambda: pid not in self.pids(), f"process {pid} is gone")

    def kill_all(self) -> None:
        """Kill every process that is left, and print the logs: pytest shows them where the test failed."""
        for member in self._members:
            member.kill()
        self._processes.kill_all()
        for member in self._members:
            print(f"--- {member.log.name}\n{member.log.read_text(errors='replace')[-8000:]}")  # noqa: T201

    def _start(self, command: list[str], settings: dict[str, str]) -> Member:
        there = handing_down(Place(self.url, self.settings.get("queue")))
        handed_down = {name: value for name, value in there.items() if name not in os.environ}
        environment = bare_environment()
        environment |= handed_down | self._processes.environment | {"PYTHONFAULTHANDLER": "1"}
        environment |= self.environment
        environment |= {f"BANK_{name.upper()}": value for name, value in (self.settings | settings).items()}
        log = self._folder / f"{len(self._members)}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        member = Member(process, log)
        self._members.append(member)
        return member
