"""A process with an incarnation of its own, which does what it is told, a line at a time, and says when it is done.

    python -m tests.liveness.lodger FOLDER APP SLOTS

It begins by saying the path of its lock file. ``look PATTERN`` has it look who is alive.
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
from stagepost.liveness.lock_file import LockFile, LockFileSurvey

ROOT = Path(__file__).parents[2]


def claim(row: int, deliveries: int, owner: str = "bank/1", *, failures: int = 0, deaths: int = 0) -> Claim:
    return Claim(row, owner, deliveries, "bank.pay", f"m{row}", f"f{row}", failures, deaths, 0, b"{}")


class Lodger:
    """The parent's side of it."""

    def __init__(self, folder: Path, app: str = "bank", slots: int = 2) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.liveness.lodger", str(folder), app, str(slots)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.path = Path(self._said())

    def told(self, *words: object) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._said()

    def kill(self) -> None:
        """With SIGKILL: nothing is tidied up."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def _said(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the lodger has ended"
        return line.strip()


@contextmanager
def lodging(folder: Path, app: str = "bank", slots: int = 2) -> Iterator[Lodger]:
    lodger = Lodger(folder, app, slots)
    try:
        yield lodger
    finally:
        lodger.close()


def obey(line: str, incarnation: LockFile, survey: LockFileSurvey) -> str:
    match line.split():
        case ["note", slot, row, deliveries]:
            incarnation.note(int(slot), claim(int(row), int(deliveries)))
        case ["clear", slot]:
            incarnation.clear(int(slot))
        case ["time_out", slot]:
            incarnation.time_out(int(slot))
        case ["abandon"]:
            incarnation.abandon()
        case ["beat"]:
            return str(incarnation.beat())
        case ["close"]:
            incarnation.close()
        case ["touch"]:
            # What a backup tool in the same process would do.
            incarnation.path.open("rb").close()
        case ["fork"]:
            child = os.fork()
            if child == 0:
                signal.pause()
            return str(child)
        case ["look"]:
            return json.dumps({Path(str(found.key)).name: found.state for found in survey.look()})
        case _:
            raise ValueError(line)
    return "done"


def main(folder: str, app: str, slots: str) -> None:
    clock = SystemClock()
    incarnation = LockFile(Path(folder), app, "lodger@here", RandomIds(clock, Random()), clock, slots=int(slots))
    survey = LockFileSurvey(Path(folder), app, clock)
    print(incarnation.path, flush=True)  # noqa: T201
    for line in sys.stdin:
        print(obey(line, incarnation, survey), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
