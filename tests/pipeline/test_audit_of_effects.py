"""The audit holds effects: a message that waits for its effect is waiting, and an undo is a message like any other."""

from __future__ import annotations

from contextlib import closing

import pytest

from stagepost import App, Context, Redelivery
from stagepost.app.app import engine_of
from stagepost.flow.clock import SystemClock
from stagepost.testing import Harness, ManualClock
from stagepost.testing.contract.givens import NOW, an_acceptance, committed
from tests.pipeline.books import Books
from tests.pipeline.commands import Cli
from tests.transaction.outside import CaptureRequest, Cards, card_of
from tests.transaction.shops import Order

pytestmark = pytest.mark.more


def raise_away() -> None:
    raise ConnectionError("away")


def test_effects_without_a_result_undone_and_replayed_balance(cli: Cli, books: Books) -> None:
    cards = Cards()
    app = App(
        "payer",
        database=books.url,
        clock=ManualClock(SystemClock().now()),
        redelivery=Redelivery.fixed(every_seconds=1, times=1),
    )
    card = card_of(app, cards, has_undo=True)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.effect(card, CaptureRequest(order.id, order.amount))
        if order.amount < 0:
            ctx.refuse("no such account")

    app.start(pay, Order("kept"), flow_id="kept")
    app.start(pay, Order("refused", -1), flow_id="refused")
    harness = Harness(app)
    harness.drain()
    assert cli("dead", "replay", "--all").code == 0
    harness.drain()
    cards.after = raise_away
    app.start(pay, Order("waits"), flow_id="waits")
    # It fails, and is then put off until the outside can be asked.
    for _ in range(2):
        harness.run_one()
        harness.skip_wait()
    found = cli.audit().json
    assert (found["clean"], found["lost_count"], found["doubled_count"]) == (True, 0, 0)
    assert found["flows"] == {"flows": 3, "completed": 1, "dead": 1, "under_way": 1}
    cards.after = lambda: None
    harness.drain()
    found = cli.audit().json
    assert (found["clean"], found["flows"]["under_way"], found["flows"]["completed"]) == (True, 0, 2)
    assert found["held"] == 0
    with closing(engine_of(app).store.apart.session()) as apart, committed(apart):
        apart.outbox.hold([an_acceptance("held")], NOW, "here")
    found = cli.audit().json
    assert (found["clean"], found["held"], found["flows"]["flows"]) == (True, 1, 3)
    harness.close()
    app.close()
