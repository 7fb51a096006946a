"""The harness that users' tests run on must not make a flow look better than it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from stagepost import App, Context, Redelivery, Target
from stagepost.testing import Harness, ManualClock
from stagepost.testing.harness import running
from stagepost.transaction.outcome import Completed

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres


@dataclass
class Order:
    id: str


def start_in(app: App, names: list[str], ran: list[str]) -> None:
    for name in names:

        @app.endpoint(name)
        def note(ctx: Context, order: Order) -> None:
            ran.append(ctx.stage)

        app.start(note, Order(name), flow_id=name)


def test_the_order_in_which_stages_run_is_the_seeds(app: App, harness: NewHarness) -> None:
    orders: set[tuple[str, ...]] = set()
    ran: list[str] = []
    start_in(app, ["a", "b", "c"], ran)
    for seed in range(20):
        again: list[tuple[str, ...]] = []
        for _ in range(2):
            ran.clear()
            harness(seed=seed).drain()
            for name in ("a", "b", "c"):
                app.start(app.target(name), Order(name), flow_id=f"{seed} {len(again)}")
            again.append(tuple(ran))
        assert again[0] == again[1]
        orders.add(again[0])
    assert len(orders) > 1


def test_the_order_in_which_messages_of_a_stage_run_is_the_seeds_too(app: App, harness: NewHarness) -> None:
    """A scatter whose replies are gathered relies on their order easily, and must be caught."""
    orders: set[tuple[str, ...]] = set()
    ran: list[str] = []

    @app.endpoint("gather")
    def gather(ctx: Context, order: Order) -> None:
        ran.append(order.id)

    for seed in range(20):
        ran.clear()
        for n in range(3):
            app.start(gather, Order(str(n)), flow_id=f"{seed} {n}")
        harness(seed=seed).drain()
        orders.add(tuple(ran))
    assert len(orders) > 1


def test_draining_moves_a_manual_clock_to_what_is_due_next_and_no_further(
    app: App, harness: NewHarness, clock: ManualClock
) -> None:
    seen: list[float] = []

    @app.endpoint("later")
    def later(ctx: Context, order: Order) -> None:
        seen.append(clock.monotonic())

    for delay in (3600, 60):
        app.start(later, Order("o"), flow_id=str(delay), delay=delay)
    harness().drain()
    assert seen == [60, 3600]
    assert clock.monotonic() == 3600


def test_with_a_real_clock_what_is_delayed_stays_where_it_is(
    new_database: Callable[[], str], harness_of: NewHarness
) -> None:
    app = App("real", database=new_database())

    @app.endpoint("later")
    def later(ctx: Context, order: Order) -> None: ...

    app.start(later, Order("o"), flow_id="now")
    app.start(later, Order("o"), flow_id="later", delay=3600)
    worker = harness_of(app)
    assert [type(each) for each in worker.drain()] == [Completed]
    assert worker.access.claimer.pending(["later"]).next_due_at is not None


def test_a_flow_that_runs_in_a_circle_ends_the_test_and_not_the_test_run(
    app: App, harness: NewHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.testing.harness.RUNS_MAX", 50)

    @app.endpoint("again", redelivery=Redelivery(redeliveries=10_000))
    def again(ctx: Context, order: Order) -> None:
        raise ValueError

    app.start(again, Order("o"), flow_id="flow")
    with pytest.raises(AssertionError, match="not drained after 50 runs"):
        harness().drain()


def test_a_harness_for_the_length_of_a_block(app: App) -> None:
    silent: Target[Order, None] = app.remote("elsewhere", Order)

    @app.endpoint("begin")
    def begin(ctx: Context, order: Order) -> None:
        ctx.send(silent, order)

    app.start(begin, Order("o"), flow_id="flow")
    with running(app, seed=3) as worker:
        assert [type(each) for each in worker.drain()] == [Completed]
        assert [each.waypoint for each in worker.history("flow")][-1] == "sent"
