"""``await app.astart`` and ``await app.arequest``: the loop goes on meanwhile, and a cancelled task waits no more."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from stagepost import AlreadyStarted, App, Context, FlowDied, IdConflict, IllegalCall, ReplyTimeout, Target
from stagepost.app.app import engine_of
from stagepost.flow.clock import SystemClock
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried, Completed
from tests.edge.asking import Number, names, replies, working
from tests.places import place
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.longer_on_postgres

TICKS = 200


@pytest.fixture
def clock() -> SystemClock:
    """A real clock, because the reply listener looks for dead letters from time to time."""
    return SystemClock()


@pytest.fixture(params=["sqlite", "postgres"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    return place(request)


@pytest.fixture
def double(app: App) -> Target[Number, Number]:
    @app.endpoint("double")
    def double(ctx: Context, number: Number) -> Number:
        if number.value < 0:
            ctx.refuse("negative")
        return Number(number.value * 2)

    return double


@pytest.fixture
def held(app: App) -> Callable[[], AbstractContextManager[None]]:
    """A block in which nobody else can start a flow: another connection holds what every start needs."""

    @contextmanager
    def hold() -> Iterator[None]:
        url = engine_of(app).store.address
        if url.startswith("sqlite"):
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
                file.execute("BEGIN IMMEDIATE")
                yield
                file.execute("ROLLBACK")
        else:
            with psycopg.connect(url) as server:
                server.execute("LOCK TABLE stagepost_accepted IN ACCESS EXCLUSIVE MODE")
                yield
                server.rollback()

    return hold


# Starting


def test_a_flow_starts_and_a_repeat_does_not(app: App, double: Target[Number, Number]) -> None:
    async def main() -> list[bool]:
        first = await app.astart(double, Number(1), flow_id="flow", properties={"tenant": "a"}, delay=60)
        again = await app.astart(double, Number(1), flow_id="flow")
        with pytest.raises(IdConflict):
            await app.astart(double, Number(2), flow_id="flow")
        return [first.is_new, again.is_new]

    assert asyncio.run(main()) == [True, False]


def test_the_loop_goes_on_while_the_database_keeps_a_start_waiting(
    app: App, double: Target[Number, Number], held: Callable[[], AbstractContextManager[None]]
) -> None:
    app.start(double, Number(0), flow_id="opens the database")

    async def main(begin: Callable[[], Awaitable[object]]) -> object:
        with held():
            # A loop that waits for the database would never get to the end of this block.
            task = asyncio.ensure_future(begin())
            for _ in range(TICKS):
                await asyncio.sleep(0)
            assert not task.done()
        return await task

    started = asyncio.run(main(lambda: app.astart(double, Number(1), flow_id="flow")))
    assert started.is_new  # type: ignore[attr-defined]
    with working(app):
        reply = asyncio.run(main(lambda: app.arequest(double, Number(4), flow_id="asked", timeout=PATIENCE_SECONDS)))
    assert reply == Number(8)


def test_in_a_stage_it_joins_the_stage_s_transaction(app: App, harness: Callable[..., Harness]) -> None:
    @app.endpoint("other")
    def other(ctx: Context, number: Number) -> None: ...

    @app.endpoint("pay")
    async def pay(ctx: Context, number: Number) -> None:
        await app.astart(other, number, flow_id=f"of {number.value}")
        if number.value < 0:
            ctx.refuse("negative")

    for value in (1, -1):
        app.start(pay, Number(value), flow_id=f"pay {value}")
    outcomes = harness().drain()
    assert sorted(type(each).__name__ for each in outcomes) == ["Buried", "Completed", "Completed"]


# Requests


def test_the_reply_comes_to_the_task_that_asked(app: App, double: Target[Number, Number]) -> None:
    async def main() -> list[Number]:
        asked = (app.arequest(double, Number(n), flow_id=f"{n}", timeout=PATIENCE_SECONDS) for n in range(20))
        return list(await asyncio.gather(*asked))

    with working(app):
        assert asyncio.run(main()) == [Number(2 * n) for n in range(20)]


def test_many_waits_need_no_threads(app: App, double: Target[Number, Number]) -> None:
    async def main() -> list[Number]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        futures = [app.request(double, Number(n), flow_id=f"{n}") for n in range(5)]
        waits = [asyncio.ensure_future(each.aresult(PATIENCE_SECONDS)) for each in futures]
        await asyncio.sleep(0)
        # The only thread of the executor is free for this.
        await app.astart(double, Number(9), flow_id="beside")
        with working(app):
            return list(await asyncio.gather(*waits))

    assert asyncio.run(main()) == [Number(2 * n) for n in range(5)]


def test_a_wait_that_is_over_in_time_says_so_and_its_reply_expires(
    app: App, harness: Callable[..., Harness], double: Target[Number, Number]
) -> None:
    with pytest.raises(ReplyTimeout, match="did not reply within 0 s"):
        asyncio.run(app.arequest(double, Number(1), flow_id="flow", timeout=0))
    worker = harness()
    worker.drain()
    wait_until(lambda: "expired" in names(replies(worker)), "the reply has expired")


def test_a_dead_letter_in_place_of_the_reply_ends_the_wait(app: App, double: Target[Number, Number]) -> None:
    with working(app), pytest.raises(FlowDied, match="negative"):
        asyncio.run(app.arequest(double, Number(-1), flow_id="flow", timeout=PATIENCE_SECONDS))


def test_a_repeated_request_is_refused(app: App, double: Target[Number, Number]) -> None:
    app.start(double, Number(1), flow_id="flow")
    with pytest.raises(AlreadyStarted):
        asyncio.run(app.arequest(double, Number(1), flow_id="flow", timeout=1))


def test_a_request_that_is_cancelled_with_its_task_waits_no_more_and_its_reply_expires(
    app: App, harness: Callable[..., Harness], double: Target[Number, Number]
) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(app.arequest(double, Number(1), flow_id="flow", timeout=PATIENCE_SECONDS))
        accepted = harness()
        while not accepted.history("flow"):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Completed]
    wait_until(lambda: "expired" in names(replies(worker)), "the reply has expired")


def test_a_request_that_is_cancelled_while_it_starts_gets_no_reply_and_its_flow_goes_on(
    app: App,
    harness: Callable[..., Harness],
    double: Target[Number, Number],
    held: Callable[[], AbstractContextManager[None]],
) -> None:
    app.request(double, Number(0), flow_id="opens the database")
    harness().drain()

    async def main() -> None:
        with held():
            task = asyncio.ensure_future(app.arequest(double, Number(1), flow_id="flow", timeout=PATIENCE_SECONDS))
            for _ in range(TICKS):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    # The loop waits for its threads at the end.
    asyncio.run(main())
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Completed]
    wait_until(lambda: "expired" in names(replies(worker, "flow")), "the reply has expired")


def test_a_future_whose_wait_was_cancelled_says_so(app: App, double: Target[Number, Number]) -> None:
    future = app.request(double, Number(1), flow_id="flow")

    async def main() -> None:
        task = asyncio.ensure_future(future.aresult(PATIENCE_SECONDS))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with pytest.raises(ReplyTimeout, match="given up by its caller"):
        future.result(0)


def test_a_request_in_a_stage_and_a_wrong_timeout_are_refused(
    app: App, harness: Callable[..., Harness], double: Target[Number, Number]
) -> None:
    @app.endpoint("pay")
    async def pay(ctx: Context, number: Number) -> None:
        await app.arequest(double, number, flow_id="inner", timeout=1)

    app.start(pay, Number(1), flow_id="flow")
    (outcome,) = harness().drain()
    assert isinstance(outcome, Buried)
    assert "inside a stage" in str(outcome.error)
    with pytest.raises(IllegalCall, match="timeout must be"):
        asyncio.run(app.arequest(double, Number(1), flow_id="wrong", timeout=-1))


# A request in the caller's own transaction


def test_a_request_of_a_session_starts_with_its_commit_and_is_waited_for_after_it(
    app: App, double: Target[Number, Number]
) -> None:
    engine = create_engine(engine_of(app).store.address.replace("postgresql://", "postgresql+psycopg://", 1))
    with Session(engine) as session:
        # The session writes before the listener opens.
        session.execute(text("CREATE TABLE sale (id text)"))
        session.execute(text("INSERT INTO sale VALUES ('o1')"))
        future = app.request(double, Number(4), flow_id="flow", session=session)
        with pytest.raises(IllegalCall, match="Commit first"):
            future.result(1)
        with pytest.raises(IllegalCall, match="Commit first"):
            asyncio.run(future.aresult(1))
        session.commit()
    with working(app):
        assert asyncio.run(future.aresult(PATIENCE_SECONDS)) == Number(8)
        assert future.result(0) == Number(8)
    engine.dispose()


def test_a_request_of_a_session_that_rolls_back_gets_no_reply(
    app: App, harness: Callable[..., Harness], double: Target[Number, Number]
) -> None:
    engine = create_engine(engine_of(app).store.address.replace("postgresql://", "postgresql+psycopg://", 1))
    with Session(engine) as session:
        future = app.request(double, Number(4), flow_id="flow", session=session)
        session.rollback()
    assert harness().drain() == []
    with pytest.raises(ReplyTimeout):
        future.result(0)
    engine.dispose()
