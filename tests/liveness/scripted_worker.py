"""A process with an incarnation of its own. It executes commands, a line each, and reports when each is done.

    python -m tests.liveness.scripted_worker PLACE APP SLOTS

PLACE is the folder of the lock files, or the URL of a PostgreSQL store. The first line of its output is the owner of
its claims. ``look`` reports the state of each lock file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SystemClock
from stagepost.flow.ids import RandomIds
from stagepost.liveness.detector import FailureDetector
from stagepost.liveness.incarnation import registration
from stagepost.ports.liveness import Incarnation, WorkerRegistry
from stagepost.store.postgres.store import PostgresStore
from stagepost.store.sqlite.lock_file import LockFile, LockFolder
from tests.processes import ROOT


def claim(row: int, deliveries: int, owner: str = "bank/1", *, failures: int = 0, deaths: int = 0) -> Claim:
    return Claim(row, owner, deliveries, "bank.pay", f"m{row}", f"f{row}", failures, deaths, 0, b"{}")


class ScriptedWorker:
    """The parent's side of the process."""

    def __init__(self, place: Path | str, app: str, slots: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.liveness.scripted_worker", str(place), app, str(slots)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.owner = self._said()
        self._place = place

    @property
    def path(self) -> Path:
        """Its lock file."""
        return Path(self._place) / f"{self.owner.replace('/', '@')}.lock"

    def told(self, *words: object) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._said()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL: nothing is tidied up."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def _said(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the scripted worker has ended"
        return line.strip()


@contextmanager
def scripted_worker(place: Path | str, app: str = "bank", slots: int = 2) -> Iterator[ScriptedWorker]:
    worker = ScriptedWorker(place, app, slots)
    try:
        yield worker
    finally:
        worker.close()


def obey(line: str, incarnation: Incarnation, survey: FailureDetector) -> str:
    match line.split():
        case ["note", slot, row, deliveries]:
            incarnation.note(int(slot), claim(int(row), int(deliveries)))
        case ["clear", slot]:
            incarnation.note(int(slot), None)
        case ["time_out", slot]:
            incarnation.time_out(int(slot))
        case ["abandon"]:
            incarnation.abandon()
        case ["beat"]:
            return str(incarnation.beat())
        case ["close"]:
            incarnation.close()
        case ["touch"]:
            # A backup tool in the same process does this.
            assert isinstance(incarnation, LockFile)
            incarnation.path.open("rb").close()
        case ["fork"]:
            child = os.fork()
            if child == 0:
                signal.pause()
            return str(child)
        case ["look"]:
            return json.dumps({Path(found.record.key).name: found.state for found in survey.look()})
        case _:
            raise ValueError(line)
    return "done"


def main(place: str, app: str, slots: str) -> None:
    clock = SystemClock()
    registry: WorkerRegistry
    if place.startswith("postgresql:"):
        registry = PostgresStore(place).liveness(clock)
    else:
        registry = LockFolder(Path(place), clock)
    incarnation = registry.enter(
        registration(app, "scripted@here", RandomIds(clock, Random()), clock, slots=int(slots))
    )
    survey = FailureDetector(registry, app, clock)
    print(incarnation.owner, flush=True)  # noqa: T201
    for line in sys.stdin:
        print(obey(line, incarnation, survey), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
