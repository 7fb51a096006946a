"""A transaction begins when the handler first touches the database, or after it returned, and ends before all else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from stagepost import App, Context, Target
from stagepost.app.app import engine_of
from stagepost.testing import Harness
from stagepost.transaction.outcome import Completed
from stagepost.transaction.steps import Step

if TYPE_CHECKING:
    from tests.conftest import Ledger

NewHarness = Callable[..., Harness]


@dataclass
class Order:
    id: str


@pytest.fixture
def new_database(new_sqlite: Callable[[], str]) -> Callable[[], str]:
    """A second connection can look only into a file."""
    return new_sqlite


def can_write(outside: sqlite3.Connection) -> bool:
    """Whether nobody else has a write transaction open right now."""
    try:
        outside.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    outside.execute("ROLLBACK")
    return True


def test_no_transaction_is_open_while_a_handler_has_not_touched_the_database(
    app: App, harness: NewHarness, ledger: Ledger, outside: sqlite3.Connection
) -> None:
    other: Target[Order, None] = app.remote("other", Order)
    free: list[bool] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        free.append(can_write(outside))
        ctx.send(other, order)
        ctx.properties["seen"] = True
        ctx.after_commit(print)
        free.append(can_write(outside))
        ledger.write(ctx, order.id)
        free.append(can_write(outside))

    app.start(pay, Order("o1"), flow_id="flow")
    assert [type(each) for each in harness().drain()] == [Completed]
    assert free == [True, True, False]
    assert can_write(outside)


def test_reading_touches_too_so_that_what_was_read_still_holds_at_the_commit(
    app: App, harness: NewHarness, outside: sqlite3.Connection
) -> None:
    free: list[bool] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.sql("SELECT 1")
        free.append(can_write(outside))

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert free == [False]


def test_asking_for_the_connection_touches_for_there_are_ways_to_use_it_that_cannot_be_seen(
    app: App, harness: NewHarness, outside: sqlite3.Connection
) -> None:
    free: list[bool] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        _ = ctx.connection
        free.append(can_write(outside))

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert free == [False]


def test_starting_a_flow_touches(app: App, harness: NewHarness, outside: sqlite3.Connection) -> None:
    other: Target[Order, None] = app.remote("other", Order)
    free: list[bool] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        with ctx.initiate() as out:
            out.send(other, order, flow_id="another")
            free.append(can_write(outside))
        free.append(can_write(outside))

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert free == [True, False]


def test_no_transaction_is_open_while_callbacks_run(
    app: App, harness: NewHarness, ledger: Ledger, outside: sqlite3.Connection
) -> None:
    free: list[bool] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        ctx.after_commit(lambda: free.append(can_write(outside)))
        ctx.after_commit(lambda: free.append(ledger.entries == ["o1"]))

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert free == [True, True]


def test_no_transaction_is_open_after_an_attempt_that_failed(
    app: App, harness: NewHarness, ledger: Ledger, outside: sqlite3.Connection
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        raise ValueError(order.id)

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    while worker.drain():
        assert can_write(outside)
        assert not worker.access.session.is_begun


@pytest.mark.parametrize("touches", [True, False])
def test_the_message_is_gone_from_the_queue_only_with_the_commit(
    app: App, harness: NewHarness, ledger: Ledger, outside: sqlite3.Connection, touches: bool
) -> None:
    waiting: dict[Step, int] = {}

    def look(step: Step, claim: object) -> None:
        (waiting[step],) = outside.execute("SELECT count(*) FROM stagepost_ready").fetchone()

    engine_of(app).listener = look

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        if touches:
            ledger.write(ctx, order.id)

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert waiting == {
        Step.CLAIMED: 1,
        Step.BEGUN: 1,
        Step.ADMITTED: 1,
        Step.HANDLED: 1,
        Step.RECORDED: 1,
        Step.COMMITTING: 1,
        Step.COMMITTED: 0,
        Step.AFTER_COMMIT: 0,
    }
