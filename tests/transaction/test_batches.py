"""Messages that share a transaction: all of them, or each alone, as the same attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from stagepost import App, Context, DeclarationError, Redelivery, Target
from stagepost.app.app import engine_of
from stagepost.store.postgres.late import LATE_MAX
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried, Completed, Lost, Redelivered
from tests.transaction.batching import COUNT, Order, Receipt, attempted, claimed, start

if TYPE_CHECKING:
    from tests.conftest import Ledger

NewHarness = Callable[..., Harness]
NewApp = Callable[..., App]


@pytest.fixture
def receipts(app: App) -> Target[Receipt, None]:
    return app.remote("receipts", Receipt)


def names(worker: Harness, at: int) -> list[str]:
    return [each.waypoint for each in worker.history(f"order:{at}")]


def test_all_that_goes_well_is_one_commit(
    app: App,
    harness: NewHarness,
    ledger: Ledger,
    receipts: Target[Receipt, None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled: list[int] = []

    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"paid {order.id}")
        ctx.send(receipts, Receipt(order.id))
        handled.append(order.id)

    start(app, pay)
    worker = harness()
    claims = claimed(worker)
    session = worker.access.session
    commits: list[None] = []
    commit = session.commit

    def counted() -> None:
        commits.append(None)
        commit()

    monkeypatch.setattr(session, "commit", counted)
    assert all(isinstance(each, Completed) for each in worker.transaction.run_batch(claims))
    assert len(commits) == 1
    assert handled == list(range(COUNT))
    assert ledger.entries == [f"paid {at}" for at in range(COUNT)]
    for at in range(COUNT):
        assert names(worker, at) == ["accepted", "received", "committed", "sent"]
    assert len(claimed(worker, "receipts")) == COUNT
    assert worker.access.claimer.pending(["pay"]).is_drained


def test_what_is_sent_has_the_same_ids_as_when_each_is_alone(new_app: NewApp, harness_of: NewHarness) -> None:
    def sent(*, is_batch: bool) -> list[tuple[str, str]]:
        app = new_app()
        receipts: Target[Receipt, None] = app.remote("receipts", Receipt)

        @app.endpoint("pay", batch=50)
        def pay(ctx: Context, order: Order) -> None:
            ctx.send(receipts, Receipt(order.id))
            with ctx.initiate() as out:
                out.send(receipts, Receipt(-order.id), flow_id=f"other:{order.id}")

        start(app, pay)
        worker = harness_of(app)
        if is_batch:
            attempted(worker)
        else:
            for each in claimed(worker):
                worker.transaction.run(each)
        return sorted((each.flow_id, each.message_id) for each in claimed(worker, "receipts"))

    assert sent(is_batch=True) == sent(is_batch=False)


def test_one_that_fails_undoes_all_and_each_is_handled_alone_as_the_same_attempt(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    attempts: list[tuple[int, int]] = []

    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        attempts.append((order.id, ctx.attempt))
        ledger.write(ctx, f"paid {order.id}")
        if order.id == 2:
            raise ValueError("no")

    start(app, pay)
    worker = harness()
    outcomes = attempted(worker)
    assert [type(each) for each in outcomes] == [Completed, Completed, Redelivered, Completed, Completed]
    assert attempts == [(at, 1) for at in (0, 1, 2, 0, 1, 2, 3, 4)]
    assert ledger.entries == [f"paid {at}" for at in (0, 1, 3, 4)]
    assert names(worker, 2) == ["accepted", "received", "failed", "delayed"]
    assert names(worker, 3) == ["accepted", "received", "committed"]


@pytest.mark.parametrize("way", ["refuse", "fail_with"])
def test_what_a_handler_decides_otherwise_is_decided_alone(
    app: App, harness: NewHarness, ledger: Ledger, way: str
) -> None:
    @app.endpoint("asker")
    def asker(ctx: Context, receipt: Receipt) -> None: ...

    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> Receipt:
        ledger.write(ctx, f"paid {order.id}")
        if order.id == 1:
            if way == "refuse":
                ctx.refuse("not this one")
            ctx.fail_with(Receipt(-1))
        return Receipt(order.id)

    with app.initiate() as out:
        for at in range(3):
            out.send(pay, Order(at), flow_id=f"order:{at}", reply_to=asker)
    worker = harness()
    outcomes = attempted(worker)
    assert [isinstance(each, Completed) for each in outcomes] == [True, False, True]
    assert ledger.entries == ["paid 0", "paid 2"]
    assert len(claimed(worker, "asker")) == (2 if way == "refuse" else 3)


def test_one_that_is_somebody_elses_by_now_is_left_to_them(app: App, harness: NewHarness, ledger: Ledger) -> None:
    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"paid {order.id}")

    start(app, pay)
    worker = harness()
    claims = claimed(worker)
    worker.access.claimer.release([claims[3]], worker.node)
    outcomes = worker.transaction.run_batch(claims)
    assert [isinstance(each, Lost) for each in outcomes] == [False, False, False, True, False]
    assert ledger.entries == [f"paid {at}" for at in (0, 1, 2, 4)]


def test_callbacks_run_after_the_shared_commit_and_once(app: App, harness: NewHarness, ledger: Ledger) -> None:
    called: list[tuple[int, int]] = []

    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"paid {order.id}")
        ctx.after_commit(lambda: called.append((order.id, len(ledger.entries))))

    start(app, pay)
    attempted(harness())
    assert called == [(at, COUNT) for at in range(COUNT)]


def test_callbacks_of_a_batch_that_was_undone_run_once(app: App, harness: NewHarness) -> None:
    called: list[int] = []

    @app.endpoint("pay", batch=50, redelivery=Redelivery(redeliveries=0))
    def pay(ctx: Context, order: Order) -> None:
        ctx.after_commit(called.append, order.id)
        if order.id == COUNT - 1:
            raise ValueError("no")

    start(app, pay)
    outcomes = attempted(harness())
    assert isinstance(outcomes[-1], Buried)
    assert called == list(range(COUNT - 1))


def test_an_id_that_stood_for_other_content_is_a_conflict_of_its_own_message(
    app: App, harness: NewHarness, receipts: Target[Receipt, None]
) -> None:
    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        with ctx.initiate() as out:
            out.send(receipts, Receipt(order.id), flow_id=f"child:{order.id % 4}")

    start(app, pay)
    worker = harness()
    outcomes = attempted(worker)
    assert [isinstance(each, Completed) for each in outcomes] == [True] * 4 + [False]
    assert len(claimed(worker, "receipts")) == 4


def test_async_handlers_share_one_too(app: App, harness: NewHarness, ledger: Ledger) -> None:
    @app.endpoint("pay", batch=50)
    async def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"paid {order.id}")

    start(app, pay)
    assert all(isinstance(each, Completed) for each in attempted(harness()))
    assert len(ledger.entries) == COUNT


def test_no_more_waits_than_may(app: App, harness: NewHarness, ledger: Ledger) -> None:
    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None:
        for at in range(LATE_MAX + 10):
            ledger.write(ctx, f"paid {order.id}.{at}")

    start(app, pay, 3)
    assert all(isinstance(each, Completed) for each in attempted(harness()))
    assert len(ledger.entries) == 3 * (LATE_MAX + 10)


@pytest.mark.parametrize("batch", [0, -1, 101, True, 2.5, "50"])
def test_no_batch_is_another_number_than_one_of_messages(app: App, batch: object) -> None:
    with pytest.raises(DeclarationError, match="batch must be a whole number from 1 to 100"):
        app.endpoint("pay", batch=batch)  # type: ignore[arg-type]


def test_a_stage_may_say_what_its_endpoint_does_not(app: App) -> None:
    steps = app.staged("steps", batch=20)

    @steps.stage
    def first(ctx: Context, order: Order) -> None:
        ctx.next(order)

    @steps.stage(batch=1)
    def second(ctx: Context, order: Order) -> None: ...

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    assert engine_of(app).batches() == {"steps": 20, "steps.second": 1, "pay": 1}


def test_only_one_commit_can_be_shared(harness_of: NewHarness) -> None:
    app = App("shop", database="toy:", queue="toy:")

    @app.endpoint("pay", batch=50)
    def pay(ctx: Context, order: Order) -> None: ...

    with pytest.raises(DeclarationError, match=r"pay .* has batch=50, but its queue is in another database"):
        harness_of(app)
