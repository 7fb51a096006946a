"""Handlers that use the connection they are lent: in one run, in two, or with something that they kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stagepost import App, Context
from stagepost.testing import Harness
from stagepost.transaction.outcome import Completed, Outcome

NewHarness = Callable[..., Harness]
Run = Callable[..., Outcome]
Way = Callable[[Context, str], object]


@dataclass
class Order:
    id: str


def enter(connection: Any) -> None:
    with connection:
        pass


def each_of_two_runs(app: App, harness: NewHarness, handle: Callable[[Context], object]) -> list[Outcome]:
    """Handle two messages, one after the other, on the same connection."""

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        handle(ctx)

    for n in range(2):
        app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
    worker = harness()
    outcomes = [outcome for outcome in (worker.run_one(), worker.run_one()) if outcome is not None]
    assert len(outcomes) == 2
    pending = worker.access.claimer.pending(["pay"])
    assert (pending.ready, pending.claimed) == (False, False)
    return outcomes


def keep_and_use(
    app: App, harness: NewHarness, keep: Callable[[Context], Any], use: Callable[[Any], object]
) -> Outcome:
    """Keep something in one run and use it in the next, which has begun its transaction. Return the outcome of that."""
    kept: list[Any] = []

    def handle(ctx: Context) -> None:
        if kept:
            ctx.sql("SELECT 1")
            use(kept[0])
        else:
            kept.append(keep(ctx))

    first, second = each_of_two_runs(app, harness, handle)
    assert isinstance(first, Completed)
    return second
