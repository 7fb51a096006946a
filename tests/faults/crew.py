"""Worker processes, started as users start them, and ended by the test that started them: all, and no others.

Every process of a crew carries the crew's name in its environment, and so do its children and theirs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from stagepost.app.settings import Place, handing_down
from stagepost.worker.process import Plan
from tests.faults.books import Books
from tests.faults.waiting import DEADLINE_SECONDS, wait_until
from tests.places import bare_environment

ROOT = Path(__file__).parents[2]
APP = "tests.faults.bank:app"
SCRIPT = Path(sys.executable).with_name("stagepost")
PROCESS = "stagepost.worker.process"
ALONE = "stagepost.liveness.alone"

# For how long nothing may move until it is sure that nothing will. Longer than any pause of a sound library in these
# tests: after a death, or until a hung process is killed.
PATIENCE_SECONDS = 25.0


class Member:
    """A process that was started by a test, and what it logs, with that of its children."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self.pid = self._process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        """The exit code; a signal's number, negative, where that ended it."""
        wait_until(lambda: not self.is_running(), f"{self.log.name} has ended", seconds)
        return self._process.returncode

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


class Crew:
    def __init__(self, books: Books, folder: Path) -> None:
        # For all that is started from now on: where it finds the database, by which way, and what else: see the bank.
        self.url = books.url
        # The other names of the one database, where each command of a campaign has its own.
        self.urls: list[str] = []
        self.environment: dict[str, str] = {}
        self.settings: dict[str, str] = dict(books.settings)
        self._folder = folder
        self._name = uuid.uuid4().hex
        self._members: list[Member] = []
        self.patience_seconds = PATIENCE_SECONDS

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

    def pids(self, part: str = "") -> list[int]:
        """Processes of this crew, children of children included, whose command line holds ``part``."""
        return [pid for pid in self._all_pids() if self._is_ours(pid, part)]

    def _all_pids(self) -> list[int]:
        return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]

    def strike(self, pid: int) -> None:
        """SIGKILL, if it is still there."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def end(self, pid: int) -> None:
        self.strike(pid)
        wait_until(lambda: pid not in self.pids(), f"process {pid} is gone")

    def disband(self) -> None:
        """Kill whatever is left, and print what it said: pytest shows that of a test that failed."""
        self.end_all()
        for member in self._members:
            print(f"--- {member.log.name}\n{member.log.read_text(errors='replace')[-8000:]}")  # noqa: T201

    def end_all(self) -> None:
        for member in self._members:
            member.kill()
        wait_until(self._is_gone, "all processes of the crew are gone")

    def _is_gone(self) -> bool:
        left = self.pids()
        for pid in left:
            self.strike(pid)
        return not left

    def _is_ours(self, pid: int, part: str) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            return False
        return f"BANK_CREW={self._name}".encode() in environment and part.encode() in command

    def _start(self, command: list[str], settings: dict[str, str]) -> Member:
        there = handing_down(Place(self.url, self.settings.get("transport")))
        handed_down = {name: value for name, value in there.items() if name not in os.environ}
        environment = bare_environment()
        environment |= handed_down | {"BANK_CREW": self._name, "PYTHONFAULTHANDLER": "1"}
        environment |= self.environment
        environment |= {f"BANK_{name.upper()}": value for name, value in (self.settings | settings).items()}
        member = Member(command, self._folder / f"{len(self._members)}.log", environment)
        self._members.append(member)
        return member
