"""``ctx.session``: a SQLAlchemy session in the stage's transaction, flushed before the commit, and never its owner."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from stagepost import App, Context, DeclarationError, IllegalCall, TransactionBoundary
from stagepost.app.app import engine_of
from stagepost.integrations.sqlalchemy import SqlalchemySessions
from stagepost.testing import Harness
from stagepost.transaction.outcome import Abandoned, Buried, Completed, Redelivered
from tests.integrations.attempts import Run, completes, cut_off, refusing_two_commits
from tests.integrations.models import Line, Order, Sale, make_tables, rows, sales, url_of

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True


@pytest.fixture
def app(new_app: Callable[..., App]) -> App:
    app = new_app()
    make_tables(app)
    return app


def test_the_session_s_work_and_the_messages_commit_together(app: App, harness: NewHarness) -> None:
    seen: list[list[str]] = []

    @app.endpoint("count")
    def count(ctx: Context, order: Order) -> None:
        seen.append(list(ctx.session.scalars(select(Sale.order_id))))

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.session.add(Sale(order_id=order.id, lines=[Line(item="a"), Line(item="b")]))
        ctx.send(count, order)

    app.start(pay, Order("o1"), flow_id="o1")
    assert all(isinstance(each, Completed) for each in harness().drain())
    assert sales(app) == ["o1"]
    assert seen == [["o1"]]
    assert rows(app, "SELECT item FROM line ORDER BY item") == [("a",), ("b",)]


def test_a_failed_handler_leaves_nothing_of_its_session(app: App, run: Run) -> None:
    def handle(ctx: Context) -> None:
        ctx.session.add(Sale(order_id="o1"))
        ctx.session.flush()
        raise ValueError

    assert isinstance(run(handle), Redelivered)
    assert sales(app) == []


def test_ctx_sql_the_connection_and_the_session_see_each_other_s_work(app: App, run: Run) -> None:
    found: list[Any] = []

    def handle(ctx: Context) -> None:
        ctx.session.add(Sale(order_id="a"))
        ctx.session.flush()
        ctx.sql("INSERT INTO sale (order_id, amount) VALUES (:id, 1)", id="b")
        ctx.connection.execute("INSERT INTO sale (order_id, amount) VALUES ('c', 2)")
        core = ctx.session.connection()
        core.execute(insert(Sale).values(order_id="d", amount=3))
        found.append(ctx.session.scalars(select(Sale.order_id).order_by(Sale.order_id)).all())
        found.append(ctx.sql("SELECT count(*) FROM sale").scalar())

    assert isinstance(run(handle), Completed)
    assert found == [["a", "b", "c", "d"], 4]
    assert sales(app) == ["a", "b", "c", "d"]


def test_handlers_of_one_envelope_share_a_session_and_each_is_flushed(app: App, harness: NewHarness) -> None:
    sessions: list[int] = []
    found: list[object] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        sessions.append(id(ctx.session))
        ctx.session.add(Sale(order_id=order.id))

    @pay.handler
    def check(ctx: Context, order: Order) -> None:
        sessions.append(id(ctx.session))
        found.append(ctx.sql("SELECT count(*) FROM sale").scalar())

    app.start(pay, Order("o1"), flow_id="o1")
    assert isinstance(harness().run_one(), Completed)
    assert len(set(sessions)) == 1
    assert found == [1]


def test_two_envelopes_never_share_a_session_and_a_kept_one_is_refused(app: App, harness: NewHarness) -> None:
    kept: list[Any] = []
    errors: list[Exception] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.session.add(Sale(order_id=order.id))
        if kept:
            assert kept[0] is not ctx.session
            for each in kept[:2]:
                with pytest.raises(Exception, match=r"closed|returned") as caught:
                    each.execute(text("SELECT 1"))
                errors.append(caught.value)
        kept.extend([ctx.session, ctx.session.connection()])

    for n in (1, 2):
        app.start(pay, Order(f"o{n}"), flow_id=f"o{n}")
    assert [type(each) for each in harness().drain()] == [Completed, Completed]
    assert len(errors) == 2
    assert len(sales(app)) == 2


def test_an_async_handler_uses_the_same_session(app: App, harness: NewHarness) -> None:
    @app.endpoint("pay")
    async def pay(ctx: Context, order: Order) -> None:
        ctx.session.add(Sale(order_id=order.id))

    app.start(pay, Order("o1"), flow_id="o1")
    assert isinstance(harness().run_one(), Completed)
    assert sales(app) == ["o1"]


# The flush


def test_the_flush_at_the_end_fails_the_attempt(app: App, run: Run) -> None:
    def handle(ctx: Context) -> None:
        ctx.sql("INSERT INTO sale (order_id, amount) VALUES ('before', 0)")
        ctx.session.add(Sale(order_id="o1", lines=[Line(item="same"), Line(item="same")]))

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, IntegrityError)
    assert sales(app) == []


def test_a_failed_flush_fails_the_attempt_even_if_the_handler_caught_its_error(app: App, run: Run) -> None:
    def handle(ctx: Context) -> None:
        ctx.session.add(Sale(order_id="o1", lines=[Line(item="same"), Line(item="same")]))
        with pytest.raises(IntegrityError):
            ctx.session.flush()

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, IntegrityError)
    assert sales(app) == []


def test_an_error_of_the_flush_that_no_database_raised_fails_the_attempt_too(app: App, run: Run) -> None:
    def handle(ctx: Context) -> None:
        ctx.session.add(Sale(order_id="o1"))
        ctx.session.add(Sale(order_id=object()))
        try:
            ctx.session.flush()
        except Exception:  # noqa: BLE001 - any
            ctx.after_commit(lambda: None)

    assert isinstance(run(handle), Redelivered | Buried)
    assert sales(app) == []


# Savepoints


def test_a_savepoint_undoes_its_part_alone(app: App, run: Run) -> None:
    def handle(ctx: Context) -> None:
        ctx.session.add(Sale(order_id="kept"))
        with suppress(IntegrityError), ctx.session.begin_nested():
            ctx.session.add(Sale(order_id="undone", lines=[Line(item="same"), Line(item="same")]))
        nested = ctx.session.begin_nested()
        ctx.session.add(Sale(order_id="undone too"))
        nested.rollback()
        with ctx.session.begin_nested():
            ctx.session.add(Sale(order_id="kept too"))

    assert isinstance(run(handle), Completed)
    assert sales(app) == ["kept", "kept too"]


# Commit and rollback


def commit_block(session: Session) -> None:
    with session.begin():
        pass


def session_block(session: Session) -> None:
    with session:
        pass


ENDS: dict[str, Callable[[Session], object]] = {
    "commit": lambda session: session.commit(),
    "rollback": lambda session: session.rollback(),
    "close": lambda session: session.close(),
    "reset": lambda session: session.reset(),
    "invalidate": lambda session: session.invalidate(),
    "begin": commit_block,
    "with session": session_block,
    "core commit": lambda session: session.connection().commit(),
    "core rollback": lambda session: session.connection().rollback(),
    "core close": lambda session: session.connection().close(),
    "transaction commit": lambda session: session.get_transaction().commit(),  # type: ignore[union-attr]
    "transaction rollback": lambda session: session.get_transaction().rollback(),  # type: ignore[union-attr]
    "sql": lambda session: session.execute(text("COMMIT")),
}


@pytest.mark.longer_on_postgres
@pytest.mark.parametrize("way", ENDS)
@pytest.mark.parametrize("is_caught", [False, True], ids=["raised", "caught"])
def test_ending_the_transaction_is_refused_with_the_reason(app: App, run: Run, way: str, *, is_caught: bool) -> None:
    errors: list[Exception] = []

    def handle(ctx: Context) -> None:
        ctx.session.add(Sale(order_id="o1"))
        ctx.session.flush()
        try:
            ENDS[way](ctx.session)
        except TransactionBoundary as error:
            errors.append(error)
            if not is_caught:
                raise

    outcome = run(handle)
    (error,) = errors
    assert "refused in pay" in str(error)
    assert "ctx.refuse(reason)" in str(error)
    if is_caught:
        # Either the work stands with the message, or nothing of both does.
        assert sales(app) == (["o1"] if isinstance(outcome, Completed) else [])
    else:
        assert isinstance(outcome, Buried)
        assert sales(app) == []


def test_an_isolation_level_is_refused(app: App, run: Run) -> None:
    outcome = run(lambda ctx: ctx.session.connection(execution_options={"isolation_level": "AUTOCOMMIT"}))
    assert isinstance(outcome, Buried)
    assert "isolation level AUTOCOMMIT of the session was refused" in str(outcome.error)


# Refused commits


@pytest.mark.parametrize("touches", [True, False], ids=["wrote", "made it alone"])
def test_a_run_that_used_the_session_alone_is_handled_again_after_a_refused_commit(
    new_app: Callable[..., App], harness_of: Callable[[App], Harness], *, touches: bool
) -> None:
    refuse, refusals = refusing_two_commits()
    runs: list[Session] = []
    app = new_app(listener=refuse)
    make_tables(app)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        runs.append(ctx.session)
        if touches:
            ctx.session.add(Sale(order_id=order.id))

    app.start(pay, Order("o1"), flow_id="o1")
    harness = harness_of(app)
    assert completes(harness)
    assert refusals == []
    assert len({id(each) for each in runs}) == len(runs) == 3
    assert sales(app) == (["o1"] if touches else [])
    assert [each.kind for each in harness.history("o1")].count("committed") <= 1


# Declarations, and what the session is made of


class Till(Session):
    """A class of the user's own."""


