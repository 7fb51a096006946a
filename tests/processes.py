"""Processes that a test starts, and ends: all of them, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path

from tests.waiting import PATIENCE_SECONDS, last_while_moving, wait_until

ROOT = Path(__file__).parents[1]
# Its value names the test that started a process. Children inherit it.
VARIABLE = "TESTED_BY"


class Process:
    """A started process. ``log`` is the file that it writes to."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self.log = log
        self._process = process

    def signal(self, number: signal.Signals, *, is_for_group: bool = False) -> None:
        """Signal it, or all processes of the group that it leads, as a terminal does at Ctrl-C."""
        if is_for_group:
            os.killpg(self.pid, number)
            return
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait for the end; return the exit code, or the negative number of the signal. Fail when it logs no more."""
        has_ended = last_while_moving(lambda: not self.is_running(), lambda: self.log.stat().st_size, PATIENCE_SECONDS)
        assert has_ended, f"{self._process.args!r} has not ended, and {self.log} does not grow"
        return self._process.returncode


class ProcessGroup:
    """The processes that were started with ``environment``, and all of their descendants."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex
        self.environment = {VARIABLE: name}
        self._mark = f"{VARIABLE}={name}".encode()

    def pids(self, part: str = "") -> list[int]:
        """Return those whose command line holds ``part``."""
        found = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal())
        return [pid for pid in found if self._has(pid, part.encode())]

    def kill_all(self) -> None:
        wait_until(self._is_empty, "all processes of the test are gone")

    def _is_empty(self) -> bool:
        left = self.pids()
        for pid in left:
            kill(pid)
        return not left

    def _has(self, pid: int, part: bytes) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            return False
        return self._mark in environment and part in command


def kill(pid: int) -> None:
    """Send SIGKILL, unless the process has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
