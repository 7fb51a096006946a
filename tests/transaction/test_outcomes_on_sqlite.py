"""What only a real file shows: errors and values that a database may not take, and locks that are really there."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from stagepost import App, Context, NothingSent, Redelivery, StoreContention, Target
from stagepost.app.app import engine_of
from stagepost.store.sqlite import connection as sqlite_connection
from stagepost.store.sqlite import writer_lock
from stagepost.testing import Harness
from stagepost.transaction.outcome import Abandoned, Buried, Completed, Redelivered
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.conftest import Inject, Ledger

NewHarness = Callable[..., Harness]


@dataclass
class Order:
    id: str


@pytest.fixture
def new_database(new_sqlite: Callable[[], str]) -> Callable[[], str]:
    return new_sqlite


def test_an_error_whose_text_is_no_valid_unicode_becomes_a_dead_letter_like_any_other(
    app: App, harness: NewHarness
) -> None:
    """As the name of a file that is not UTF-8 in a FileNotFoundError."""

    @app.endpoint("pay", redelivery=Redelivery(redeliveries=1))
    def pay(ctx: Context, order: Order) -> None:
        raise FileNotFoundError("caf\udce9")

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Redelivered, Buried]
    (letter,) = worker.dead_letters()
    assert "caf" in letter.summary


@pytest.mark.parametrize("delay", [1e15, 1e300])
def test_a_delay_beyond_all_time_is_an_error_of_the_handler(app: App, harness: NewHarness, delay: float) -> None:
    other: Target[Order, None] = app.remote("other", Order)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.send(other, order, delay=delay)

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Buried]


def test_an_envelope_with_a_moment_beyond_all_time_is_a_dead_letter(
    app: App, harness: NewHarness, inject: Inject
) -> None:
    other: Target[Order, None] = app.remote("other", Order)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.send(other, order)

    inject(
        "pay",
        b'{"message_id":"m1","flow_id":"flow","kind":"send","to":"pay","sender":"x","origin_at":1%b,"sent_at":1,'
        b'"messages":[{"type":"Order","body":{"id":"o1"}}]}' % (b"0" * 30),
    )
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Buried]


def test_a_deferred_constraint_that_fails_at_the_commit_is_a_failure_of_the_attempt(
    app: App, harness: NewHarness, outside: sqlite3.Connection
) -> None:
    outside.execute("CREATE TABLE account (id TEXT PRIMARY KEY)")
    outside.execute("CREATE TABLE entry (account TEXT REFERENCES account DEFERRABLE INITIALLY DEFERRED)")

    @app.endpoint("pay", redelivery=Redelivery(redeliveries=1))
    def pay(ctx: Context, order: Order) -> None:
        ctx.sql("INSERT INTO entry VALUES (:id)", id=order.id)

    app.start(pay, Order("no such account"), flow_id="flow")
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Redelivered, Buried]
    (letter,) = worker.dead_letters()
    assert "FOREIGN KEY" in letter.summary


def test_a_writer_outside_makes_the_attempt_wait_and_not_fail(
    app: App, harness: NewHarness, ledger: Ledger, outside: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_TIMEOUT_SECONDS", 0)
    monkeypatch.setattr(writer_lock, "WAIT_SECONDS_MAX", 0)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    claim = worker.claim_one()
    assert claim is not None
    outside.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreContention, match="database is locked"):
        worker.access.session.begin()
    # The harness has no patience; a worker waits and tries again.
    assert isinstance(worker.transaction.run(claim), Abandoned)
    outside.execute("ROLLBACK")
    assert isinstance(worker.transaction.run(claim), Completed)
    assert ledger.entries == ["o1"]


def test_what_the_handlers_own_busy_connection_raises_is_a_failure(
    app: App, harness: NewHarness, outside: sqlite3.Connection
) -> None:
    outside.execute("CREATE TABLE audit (entry TEXT)")

    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        ctx.sql("SELECT 1")
        outside.execute("INSERT INTO audit VALUES ('a second write to a locked file')")

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    (outcome,) = worker.drain()
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, sqlite3.OperationalError)


def test_starting_a_flow_of_another_app_on_the_same_file_is_refused_and_does_not_hang(app: App, ledger: Ledger) -> None:
    other = App("other", database=app.database, clock=engine_of(app).clock)
    elsewhere: Target[Order, None] = other.remote("elsewhere", Order)

    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        other.start(elsewhere, order, flow_id="another")

    app.start(pay, Order("o1"), flow_id="flow")
    outcomes: list[object] = []

    def work() -> None:
        worker = Harness(app)
        outcomes.extend(worker.drain())
        worker.close()

    # A daemon: where it hangs, nothing can end it.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert [type(each) for each in outcomes] == [Buried]


def test_a_flow_that_is_started_in_a_thread_which_the_handler_waits_for_is_refused_long_before_the_time_limit(
    app: App, harness: NewHarness, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_lock, "WAIT_SECONDS_MAX", 0.2)
    refused: list[NothingSent] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)

        def start() -> None:
            try:
                app.start(pay, Order("another"), flow_id="another")
            except NothingSent as error:
                refused.append(error)

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()

    app.start(pay, Order("o1"), flow_id="flow")
    assert [type(each) for each in harness().drain()] == [Completed]
    (error,) = refused
    assert "because pay, a stage of this process, writes" in str(error)
    assert "use ctx.initiate() in the handler itself" in str(error)
    assert ledger.entries == ["o1"]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_open", [True, False], ids=["used before", "first use"])
def test_another_apps_flow_is_started_in_the_stages_transaction_by_way_of_its_connection(
    app: App, harness: NewHarness, is_open: bool, fails: bool
) -> None:
    """As the refusal of a transaction within a transaction tells the user to do."""
    other = App("other", database=app.database, clock=engine_of(app).clock)
    if is_open:
        assert engine_of(other).store.identity == engine_of(app).store.identity
    elsewhere: Target[Order, None] = other.remote("elsewhere", Order)

    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        with other.initiate(connection=ctx.connection) as out:
            started = out.send(elsewhere, order, flow_id="another")
        assert started.is_new
        if fails:
            raise ZeroDivisionError

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    (outcome,) = worker.drain()
    assert isinstance(outcome, Buried if fails else Completed)
    assert not isinstance(outcome, Buried) or isinstance(outcome.error, ZeroDivisionError)
    assert [each.waypoint for each in worker.history("another")] == ([] if fails else ["accepted"])
