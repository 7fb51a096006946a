"""Django's ORM in a stage's transaction, and flows in an atomic block of Django's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections, transaction
from django.db.models import F, Sum
from django.db.models.functions import TruncDay
from django.db.transaction import TransactionManagementError

from stagepost import App, Context, DeclarationError, IllegalCall, ReplyTimeout, Target, TransactionBoundary
from stagepost.integrations.django import DjangoSessions
from stagepost.testing import Harness
from stagepost.transaction.outcome import Abandoned, Buried, Completed, Redelivered
from tests.integrations.attempts import Run, completes, cut_off, refusing_two_commits
from tests.integrations.django_shop import Line, Sale, make_tables, use
from tests.integrations.models import Order, rows, sales, url_of
from tests.waiting import PATIENCE_SECONDS

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres

AT = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)


@pytest.fixture
def app(new_app: Callable[..., App]) -> Iterator[App]:
    app = new_app(sessions=DjangoSessions())
    make_tables(app)
    yield app
    connection.close()


def test_the_orm_s_work_and_the_messages_commit_together(app: App, harness: Callable[..., Harness]) -> None:
    seen: list[Any] = []

    @app.endpoint("count")
    def count(ctx: Context, order: Order) -> None:
        sale = Sale.objects.get(order_id=order.id)
        seen.append((sale.amount, sale.is_paid, sale.details, sale.made_at))
        seen.append(list(Line.objects.filter(sale__order_id=order.id).order_by("item").values_list("item", flat=True)))

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        sale = Sale.objects.create(order_id=order.id, amount=Decimal("2.50"), details={"a": [1]}, made_at=AT)
        Line.objects.bulk_create([Line(sale=sale, item="b"), Line(sale=sale, item="a")])
        Sale.objects.filter(order_id=order.id).update(amount=F("amount") * 2, is_paid=True)
        ctx.send(count, order)

    app.start(pay, Order("o1"), flow_id="o1")
    assert {type(each) for each in harness().drain()} == {Completed}
    assert sales(app) == ["o1"]
    assert seen == [(Decimal("5.00"), True, {"a": [1]}, AT), ["a", "b"]]


def test_queries_of_all_kinds_work(app: App, run: Run) -> None:
    found: list[Any] = []

    def handle(ctx: Context) -> None:
        Sale.objects.bulk_create([Sale(order_id=f"o{n}", amount=n, made_at=AT, details={"n": n}) for n in range(5)])
        found.append(Sale.objects.aggregate(all=Sum("amount"))["all"])
        found.append(Sale.objects.filter(order_id__regex="^o[12]$").count())
        found.append([each.order_id for each in Sale.objects.order_by("id").iterator(chunk_size=2)])
        found.append(Sale.objects.annotate(day=TruncDay("made_at")).first().day)
        found.append(Sale.objects.get(details__n=3).order_id)
        found.append(Sale.objects.filter(order_id__in=["o1", "o9"]).exists())
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM sale WHERE order_id LIKE %s", ["o%"])
            found.append(cursor.fetchone()[0])
        found.append(ctx.sql("SELECT count(*) FROM sale").scalar())
        found.append(ctx.session.vendor in ("sqlite", "postgresql"))
        found.append(Sale.objects.get_or_create(order_id="o4")[1])

    assert isinstance(run(handle), Completed)
    names = ["o0", "o1", "o2", "o3", "o4"]
    assert found == [Decimal(10), 2, names, AT.replace(hour=0, minute=0), "o3", True, 5, 5, True, False]


def test_a_failed_handler_leaves_nothing(app: App, run: Run) -> None:
    def handle(ctx: Context) -> None:
        Sale.objects.create(order_id="o1")
        raise ValueError

    assert isinstance(run(handle), Redelivered)
    assert sales(app) == []


def test_an_atomic_block_is_a_savepoint(app: App, run: Run) -> None:
    def handle(ctx: Context) -> None:
        Sale.objects.create(order_id="kept")
        with suppress(IntegrityError), transaction.atomic():
            sale = Sale.objects.create(order_id="undone")
            Line.objects.create(sale=sale, item="same")
            Line.objects.create(sale=sale, item="same")
        with transaction.atomic(), transaction.atomic():
            Sale.objects.create(order_id="kept too")
        savepoint = transaction.savepoint()
        Sale.objects.create(order_id="undone by hand")
        transaction.savepoint_rollback(savepoint)

    assert isinstance(run(handle), Completed)
    assert sales(app) == ["kept", "kept too"]


def test_an_inner_block_without_a_savepoint_takes_the_attempt_with_it(app: App, run: Run) -> None:
    def handle(ctx: Context) -> None:
        Sale.objects.create(order_id="o1")
        with suppress(ValueError), transaction.atomic(savepoint=False):
            raise ValueError

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, TransactionManagementError)
    assert sales(app) == []


def test_a_caught_error_that_no_savepoint_undid_fails_the_attempt(app: App, run: Run) -> None:
    def handle(ctx: Context) -> None:
        sale = Sale.objects.create(order_id="o1")
        Line.objects.create(sale=sale, item="same")
        with suppress(IntegrityError):
            Line.objects.create(sale=sale, item="same")

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, TransactionManagementError)
    assert sales(app) == []


ENDS: dict[str, Callable[[], object]] = {
    "commit": transaction.commit,
    "rollback": transaction.rollback,
    "set_autocommit": lambda: transaction.set_autocommit(True),
    "close": lambda: transaction.get_connection().close(),
    "sql": lambda: connection.cursor().execute("COMMIT"),
}


@pytest.mark.parametrize("way", ENDS)
def test_ending_the_transaction_is_refused_with_the_reason(app: App, run: Run, way: str) -> None:
    def handle(ctx: Context) -> None:
        Sale.objects.create(order_id="o1")
        ENDS[way]()

    outcome = run(handle)
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, TransactionBoundary)
    assert "refused in pay" in str(outcome.error)
    assert sales(app) == []


def test_a_durable_block_is_refused_by_django(app: App, run: Run) -> None:
    def handle(ctx: Context) -> None:
        with transaction.atomic(durable=True):
            pass

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert "durable atomic block cannot be nested" in str(outcome.error)


@pytest.mark.parametrize("fails", [False, True])
def test_on_commit_runs_after_the_stage_s_commit_or_never(app: App, run: Run, *, fails: bool) -> None:
    ran: list[object] = []

    def handle(ctx: Context) -> None:
        Sale.objects.create(order_id="o1")
        transaction.on_commit(lambda: ran.append(sales(app)))
        assert ran == []
        if fails:
            raise ValueError

    run(handle)
    assert ran == ([] if fails else [["o1"]])


def test_a_run_that_used_the_orm_alone_is_handled_again_after_a_refused_commit(
    new_app: Callable[..., App], harness_of: Callable[[App], Harness]
) -> None:
    refuse, refusals = refusing_two_commits()
    runs: list[int] = []
    app = new_app(listener=refuse, sessions=DjangoSessions())
    make_tables(app)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        Sale.objects.create(order_id=order.id)
        runs.append(1)

    app.start(pay, Order("o1"), flow_id="o1")
    harness = harness_of(app)
    assert completes(harness)
    assert (refusals, len(runs), sales(app)) == ([], 3, ["o1"])


def test_after_the_run_django_has_its_own_connection_again_and_a_kept_query_reads_nothing_of_a_stage(
    app: App, run: Run
) -> None:
    before = connections["default"]
    kept: list[Any] = []

    def handle(ctx: Context) -> None:
        assert connections["default"] is not before
        kept.append(ctx.session)
        Sale.objects.create(order_id="o1")

    assert isinstance(run(handle), Completed)
    assert connections["default"] is before
    assert [each.order_id for each in Sale.objects.all()] == ["o1"]
    with pytest.raises(Exception, match=r"NoneType|returned|closed"):
        kept[0].create_cursor()


def test_django_on_another_database_is_refused(app: App, new_app: Callable[..., App], run: Run) -> None:
    other = new_app()
    make_tables(other)
    outcome = run(lambda ctx: Sale.objects.create(order_id="o1"))
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, DeclarationError)
    assert "could not commit together" in str(outcome.error)
    assert (sales(app), sales(other)) == ([], [])
    use(url_of(app))


def test_an_alias_that_django_does_not_have_is_refused() -> None:
    with pytest.raises(DeclarationError, match="no such alias; it has default"):
        DjangoSessions(using="elsewhere")


# Flows in an atomic block


@pytest.fixture
def pay(app: App) -> Target[Order, None]:
    return app.remote("pay", Order)


def flows(app: App) -> int:
    return len(rows(app, "SELECT key FROM stagepost_accepted"))


def test_a_flow_starts_with_the_atomic_block_s_commit(app: App, pay: Target[Order, None]) -> None:
    with transaction.atomic():
        Sale.objects.create(order_id="o1")
        assert app.start(pay, Order("o1"), flow_id="o1", session=connection).is_new
        assert (sales(app), flows(app)) == ([], 0)
    assert (sales(app), flows(app)) == (["o1"], 1)


def test_a_flow_never_starts_where_the_block_fails(app: App, pay: Target[Order, None]) -> None:
    with suppress(ValueError), transaction.atomic():
        Sale.objects.create(order_id="o1")
        app.start(pay, Order("o1"), flow_id="o1", session=connections["default"])
        raise ValueError
    assert (sales(app), flows(app)) == ([], 0)
    with transaction.atomic():
        app.start(pay, Order("kept"), flow_id="kept", session=connection)
        with suppress(ValueError), transaction.atomic():
            app.start(pay, Order("undone"), flow_id="undone", session=connection)
            raise ValueError
    assert flows(app) == 1


def test_outside_a_block_a_flow_starts_at_once(app: App, pay: Target[Order, None]) -> None:
    assert app.start(pay, Order("o1"), flow_id="o1", session=connection).is_new
    assert flows(app) == 1


def test_a_request_in_an_atomic_block_is_waited_for_after_the_block(app: App, harness: Callable[..., Harness]) -> None:
    @app.endpoint("ask")
    def ask(ctx: Context, order: Order) -> Order:
        return order

    with transaction.atomic():
        Sale.objects.create(order_id="o1")
        future = app.request(ask, Order("o1"), flow_id="o1", session=connection)
        with pytest.raises(IllegalCall, match="Commit first"):
            future.result(PATIENCE_SECONDS)
    assert [type(each) for each in harness().drain()] == [Completed]
    assert future.result(PATIENCE_SECONDS) == Order("o1")


def test_the_reply_of_a_request_may_be_waited_for_in_a_later_block(app: App, harness: Callable[..., Harness]) -> None:
    @app.endpoint("ask")
    def ask(ctx: Context, order: Order) -> Order:
        return order

    with transaction.atomic():
        future = app.request(ask, Order("o1"), flow_id="o1", session=connection)
    assert [type(each) for each in harness().drain()] == [Completed]
    with transaction.atomic():
        assert future.result(PATIENCE_SECONDS) == Order("o1")


def test_the_reply_of_a_request_may_be_waited_for_in_a_later_call_of_an_atomic_function(
    app: App, harness: Callable[..., Harness]
) -> None:
    @app.endpoint("ask")
    def ask(ctx: Context, order: Order) -> Order:
        return order

    call: Any = transaction.atomic(lambda function: function())
    future = call(lambda: app.request(ask, Order("o1"), flow_id="o1", session=connection))
    assert [type(each) for each in harness().drain()] == [Completed]
    assert call(lambda: future.result(PATIENCE_SECONDS)) == Order("o1")


def test_a_request_whose_savepoint_rolled_back_is_not_waiting_for_a_commit(app: App) -> None:
    @app.endpoint("ask")
    def ask(ctx: Context, order: Order) -> Order:
        return order

    with transaction.atomic():
        with transaction.atomic():
            kept = app.request(ask, Order("kept"), flow_id="kept", session=connection)
        with suppress(ValueError), transaction.atomic():
            undone = app.request(ask, Order("undone"), flow_id="undone", session=connection)
            raise ValueError
        with pytest.raises(ReplyTimeout):
            undone.result(0)
        with pytest.raises(IllegalCall, match="Commit first"):
            kept.result(0)
    with pytest.raises(ReplyTimeout):
        kept.result(0)
    assert flows(app) == 1


def test_a_reply_is_not_waited_for_in_another_thread_while_the_block_is_open(app: App) -> None:
    @app.endpoint("ask")
    def ask(ctx: Context, order: Order) -> Order:
        return order

    with transaction.atomic(), ThreadPoolExecutor(1) as other:
        future = app.request(ask, Order("o1"), flow_id="o1", session=connection)
        with pytest.raises(IllegalCall, match="Commit first"):
            other.submit(future.result, 0).result()


def test_a_broken_block_takes_no_flow(app: App, pay: Target[Order, None]) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            app.start(pay, Order("o1"), flow_id="o1", session=connection)
    assert flows(app) == 0


def test_another_database_and_another_object_are_refused(
    app: App, new_app: Callable[..., App], pay: Target[Order, None]
) -> None:
    use(url_of(new_app()))
    with transaction.atomic(), pytest.raises(DeclarationError, match="Connect to"):
        app.start(pay, Order("o1"), flow_id="o1", session=connection)
    with pytest.raises(IllegalCall, match="takes a connection of Django"):
        app.start(pay, Order("o1"), flow_id="o1", session=Sale(order_id="o1"))
    use(url_of(app))


@pytest.mark.parametrize("uses_it", [False, True])
def test_a_stage_without_a_database_transaction_may_not_use_the_orm(
    app: App, harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch, *, uses_it: bool
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        if uses_it:
            Sale.objects.create(order_id=order.id)

    app.start(pay, Order("o1"), flow_id="o1")
    worker = harness()
    monkeypatch.setattr(worker.transaction._modes["pay"], "has_database", False)
    outcome = worker.run_one()
    assert isinstance(outcome, Buried if uses_it else Completed)
    assert sales(app) == []


def test_a_connection_that_is_lost_under_the_orm_counts_against_no_message(app: App, run: Run) -> None:
    if not url_of(app).startswith("postgres"):
        pytest.skip("a file has no connection to lose")

    def handle(ctx: Context) -> None:
        cut_off(ctx, app)
        Sale.objects.create(order_id="o1")

    assert isinstance(run(handle), Abandoned)
    assert sales(app) == []
