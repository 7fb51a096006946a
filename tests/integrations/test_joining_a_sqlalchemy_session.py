"""``app.start(…, session=…)``: the flow starts when the caller's SQLAlchemy session commits, and never otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, insert, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from stagepost import App, Context, DeclarationError, IdConflict, IllegalCall, Target
from stagepost.app.app import engine_of
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried
from tests.integrations.models import Order, Sale, make_tables, rows, sales, sqlalchemy_url

IN_EVERY_MODE = True


@pytest.fixture
def app(new_app: Callable[..., App]) -> App:
    app = new_app()
    make_tables(app)
    return app


@pytest.fixture
def engine(app: App) -> Iterator[Engine]:
    engine = create_engine(sqlalchemy_url(app))
    yield engine
    engine.dispose()


@pytest.fixture
def pay(app: App) -> Target[Order, None]:
    return app.remote("pay", Order)


def flows(app: App) -> list[str]:
    """The flows that were started, of which the queue may be in another database."""
    return [str(flow) for (flow,) in rows(app, "SELECT key FROM stagepost_accepted ORDER BY key")]


def test_the_flow_starts_with_the_session_s_commit(app: App, engine: Engine, pay: Target[Order, None]) -> None:
    with Session(engine) as session:
        session.add(Sale(order_id="o1"))
        started = app.start(pay, Order("o1"), flow_id="o1", session=session)
        session.add(Sale(order_id="o1 too"))
        assert started.is_new
        assert (sales(app), flows(app)) == ([], [])
        session.commit()
    assert sales(app) == ["o1", "o1 too"]
    assert flows(app) == [started.message_id]


def test_a_session_that_was_used_for_nothing_else_commits_the_flow(
    app: App, engine: Engine, pay: Target[Order, None]
) -> None:
    with Session(engine) as session, session.begin():
        app.start(pay, Order("o1"), flow_id="o1", session=session)
    assert len(flows(app)) == 1


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_a_rolled_back_session_starts_nothing(
    app: App, engine: Engine, pay: Target[Order, None], *, is_first: bool
) -> None:
    with Session(engine) as session:
        if not is_first:
            session.add(Sale(order_id="o1"))
            session.flush()
        app.start(pay, Order("o1"), flow_id="o1", session=session)
        session.rollback()
        assert app.start(pay, Order("o1"), flow_id="o1", session=session).is_new
        session.rollback()
    assert (sales(app), flows(app)) == ([], [])


def test_a_savepoint_that_is_undone_takes_its_flow_with_it(app: App, engine: Engine, pay: Target[Order, None]) -> None:
    with Session(engine) as session:
        session.add(Sale(order_id="o1"))
        kept = app.start(pay, Order("o1"), flow_id="o1", session=session)
        with session.begin_nested() as nested:
            app.start(pay, Order("o2"), flow_id="o2", session=session)
            nested.rollback()
        session.commit()
    assert flows(app) == [kept.message_id]


def test_several_flows_start_in_one_initiation(app: App, engine: Engine, pay: Target[Order, None]) -> None:
    with Session(engine) as session:
        with app.initiate(session=session) as out:
            for n in range(3):
                out.send(pay, Order(f"o{n}"), flow_id=f"o{n}")
        session.commit()
    assert len(flows(app)) == 3


def test_a_core_connection_is_joined_too(app: App, engine: Engine, pay: Target[Order, None]) -> None:
    with engine.connect() as connection:
        app.start(pay, Order("o0"), flow_id="o0", session=connection)
        connection.commit()
        connection.rollback()
        assert len(flows(app)) == 1
        app.start(pay, Order("o1"), flow_id="o1", session=connection)
        connection.execute(insert(Sale).values(order_id="o1", amount=1))
        assert (len(sales(app)), len(flows(app))) == (0, 1)
        connection.commit()
        app.start(pay, Order("o2"), flow_id="o2", session=connection)
        connection.rollback()
    with engine.begin() as connection:
        app.start(pay, Order("o3"), flow_id="o3", session=connection)
    assert (len(sales(app)), len(flows(app))) == (1, 3)


def test_a_scoped_session_is_joined_too(app: App, engine: Engine, pay: Target[Order, None]) -> None:
    session = scoped_session(sessionmaker(engine))
    app.start(pay, Order("o1"), flow_id="o1", session=session)
    session.commit()
    session.remove()
    assert len(flows(app)) == 1


def test_a_repeat_starts_nothing_and_other_content_is_a_conflict(
    app: App, engine: Engine, pay: Target[Order, None]
) -> None:
    with Session(engine) as session:
        app.start(pay, Order("o1"), flow_id="o1", session=session)
        assert not app.start(pay, Order("o1"), flow_id="o1", session=session).is_new
        session.commit()
        session.add(Sale(order_id="kept"))
        session.flush()
        with pytest.raises(IdConflict):
            app.start(pay, Order("other"), flow_id="o1", session=session)
        session.commit()
    assert (sales(app), len(flows(app))) == (["kept"], 1)


# What is refused


def test_a_session_of_another_database_is_refused(
    app: App, new_database: Callable[[], str], new_app: Callable[..., App], pay: Target[Order, None]
) -> None:
    other = new_app()
    make_tables(other)
    elsewhere = create_engine(sqlalchemy_url(other))
    with Session(elsewhere) as session:
        session.add(Sale(order_id="o1"))
        session.flush()
        with pytest.raises(DeclarationError, match="Connect to"):
            app.start(pay, Order("o1"), flow_id="o1", session=session)
        session.commit()
    elsewhere.dispose()
    assert (sales(other), flows(app)) == (["o1"], [])


@pytest.mark.parametrize(
    "given", [object(), "session", sessionmaker(), create_engine("sqlite://")], ids=lambda each: type(each).__name__
)
def test_another_kind_of_session_is_refused_before_anything_is_written(
    app: App, pay: Target[Order, None], given: object
) -> None:
    with pytest.raises(IllegalCall, match="session= takes"):
        app.start(pay, Order("o1"), flow_id="o1", session=given)


def test_both_a_connection_and_a_session_are_refused(app: App, engine: Engine) -> None:
    with Session(engine) as session, pytest.raises(IllegalCall, match="both given"):
        app.initiate(connection=object(), session=session)


def test_a_stage_has_its_own_transaction_and_refuses_a_session(app: App, harness: Callable[..., Harness]) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        app.start(pay, Order("o2"), flow_id="o2", session=ctx.session)

    app.start(pay, Order("o1"), flow_id="o1")
    outcome = harness().run_one()
    assert isinstance(outcome, Buried)
    assert "initiate(session=…) was called inside a stage" in str(outcome.error)


def test_an_error_of_the_session_s_own_connection_is_the_caller_s(
    app: App, engine: Engine, pay: Target[Order, None]
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no such host")

    event.listen(engine, "do_connect", refuse)
    with Session(engine) as session, pytest.raises(OSError, match="no such host"):
        app.start(pay, Order("o1"), flow_id="o1", session=session)


def test_the_session_goes_on_after_a_refusal(app: App, engine: Engine, pay: Target[Order, None]) -> None:
    with Session(engine) as session:
        session.execute(text("SELECT 1"))
        with pytest.raises(IllegalCall, match="takes a Order"):
            app.start(pay, object(), flow_id="o1", session=session)  # type: ignore[misc]  # the mistake
        app.start(pay, Order("o1"), flow_id="o1", session=session)
        session.commit()
    assert len(flows(app)) == 1
    assert engine_of(app).name == "shop"


def test_an_app_of_mode_transport_refuses_a_session(new_database: Callable[[], str], engine: Engine) -> None:
    routing = App("routing", database=new_database(), mode="transport", broker="memory://b")
    with Session(engine) as session, pytest.raises(IllegalCall, match="mode='transport' has no database"):
        routing.initiate(session=session)
