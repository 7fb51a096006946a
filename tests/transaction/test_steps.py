"""The named steps of an attempt, in their order, and what the journal says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from stagepost import App, Context, Redelivery, Target
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.testing import Harness, ManualClock
from stagepost.transaction.steps import Step

if TYPE_CHECKING:
    from tests.conftest import Ledger

NewHarness = Callable[..., Harness]

ENDED_WELL = ["recorded", "committing", "committed", "after_commit"]


@dataclass
class Order:
    id: str


@pytest.fixture
def passed(app: App) -> list[str]:
    """The steps that were passed so far."""
    steps: list[str] = []

    def note(step: Step, claim: Claim) -> None:
        steps.append(str(step))

    engine_of(app).listener = note
    return steps


def test_a_handler_that_touches_the_database_passes_the_steps_in_this_order(
    app: App, harness: NewHarness, ledger: Ledger, passed: list[str]
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        passed.append("handler")
        ledger.write(ctx, order.id)
        passed.append("wrote")
        ledger.write(ctx, order.id)

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert passed == ["claimed", "handler", "begun", "admitted", "wrote", "handled", *ENDED_WELL]


def test_a_handler_that_does_not_touch_the_database_is_done_before_the_transaction_begins(
    app: App, harness: NewHarness, passed: list[str]
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        passed.append("handler")
        ctx.after_commit(passed.append, "callback")

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert passed == [
        "claimed",
        "handler",
        "handled",
        "begun",
        "admitted",
        *ENDED_WELL[:-1],
        "callback",
        "after_commit",
    ]


def test_an_attempt_that_fails_commits_its_failure_and_nothing_else(
    app: App, harness: NewHarness, ledger: Ledger, passed: list[str]
) -> None:
    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        raise ValueError(order.id)

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert passed == ["claimed", "begun", "admitted", "committing", "committed"]


def test_each_step_names_the_message_that_passes_it(app: App, harness: NewHarness) -> None:
    seen: set[tuple[str, str]] = set()
    engine_of(app).listener = lambda step, claim: seen.add((claim.flow_id, claim.stage))

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    for flow in ("a", "b"):
        app.start(pay, Order(flow), flow_id=flow)
    harness().drain()
    assert seen == {("a", "pay"), ("b", "pay")}


def test_the_journal_tells_a_flows_whole_story(app: App, harness: NewHarness, clock: ManualClock) -> None:
    ship: Target[Order, None] = app.remote("ship", Order)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        clock.advance(0.25)
        if ctx.attempt == 1:
            raise ValueError(order.id)
        ctx.send(ship, order)

    begun = clock.now()
    started = app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    worker.drain()
    history = worker.history("flow")
    assert [(each.waypoint, each.stage, each.attempt) for each in history] == [
        ("accepted", "pay", 0),
        ("received", "pay", 1),
        ("failed", "pay", 1),
        ("delayed", "pay", 1),
        ("received", "pay", 2),
        ("committed", "pay", 2),
        ("sent", "ship", 0),
    ]
    accepted, _, failed, delayed, _, committed, sent = history
    assert {each.message_id for each in history[:-1]} == {started.message_id}
    assert {each.flow_id for each in history} == {"flow"}
    assert {each.origin_at for each in history} == {begun}
    assert {each.node for each in history[1:]} == {worker.node}
    assert (accepted.kind, accepted.ordinal, accepted.cause_id) == ("send", 0, None)
    assert accepted.bytes is not None
    assert accepted.bytes > len('{"id":"o1"}')
    assert (failed.ms, failed.detail) == (250.0, "ValueError: o1")
    assert delayed.detail is not None
    assert committed.ms == 250.0
    assert (sent.kind, sent.ordinal, sent.cause_id, sent.detail) == ("send", 0, started.message_id, "pay")
    assert sent.message_id != started.message_id
