"""``ctx.record_amount``: the journal has the amount if the message committed, and only then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import pytest

from stagepost import App, Context, IllegalCall
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres


@dataclass
class Order:
    id: str


def test_the_amounts_of_a_run_are_added_up_in_the_line_of_its_commit(app: App, harness: NewHarness) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.record_amount(Decimal("12.50"))
        if ctx.attempt == 1:
            raise ValueError
        ctx.record_amount(-2)

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    worker.drain()
    details = {each.waypoint: each.detail or "" for each in worker.history("flow")}
    assert details["committed"] == "amount 10.5"
    assert "amount" not in details["failed"]


@pytest.mark.parametrize(
    ("amount", "reason"),
    [
        (12.5, r"takes a Decimal or an int, not 12\.5: other numbers are not exact\. Write Decimal\(str\(amount\)\)"),
        (True, "takes a Decimal or an int"),
        (Decimal("NaN"), "NaN is no amount"),
        (Decimal("0.1234567890123"), "at most 16 digits and 12 decimals"),
    ],
    ids=str,
)
def test_an_amount_that_is_not_exact_is_an_illegal_call(
    app: App, harness: NewHarness, amount: Decimal, reason: str
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        with pytest.raises(IllegalCall, match=reason):
            ctx.record_amount(amount)
        ctx.refuse("as it should")

    app.start(pay, Order("o1"), flow_id="flow")
    assert isinstance(harness().run_one(), Buried)