def test_an_app_may_have_sessions_of_its_own_class_and_options(
    new_app: Callable[..., App], harness_of: Callable[[App], Harness]
) -> None:
    app = new_app(sessions=SqlalchemySessions(sessionmaker(class_=Till, autoflush=False, info={"shop": 1})))
    make_tables(app)
    found: list[object] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.session.add(Sale(order_id=order.id))
        found.extend([isinstance(ctx.session, Till), ctx.session.info["shop"]])
        found.append(ctx.session.scalar(select(func.count()).select_from(Sale)))

    app.start(pay, Order("o1"), flow_id="o1")
    assert isinstance(harness_of(app).run_one(), Completed)
    assert found == [True, 1, 0]
    assert sales(app) == ["o1"]


def test_a_sessionmaker_of_several_databases_is_refused_when_it_is_given() -> None:
    with pytest.raises(DeclarationError, match="binds="):
        SqlalchemySessions(sessionmaker(binds={Sale: object()}))
    with pytest.raises(DeclarationError, match="twophase="):
        SqlalchemySessions(sessionmaker(twophase=True))


def test_a_connection_of_no_driver_is_refused() -> None:
    with pytest.raises(IllegalCall, match=r"sqlite3 or psycopg.*ctx\.connection"):
        SqlalchemySessions().open([], "pay")


