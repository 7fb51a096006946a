"""When a failed message comes again: exactly as its policy says, counted by attempts that ended and said so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from stagepost import App, Context, Redelivery
from stagepost.testing import Harness, ManualClock

if TYPE_CHECKING:
    from tests.conftest import NewApp

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True


@dataclass
class Order:
    id: str


POLICIES = {
    "the default, without chance": (Redelivery(jitter=0), [0.25, 0.5, 1, 2, 4, 8]),
    "none": (Redelivery.none(), []),
    "fixed": (replace(Redelivery.fixed(every_seconds=60, times=4), jitter=0), [60, 60, 60, 60]),
    "exponential with a cap": (
        Redelivery(redeliveries=6, first_seconds=1, factor=3, cap_seconds=20, jitter=0),
        [1, 3, 9, 20, 20, 20],
    ),
    "at once": (Redelivery(redeliveries=3, first_seconds=0, jitter=0), [0, 0, 0]),
}


def run_failing(app: App, worker_of: NewHarness, clock: ManualClock) -> list[float]:
    """Seconds between the attempts of one message, until it is a dead letter."""
    ran: list[float] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ran.append(clock.monotonic())
        assert ctx.attempt == len(ran)
        raise ValueError(order.id)

    app.start(pay, Order("o1"), flow_id="flow")
    worker = worker_of(app)
    worker.drain()
    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.failures, letter.deaths, letter.deliveries) == ("exhausted", len(ran), 0, len(ran))
    return [after - before for before, after in pairwise(ran)]


@pytest.mark.parametrize("name", POLICIES)
def test_a_failing_message_comes_again_exactly_when_its_policy_says(
    new_app: NewApp, harness_of: NewHarness, clock: ManualClock, name: str
) -> None:
    policy, delays = POLICIES[name]
    assert run_failing(new_app(redelivery=policy), harness_of, clock) == pytest.approx(delays, abs=1e-6)


def test_chance_lengthens_each_delay_and_never_shortens_it(
    new_app: NewApp, harness_of: NewHarness, clock: ManualClock
) -> None:
    waited = run_failing(new_app(), harness_of, clock)
    shares = [seconds / wanted for seconds, wanted in zip(waited, [0.25, 0.5, 1, 2, 4, 8], strict=True)]
    assert all(1 <= share <= 1.151 for share in shares)
    assert len(set(shares)) == len(shares)


def test_a_stages_policy_goes_before_its_endpoints_and_that_before_the_apps(
    new_app: NewApp, harness_of: NewHarness
) -> None:
    app = new_app(redelivery=Redelivery(redeliveries=1))
    runs: dict[str, int] = {}

    def fail(ctx: Context, order: Order) -> None:
        runs[ctx.stage] = runs.get(ctx.stage, 0) + 1
        raise ValueError

    app.endpoint("app")(fail)
    app.endpoint("endpoint", redelivery=Redelivery(redeliveries=2))(fail)
    staged = app.staged("staged", redelivery=Redelivery(redeliveries=2))
    staged.stage(redelivery=Redelivery(redeliveries=3))(fail)
    staged.stage(fail)
    for name in ("app", "endpoint", "staged", "staged.fail"):
        app.start(app.remote(name, Order), Order("o1"), flow_id=name)
    harness_of(app).drain()
    assert runs == {"app": 2, "endpoint": 3, "staged": 4, "staged.fail": 3}


def test_a_message_that_waits_holds_up_nobody(app: App, harness: NewHarness, clock: ManualClock) -> None:
    ran: list[tuple[str, float]] = []
    begun = clock.monotonic()

    @app.endpoint("pay", redelivery=Redelivery.fixed(every_seconds=60, times=1))
    def pay(ctx: Context, order: Order) -> None:
        ran.append((order.id, clock.monotonic() - begun))
        if order.id == "bad":
            raise ValueError

    app.start(pay, Order("bad"), flow_id="bad")
    for n in range(3):
        app.start(pay, Order(f"good {n}"), flow_id=f"good {n}")
    harness().drain()
    assert sorted(name for name, at in ran if at == 0) == ["bad", "good 0", "good 1", "good 2"]
    assert [name for name, at in ran if at > 0] == ["bad"]


def test_each_message_counts_its_own_failures(app: App, harness: NewHarness) -> None:
    attempts: dict[str, list[int]] = {}

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        attempts.setdefault(order.id, []).append(ctx.attempt)
        if ctx.attempt <= int(order.id):
            raise ValueError

    for n in range(5):
        app.start(pay, Order(str(n)), flow_id=f"f{n}")
    worker = harness(seed=5)
    worker.drain()
    assert attempts == {str(n): list(range(1, n + 2)) for n in range(5)}
    assert worker.dead_letters() == []
