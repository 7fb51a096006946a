from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from stagepost import App, Context
from stagepost.transaction.outcome import Outcome
from tests.transaction.guarded import NewHarness, Order, Run

if TYPE_CHECKING:
    from tests.conftest import Ledger


@pytest.fixture
def run(app: App, ledger: Ledger, harness: NewHarness) -> Run:
    """Run one handler on one message, or on each of so many; return the last outcome."""

    def once(handle: Callable[[Context], object], *, orders: int = 1) -> Outcome:
        @app.endpoint("pay")
        def pay(ctx: Context, order: Order) -> None:
            handle(ctx)

        for n in range(orders):
            app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
        worker = harness()
        outcome = [worker.run_one() for _ in range(orders)][-1]
        pending = worker.access.claimer.pending(["pay"])
        assert (pending.ready, pending.claimed) == (False, False)
        assert outcome is not None
        return outcome

    return once
