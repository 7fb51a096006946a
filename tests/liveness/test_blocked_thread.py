"""A thread that keeps a failed message: what it gives back, and how it stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost import App, Context, Redelivery
from stagepost.app.app import engine_of
from stagepost.flow.clock import SystemClock
from stagepost.ports.queue import Depth
from stagepost.runtime.assembly import attempt_runner
from stagepost.runtime.loop import work
from stagepost.runtime.prefetch import Prefetcher
from stagepost.runtime.service import NeverStops
from stagepost.testing.harness import Unwatched
from tests.waiting import PATIENCE_SECONDS, wait_until

OWNER = "bank/1"
LONG = Redelivery(redeliveries=1, first_seconds=3600, cap_seconds=3600, jitter=0, blocking=True)


@dataclass
class Order:
    id: str


class Bank:
    """Ten orders at one stage, of which the first one fails, and a thread that runs them."""

    def __init__(self, file: Path, *, batch: int) -> None:
        self.runs: list[str] = []
        app = App("bank", database=f"sqlite:///{file}")

        @app.endpoint("pay", redelivery=LONG, batch=batch)
        def pay(ctx: Context, order: Order) -> None:
            self.runs.append(order.id)
            if order.id == "0":
                raise ValueError("poison")

        for number in range(10):
            app.start(pay, Order(str(number)), flow_id=str(number))
        self.app = app
        self.engine = engine_of(app)
        self.prefetcher = Prefetcher(self.engine.batches(), OWNER, "test", 10, SystemClock())
        self.thread = threading.Thread(target=self._work, daemon=True)

    def depth(self) -> Depth:
        with closing(self.engine.access()) as access:
            (depth,) = access.session.queue.depths()
            return depth

    def _work(self) -> None:
        with closing(self.engine.access()) as access:
            stop = NeverStops()
            runner = attempt_runner(
                self.engine, access, node="test", monitor=Unwatched(), stop=stop, after_commit=lambda *_: None
            )
            with closing(runner):
                work(self.prefetcher, access, runner, self.engine.clock, stop)


@pytest.fixture(params=[1, 10])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bank]:
    bank = Bank(tmp_path / "bank.db", batch=request.param)
    bank.thread.start()
    yield bank
    bank.prefetcher.stop()
    bank.thread.join(PATIENCE_SECONDS)
    bank.app.close()


def test_it_gives_back_all_that_it_has_claimed_ahead_and_keeps_its_message_until_it_stops(bank: Bank) -> None:
    wait_until(lambda: bank.prefetcher.blocked == 1, "the thread waits with its message")
    depth = bank.depth()
    assert (depth.claimed, depth.ready, depth.delayed) == (1, 9, 0)
    assert set(bank.runs) == {"0"}
    bank.prefetcher.stop()
    bank.thread.join(PATIENCE_SECONDS)
    assert not bank.thread.is_alive()
    depth = bank.depth()
    assert (depth.claimed, depth.ready, depth.delayed) == (0, 9, 1)
    with closing(bank.engine.access()) as access:
        lines = [each for each in access.session.journal.history("0") if each.waypoint != "accepted"]
    assert [each.waypoint for each in lines] == ["received", "failed", "delayed", "returned"]
    assert lines[-1].detail == "its worker stops"
