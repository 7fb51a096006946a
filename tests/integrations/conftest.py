from __future__ import annotations

from collections.abc import Callable

import pytest

from stagepost import App, Context
from stagepost.testing import Harness
from stagepost.transaction.outcome import Outcome
from tests.integrations.attempts import Handle, Run
from tests.integrations.models import Order
from tests.places import place


@pytest.fixture(params=["sqlite", "postgres", "sqlite-outbox", "postgres-two_phase"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    """As everywhere, without the store in memory, which no driver knows."""
    return place(request)


@pytest.fixture
def run(app: App, harness: Callable[..., Harness]) -> Run:
    """Run one handler on one message, and return the outcome of its first attempt."""

    def once(handle: Handle) -> Outcome:
        @app.endpoint("pay")
        def pay(ctx: Context, order: Order) -> None:
            handle(ctx)

        app.start(pay, Order("o1"), flow_id="o1")
        outcome = harness().run_one()
        assert outcome is not None
        return outcome

    return once