def test_stagepost_imports_no_sqlalchemy_and_ctx_session_says_what_to_install() -> None:
    code = (
        "import sys, stagepost; assert 'sqlalchemy' not in sys.modules; sys.modules['sqlalchemy'] = None\n"
        "from stagepost.transaction.user_sessions import DefaultSessions\n"
        "DefaultSessions().open(None, 'pay')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'stagepost[sqlalchemy]'" in ended.stderr


def test_each_message_of_a_batch_has_a_session_of_its_own(
    new_app: Callable[..., App], harness_of: Callable[[App], Harness]
) -> None:
    app = new_app()
    if app.queue is not None:
        pytest.skip("a batch is of the mode single")
    make_tables(app)
    found: list[int] = []

    @app.endpoint("pay", batch=3)
    def pay(ctx: Context, order: Order) -> None:
        found.append(id(ctx.session))
        ctx.session.add(Sale(order_id=order.id))

    for n in range(3):
        app.start(pay, Order(f"o{n}"), flow_id=f"o{n}")
    harness = harness_of(app)
    claims = [harness.claim_one() for _ in range(3)]
    outcomes = harness.transaction.run_batch([each for each in claims if each is not None])
    assert [type(each) for each in outcomes] == [Completed] * 3
    assert len(sales(app)) == 3


def test_regular_expressions_work_on_sqlite_and_the_connection_stays(app: App, run: Run) -> None:
    if not str(engine_of(app).databases.database).startswith("sqlite"):
        pytest.skip("PostgreSQL has its own")
    found: list[object] = []

    def handle(ctx: Context) -> None:
        ctx.session.add(Sale(order_id="o1"))
        found.extend(ctx.session.scalars(select(Sale.order_id).where(Sale.order_id.regexp_match("^o"))))

    assert isinstance(run(handle), Completed)
    assert found == ["o1"]


def test_ctx_session_in_mode_transport_is_refused_when_it_is_declared(app: App) -> None:
    def session(ctx: Context, order: Order) -> None:
        ctx.session.add(Sale(order_id=order.id))

    def sql(ctx: Context, order: Order) -> None:
        ctx.sql("SELECT 1")

    def connection(ctx: Context, order: Order) -> None:
        ctx.connection.execute("SELECT 1")

    def captured(ctx: Context, order: Order) -> None:
        ctx.session.add(Sale(order_id=order.id))
        ctx.after_commit(lambda: str(ctx.flow_id))

    def within(ctx: Context, order: Order) -> None:
        ctx.after_commit(str, [ctx.session for _ in range(2)])

    @functools.wraps(session)
    def wrapped(*arguments: Any) -> None:
        session(*arguments)

    for handler, name in (
        *((each, each.__name__) for each in (session, sql, connection)),
        *((each, "session") for each in (captured, within, wrapped)),
    ):
        with pytest.raises(DeclarationError, match=rf"of pay uses ctx\.{name}.*Use mode='best_effort'"):
            app.endpoint("pay", mode="transport")(handler)


def test_a_handler_of_mode_transport_without_a_session_is_declared(app: App) -> None:
    @app.endpoint("pay", mode="transport")
    def pay(ctx: Context, order: Order) -> None:
        session = ctx.flow_id
        ctx.after_commit(print, session)

    assert pay.address == "pay"


def test_the_text_of_an_error_shows_no_parameters(app: App, run: Run) -> None:
    outcome = run(lambda ctx: ctx.session.execute(text("SELECT * FROM missing WHERE id = :id"), {"id": "a secret"}))
    assert isinstance(outcome, Redelivered)
    assert "missing" in str(outcome.error)
    assert "secret" not in str(outcome.error)


@pytest.mark.parametrize("way", ["sql", "session", "flush"])
def test_a_connection_that_is_lost_under_the_session_counts_against_no_message(app: App, run: Run, way: str) -> None:
    if not url_of(app).startswith("postgres"):
        pytest.skip("a file has no connection to lose")

    def handle(ctx: Context) -> None:
        cut_off(ctx, app)
        if way == "sql":
            ctx.sql("SELECT 1")
        elif way == "session":
            ctx.session.execute(text("SELECT 1"))
        else:
            ctx.session.add(Sale(order_id="o1"))

    assert isinstance(run(handle), Abandoned)
    assert sales(app) == []
