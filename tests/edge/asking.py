"""The parts of tests that ask: a number to ask with, a worker that answers, and the journal's lines of replies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from stagepost import App
from stagepost.ports.journal import Waypoint
from stagepost.testing import Harness


@dataclass
class Number:
    value: int


@contextmanager
def working(app: App) -> Iterator[None]:
    """Run the messages that come, in a thread beside the block."""
    is_over = threading.Event()

    def work() -> None:
        with closing(Harness(app)) as worker:
            while not is_over.wait(0.001):
                worker.drain()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def replies(worker: Harness, flow_id: str = "flow") -> list[Waypoint]:
    return [each for each in worker.history(flow_id) if ".reply." in each.stage]


def names(waypoints: list[Waypoint]) -> list[str]:
    return [each.waypoint for each in waypoints]
