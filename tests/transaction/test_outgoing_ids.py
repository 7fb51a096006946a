"""Ids of what a stage sends: the same attempt repeated sends the same ids, and no two sends share one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from stagepost import App, Context, StagedEndpoint, Target
from stagepost.app.app import engine_of
from stagepost.testing import Harness

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    id: str


def test_an_attempt_that_is_repeated_sends_the_same_ids(app: App, harness: NewHarness) -> None:
    ship: Target[Order, Receipt] = app.remote("ship", Order, Receipt)
    bill: Target[Order, Receipt] = app.remote("bill", Order, Receipt)
    sent: list[list[str]] = []
    pay: StagedEndpoint[Order, None] = app.staged("pay")

    @pay.stage
    def first(ctx: Context, order: Order) -> None:
        # The order of sends to different targets does not matter: a handler may iterate over a set.
        targets = [ship, bill] if ctx.attempt % 2 else [bill, ship]
        ids = {target.address: [ctx.request(target, order), ctx.send(target, order)] for target in targets}
        sent.append([*ids["ship"], *ids["bill"]])
        if ctx.attempt < 4:
            raise ValueError

    @pay.stage
    def second(ctx: Context, receipt: Receipt) -> None: ...

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    worker.drain()
    assert sent == [sent[0]] * 4
    assert len(set(sent[0])) == 4
    waiting = worker.access.claimer.claim(["ship", "bill"], 10, "w1", "test")
    assert sorted(each.message_id for each in waiting) == sorted(sent[0])


def test_a_scatter_of_ten_has_ten_ids(app: App, harness: NewHarness) -> None:
    ship: Target[Order, Receipt] = app.remote("ship", Order, Receipt)
    sent: list[str] = []
    pay: StagedEndpoint[Order, None] = app.staged("pay")

    @pay.stage
    def first(ctx: Context, order: Order) -> None:
        sent.extend(ctx.request(ship, order) for _ in range(10))

    @pay.stage
    def second(ctx: Context, receipt: Receipt) -> None: ...

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert len(set(sent)) == 10
    assert {uuid.UUID(each).version for each in sent} == {5}


def test_the_same_send_by_another_message_or_another_stage_has_another_id(app: App, harness: NewHarness) -> None:
    ship: Target[Order, None] = app.remote("ship", Order)
    sent: list[str] = []
    pay: StagedEndpoint[Order, None] = app.staged("pay")

    @pay.stage
    def first(ctx: Context, order: Order) -> None:
        sent.append(ctx.send(ship, order))
        sent.append(ctx.next(order))

    @pay.stage
    def second(ctx: Context, order: Order) -> None:
        sent.append(ctx.send(ship, order))

    for n in range(2):
        app.start(pay, Order("o1"), flow_id=f"f{n}")
    harness().drain()
    assert len(set(sent)) == len(sent) == 6


def test_what_descends_from_an_id_with_a_time_in_it_carries_that_time(app: App, harness: NewHarness) -> None:
    ship: Target[Order, None] = app.remote("ship", Order)
    sent: list[str] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        sent.append(ctx.send(ship, order))

    minted = engine_of(app).ids.mint()
    app.start(pay, Order("o1"), flow_id="flow", message_id=minted)
    harness().drain()
    assert sent[0][:13] == minted[:13]
    assert uuid.UUID(sent[0]).version == 8
