"""Dying at every named step of every stage of a flow, on both stores: each effect exactly once.

And the other way round: a setup that is broken on purpose must be caught, or the first half proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import App, Context, StagedEndpoint
from stagepost.app.app import engine_of
from stagepost.testing import Harness, crash_everywhere
from stagepost.testing.crash import Crash
from stagepost.transaction.steps import STEPS, Step
from stagepost.transaction.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from tests.conftest import Ledger, NewApp

LedgerOf = Callable[[App], "Ledger"]

IN_EVERY_MODE = True


@dataclass
class Order:
    id: str
    amount: int


@dataclass
class Hold:
    id: str


@dataclass
class Receipt:
    id: str


@dataclass
class Payment:
    order: Order | None = None


class Shop:
    """A payments-like service: a request, a reply, a next, a fail_with, a retry, a side flow, a delayed message."""

    def __init__(self, new_app: NewApp, ledger_of: LedgerOf) -> None:
        self._new_app = new_app
        self._ledger_of = ledger_of
        self.ledger: Ledger
        self.outside: list[str] = []

    def make_app(self) -> App:
        app = self._new_app()
        self.ledger = ledger = self._ledger_of(app)
        self.outside.clear()
        pay: StagedEndpoint[Order, Receipt] = app.staged("pay")

        @app.endpoint("bank")
        def bank(ctx: Context, order: Order) -> Hold:
            ledger.write(ctx, f"hold {order.id}")
            if order.amount > 100:
                ctx.fail_with(Hold("refused"))
            return Hold(f"h-{order.id}")

        @app.endpoint("mail")
        def mail(ctx: Context, receipt: Receipt) -> None:
            ledger.write(ctx, f"mail {receipt.id}")

        @app.endpoint("done")
        def done(ctx: Context, receipt: Receipt) -> None:
            ledger.write(ctx, f"done {receipt.id}")

        @pay.stage
        def reserve(ctx: Context, state: Payment, order: Order) -> None:
            ledger.write(ctx, f"payment {order.id}")
            state.order = order
            ctx.request(bank, order)

        @pay.stage
        def settle(ctx: Context, state: Payment, hold: Hold) -> None:
            if hold.id == "h-o1" and not ctx.redelivered:
                raise ValueError("the first attempt fails")
            ctx.next(hold)

        @pay.stage
        def finish(ctx: Context, state: Payment, hold: Hold) -> Receipt:
            assert state.order is not None
            ledger.write(ctx, f"{hold.id} for {state.order.id}")
            app.start(mail, Receipt(state.order.id), flow_id=f"mail:{state.order.id}")
            ctx.send(done, Receipt(f"{state.order.id} later"), delay=5)
            return Receipt(state.order.id)

        return app

    def scenario(self, app: App) -> None:
        for order in (Order("o1", 10), Order("o2", 1_000)):
            app.start(app.target("pay"), order, flow_id=order.id, reply_to=app.target("done"))

    def effects(self, app: App) -> Any:
        worker = Harness(app)
        try:
            depths = [
                (each.stage, each.ready + each.claimed + each.delayed) for each in worker.access.session.queue.depths()
            ]
            letters = [letter.summary for letter in worker.dead_letters()]
            return sorted(self.ledger.entries), sorted(self.outside), depths, letters
        finally:
            worker.close()


@pytest.fixture
def shop(new_app: NewApp, ledger_of: LedgerOf) -> Shop:
    return Shop(new_app, ledger_of)


@pytest.mark.longer_on_postgres
def test_a_flow_has_each_effect_exactly_once_wherever_its_process_dies(shop: Shop) -> None:
    found = crash_everywhere(shop.make_app, shop.scenario, shop.effects)
    assert [str(each) for each in found if not each.is_exactly_once] == []
    assert found[0].expected == (
        sorted(
            [
                "payment o1",
                "hold o1",
                "h-o1 for o1",
                "mail o1",
                "done o1",
                "done o1 later",
                "payment o2",
                "refused for o2",
                "mail o2",
                "done o2",
                "done o2 later",
            ]
        ),
        [],
        [],
        [],
    )
    assert {each.step for each in found} == set(STEPS[next(iter(engine_of(shop.make_app()).modes().values()))])
    assert {each.stage for each in found} == {"pay", "pay.settle", "pay.finish", "bank", "mail", "done"}
    assert [each.passing for each in found] == list(range(1, len(found) + 1))
    assert str(found[0]) == "crash at claimed of pay (passing 1): exactly once"


# Negative controls: one stage is enough to show what is broken


def mail_once(app: App) -> None:
    app.start(app.target("mail"), Receipt("r1"), flow_id="flow")


def failing(shop: Shop, scenario: Callable[[App], None] = mail_once) -> list[Crash]:
    found = crash_everywhere(shop.make_app, scenario, shop.effects)
    return [each for each in found if not each.is_exactly_once]


def test_a_setup_that_is_not_broken_passes_the_controls(shop: Shop) -> None:
    assert failing(shop) == []


@pytest.mark.in_one_database
def test_an_effect_outside_the_transaction_is_caught(shop: Shop) -> None:
    """As a handler that sends a mail itself would: what it did is not undone when the process dies."""
    make_app = shop.make_app

    def make_careless_app() -> App:
        app = make_app()

        @app.endpoint("careless")
        def careless(ctx: Context, order: Order) -> None:
            shop.outside.append(order.id)

        return app

    def scenario(app: App) -> None:
        app.start(app.target("careless"), Order("o1", 1), flow_id="flow")

    found = crash_everywhere(make_careless_app, scenario, shop.effects)
    doubled = [each for each in found if not each.is_exactly_once]
    # From the handler's end to the commit: after it, the message is gone.
    assert [each.step for each in doubled] == [
        Step.HANDLED,
        Step.BEGUN,
        Step.ADMITTED,
        Step.RECORDED,
        Step.COMMITTING,
    ]
    assert all(each.result[1] == ["o1", "o1"] for each in doubled)
    assert "an effect outside the stage's transaction" in str(doubled[0])


@pytest.mark.in_one_database
def test_taking_the_message_before_the_work_is_caught(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeded bug: acknowledge first, in a transaction of its own, then work."""

    def take_early(unit_of_work: UnitOfWork) -> None:
        session = unit_of_work.session
        if not unit_of_work._is_begun:
            unit_of_work._mode.begin(unit_of_work._claim)
            session.commit()
            session.begin()
            unit_of_work._is_begun = True
            unit_of_work._queue_commit.listener(Step.BEGUN, unit_of_work._claim)

    monkeypatch.setattr(UnitOfWork, "begin", take_early)
    lost = failing(shop)
    assert [each.step for each in lost] == [Step.BEGUN, Step.HANDLED, Step.RECORDED, Step.COMMITTING]
    assert [each.result[0] for each in lost] == [[]] * len(lost)


@pytest.mark.in_one_database
def test_not_taking_the_message_at_all_is_caught(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeded bug: the work commits, the message stays."""

    def begin(unit_of_work: UnitOfWork) -> None:
        if not unit_of_work._is_begun:
            unit_of_work.session.begin()
            unit_of_work._is_begun = True

    monkeypatch.setattr(UnitOfWork, "begin", begin)
    doubled = failing(shop)
    assert [each.step for each in doubled] == [Step.COMMITTED, Step.AFTER_COMMIT]
    assert [each.result[0] for each in doubled] == [["mail r1", "mail r1"]] * len(doubled)
