"""The statements of messages that share a transaction: on PostgreSQL they go together, where nobody looks at rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import psycopg
import pytest

from stagepost import App, Context, Target, TransactionBoundary
from stagepost.flow.rows import Rows
from stagepost.store.postgres.late import AHEAD
from stagepost.store.postgres.statement_pipeline import Result, StatementPipeline
from stagepost.testing import Harness
from stagepost.transaction.outcome import Completed, Redelivered
from tests.places import place
from tests.transaction.batching import COUNT, Order, Receipt, attempted, claimed, start

if TYPE_CHECKING:
    from stagepost.store.postgres.session import PostgresSession
    from tests.conftest import Ledger

NewHarness = Callable[..., Harness]
NewApp = Callable[..., App]

# More than go ahead at a time.
MANY = 3 * AHEAD

on_postgres = pytest.mark.parametrize("new_database", ["postgres"], indirect=True)


@pytest.fixture(params=["sqlite", "postgres"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    return place(request)


@pytest.fixture
def receipts(app: App) -> Target[Receipt, None]:
    return app.remote("receipts", Receipt)


def test_a_handler_sees_what_those_before_it_did(app: App, harness: NewHarness, ledger: Ledger) -> None:
    seen: list[int] = []

    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"paid {order.id}")
        seen.append(ctx.sql("SELECT count(*) FROM ledger").scalar())
        assert ctx.sql("UPDATE ledger SET entry = entry WHERE entry = 'nobody'").rowcount == 0

    start(app, pay)
    attempted(harness())
    assert seen == list(range(1, COUNT + 1))


@pytest.mark.parametrize("is_caught", [False, True])
def test_a_statement_that_fails_is_the_failure_of_its_own_message(
    app: App, harness: NewHarness, ledger: Ledger, *, is_caught: bool
) -> None:
    """Also where its error arrives late, at another one's statement, and that one catches it."""

    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"paid {order.id}")
        if order.id == 1:
            ctx.sql("INSERT INTO ledger (no_such_column) VALUES (1)")
        try:
            ctx.sql("SELECT 1").scalar()
        except Exception:
            if not is_caught:
                raise

    start(app, pay)
    worker = harness()
    outcomes = attempted(worker)
    assert [type(each) for each in outcomes] == [Completed, Redelivered, Completed, Completed, Completed]
    assert isinstance(outcomes[1], Redelivered)
    assert isinstance(outcomes[1].error, sqlite3.Error | psycopg.errors.UndefinedColumn)
    assert ledger.entries == [f"paid {at}" for at in (0, 2, 3, 4)]


@on_postgres
def test_what_is_not_looked_at_goes_in_one_round_trip(
    app: App, harness: NewHarness, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"paid {order.id}")

    start(app, pay, 20)
    worker = harness()
    claims = claimed(worker)
    round_trips: list[int] = []
    execute = StatementPipeline.execute

    def counting(pipeline: StatementPipeline) -> Result:
        round_trips.append(len(pipeline))
        return execute(pipeline)

    monkeypatch.setattr(StatementPipeline, "execute", counting)
    worker.transaction.run_batch(claims)
    assert len(round_trips) == 2
    assert len(ledger.entries) == 20


@on_postgres
@pytest.mark.parametrize("trouble", ["raises", "statement", "connection"])
def test_what_the_server_was_given_ahead_is_undone_with_its_batch(
    app: App, harness: NewHarness, ledger: Ledger, trouble: str
) -> None:
    handled: list[int] = []

    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        handled.append(order.id)
        ledger.write(ctx, f"paid {order.id}")
        if order.id == MANY - 2 and handled.count(order.id) == 1:
            match trouble:
                case "raises":
                    raise ValueError("no")
                case "statement":
                    ctx.sql("INSERT INTO ledger (no_such_column) VALUES (1)")
                case "connection":
                    session._connection.pgconn.finish()

    start(app, pay, MANY)
    worker = harness()
    session = cast("PostgresSession", worker.access.session)
    outcomes = attempted(worker)
    assert handled.count(0) == 2
    assert [type(each) for each in outcomes] == [Completed] * MANY
    assert ledger.entries == [f"paid {at}" for at in range(MANY)]


@on_postgres
def test_rows_are_read_in_the_handler_or_after_the_commit_and_never_in_between(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    kept: list[Rows] = []
    told: list[str] = []

    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        if kept and not told:
            with pytest.raises(TransactionBoundary, match="after its handler had returned"):
                kept[0].scalar()
            told.append("in between")
        kept.append(ctx.sql("SELECT :n::int", n=order.id))
        ctx.after_commit(lambda: told.append(f"after {kept[order.id].scalar()}"))

    start(app, pay, 2)
    assert all(isinstance(each, Completed) for each in attempted(harness()))
    assert told == ["in between", "after 0", "after 1"]


@on_postgres
def test_rows_of_a_batch_that_was_undone_are_not_there(app: App, harness: NewHarness) -> None:
    kept: list[Rows] = []

    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        kept.append(ctx.sql("SELECT 1"))
        raise ValueError("no")

    start(app, pay, 2)
    attempted(harness())
    with pytest.raises(TransactionBoundary, match="after its handler had returned"):
        kept[0].scalar()


@on_postgres
def test_what_started_with_the_batch_cannot_be_started_apart_from_it(
    app: App, harness: NewHarness, receipts: Target[Receipt, None]
) -> None:
    """The second would wait for the first, which waits for nobody but the second."""

    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        with ctx.initiate(independent=order.id == 1) as out:
            out.send(receipts, Receipt(0), flow_id="shared")

    start(app, pay, 2)
    worker = harness()
    assert all(isinstance(each, Completed) for each in attempted(worker))
    assert len(claimed(worker, "receipts")) == 1


@on_postgres
@pytest.mark.parametrize("count", [1, MANY])
def test_what_a_savepoint_undoes_is_undone_in_a_batch_too(
    app: App, harness: NewHarness, ledger: Ledger, count: int
) -> None:
    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        with ctx.connection.transaction(force_rollback=True):
            for _ in range(count):
                ledger.write(ctx, "undone")
        ledger.write(ctx, f"paid {order.id}")

    start(app, pay, 3)
    assert all(isinstance(each, Completed) for each in attempted(harness()))
    assert ledger.entries == ["paid 0", "paid 1", "paid 2"]
