"""A script that starts flows until it was interrupted so many times, and says what it started.

    python -m tests.faults.interrupted_starter URL INTERRUPTS

It prints "ready", then the numbers of the flows whose start returned, and whether the last start, which nobody
interrupts, was a new one.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from types import FrameType

from stagepost import App, Context


@dataclass
class Order:
    number: int


def open_shop(url: str) -> App:
    app = App("shop", database=url, connections_max=1)

    @app.endpoint("place")
    def place(ctx: Context, order: Order) -> None: ...

    return app


class Starter:
    def __init__(self, app: App) -> None:
        self._app = app
        self._is_starting = False
        self.interrupts = 0
        self.next = 0
        self.started: list[int] = []

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupts += 1
        if self._is_starting:
            raise KeyboardInterrupt

    def start_until_interrupted(self) -> None:
        """Ctrl-C may come in the middle of what the last one set off."""
        try:
            while True:
                self.next += 1
                number = self.next
                self._is_starting = True
                self._app.start(self._app.target("place"), Order(number), flow_id=f"order {number}")
                self._is_starting = False
                self.started.append(number)
        except KeyboardInterrupt:
            self._is_starting = False
        finally:
            self._is_starting = False


def main(url: str, interrupts: int) -> None:
    app = open_shop(url)
    app.start(app.target("place"), Order(0), flow_id="order 0")
    starter = Starter(app)
    signal.signal(signal.SIGINT, starter.interrupt)
    print("ready", flush=True)  # noqa: T201 - for the test that sends the signals
    while starter.interrupts < interrupts:
        try:
            starter.start_until_interrupted()
        except KeyboardInterrupt:
            continue
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    last = app.start(app.target("place"), Order(-1), flow_id="last")
    print(json.dumps([starter.started, last.is_new]))  # noqa: T201 - as above


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
