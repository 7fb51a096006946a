"""A process with an incarnation in the database, which does what it is told, and says when it is done.

    python -m tests.liveness.row_lodger URL APP SLOTS

It begins by saying its owner.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from stagepost.flow.clock import SystemClock
from stagepost.flow.ids import RandomIds
from stagepost.liveness.lock_row import LockRow
from stagepost.store.postgres.store import PostgresStore
from tests.liveness.lodger import ROOT, claim


class RowLodger:
    """The parent's side of it."""

    def __init__(self, url: str, app: str, slots: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.liveness.row_lodger", url, app, str(slots)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.owner = self._said()

    def told(self, *words: object) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._said()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.kill()
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
def row_lodging(url: str, app: str = "bank", slots: int = 2) -> Iterator[RowLodger]:
    lodger = RowLodger(url, app, slots)
    try:
        yield lodger
    finally:
        lodger.end()


def main(url: str, app: str, slots: str) -> None:
    clock = SystemClock()
    lives = PostgresStore(url).lives()
    incarnation = LockRow(lives, app, "lodger@here", RandomIds(clock, Random()), clock, slots=int(slots))
    print(incarnation.owner, flush=True)  # noqa: T201
    for line in sys.stdin:
        match line.split():
            case ["note", slot, row, deliveries]:
                incarnation.note(int(slot), claim(int(row), int(deliveries)))
            case ["time_out", slot]:
                incarnation.time_out(int(slot))
            case ["abandon"]:
                incarnation.abandon()
            case ["close"]:
                incarnation.close()
            case _:
                raise ValueError(line)
        print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
