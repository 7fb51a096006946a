"""Blocking redelivery: a failed message stays on its thread, and every failure is written when it happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from stagepost import App, Context, Redelivery
from stagepost.flow.clock import SECOND
from stagepost.testing import Harness, ManualClock
from stagepost.transaction.outcome import Redelivered, Returned

if TYPE_CHECKING:
    from tests.conftest import NewApp

IN_EVERY_MODE = True
BLOCKING = Redelivery(redeliveries=3, first_seconds=1, jitter=0, blocking=True)

NewHarness = Callable[..., Harness]


@dataclass
class Order:
    id: str


class Shop:
    """An app with one stage, whose ``runs`` have the order and the second of each attempt."""

    def __init__(self, app: App, clock: ManualClock, *, heals_at: int = 0) -> None:
        self.runs: list[tuple[str, float]] = []
        self._app = app
        begin = clock.monotonic()

        @app.endpoint("pay")
        def pay(ctx: Context, order: Order) -> None:
            self.runs.append((order.id, clock.monotonic() - begin))
            if order.id.startswith("poison") and ctx.attempt != heals_at:
                raise ValueError(order.id)

        self._pay = pay

    def start(self, *orders: str) -> None:
        for each in orders:
            self._app.start(self._pay, Order(each), flow_id=each)


@pytest.mark.parametrize("heals_at", [0, 3])
def test_the_thread_runs_no_other_message_until_success_or_dead_letter(
    new_app: NewApp, harness_of: NewHarness, clock: ManualClock, heals_at: int
) -> None:
    app = new_app(redelivery=BLOCKING)
    shop = Shop(app, clock, heals_at=heals_at)
    shop.start("poison")
    worker = harness_of(app)
    assert isinstance(worker.run_one(), Redelivered)
    shop.start("healthy")
    worker.drain()
    attempts = [("poison", 0), ("poison", 1), ("poison", 3), ("poison", 7)][: heals_at or 4]
    assert shop.runs == [*attempts, ("healthy", attempts[-1][1])]
    assert [(each.reason, each.failures) for each in worker.dead_letters()] == ([] if heals_at else [("exhausted", 4)])


def test_each_failure_is_in_the_store_when_it_happens(new_app: NewApp, harness_of: NewHarness) -> None:
    clock = ManualClock()
    app = new_app(redelivery=BLOCKING, clock=clock)
    shop = Shop(app, clock)
    shop.start("poison")
    worker = harness_of(app)
    for failures in (1, 2, 3):
        outcome = worker.run_one()
        assert isinstance(outcome, Redelivered)
        assert outcome.kept is not None
        (held,) = worker.access.session.queue.owned("harness/1")
        assert held == outcome.kept
        assert (held.failures, held.deliveries) == (failures, failures + 1)
    worker.run_one()
    lines = [each for each in worker.history("poison") if each.waypoint in ("failed", "delayed")]
    failed = [each for each in lines if each.waypoint == "failed"]
    assert [(each.at - failed[0].at) / SECOND for each in failed] == [0, 1, 3, 7]
    assert [each.attempt for each in failed] == [1, 2, 3, 4]
    assert [each.detail for each in lines if each.waypoint == "delayed"] == [
        f"{seconds}.000 s, kept by its thread" for seconds in (1, 2, 4)
    ]


def test_a_pause_of_the_stage_frees_the_thread(new_app: NewApp, harness_of: NewHarness, clock: ManualClock) -> None:
    app = new_app(redelivery=BLOCKING, pause_after=2)
    shop = Shop(app, clock)
    shop.start("poison 1")
    first, second = harness_of(app), harness_of(app, owner="harness/2")
    kept = first.run_one()
    assert isinstance(kept, Redelivered)
    assert kept.kept is not None
    shop.start("poison 2")
    opening = second.run_one()
    assert isinstance(opening, Redelivered)
    assert opening.kept is None, "the failure that opens the circuit is not kept"
    assert isinstance(first.run_one(), Returned)
    assert first.access.session.queue.owners() == []


def test_a_suspect_is_not_kept(new_app: NewApp, harness_of: NewHarness, clock: ManualClock) -> None:
    app = new_app(redelivery=BLOCKING)
    shop = Shop(app, clock)
    shop.start("poison")
    worker = harness_of(app)
    claim = worker.claim_one()
    assert claim is not None
    outcome = worker.transaction.run(claim._replace(deaths=1))
    assert isinstance(outcome, Redelivered)
    assert outcome.kept is None
    assert worker.access.session.queue.owners() == []
