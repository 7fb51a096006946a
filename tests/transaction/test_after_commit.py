"""``ctx.after_commit``: at most once, when everything is settled, and nothing it does can hurt its stage."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import psycopg
import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.testing import Harness
from stagepost.transaction import callbacks
from stagepost.transaction.callbacks import THREADS, WAITING_MAX, CallbackPool
from stagepost.transaction.outcome import Completed, Lost
from stagepost.transaction.steps import Step

if TYPE_CHECKING:
    from stagepost.store.postgres.session import PostgresSession

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True


CLAIM = Claim(1, "w1", 1, "pay", "m1", "flow", 0, 0, 0, b"")


@dataclass
class Order:
    id: str


def test_callbacks_run_in_their_order_with_their_arguments_and_once(app: App, harness: NewHarness) -> None:
    called: list[object] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.after_commit(called.append, f"first {ctx.attempt}")
        ctx.after_commit(lambda: called.append("second"))
        if ctx.attempt == 1:
            raise ValueError

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert called == ["first 2", "second"]


def test_callbacks_of_a_message_that_dies_never_run(app: App, harness: NewHarness) -> None:
    called: list[object] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.after_commit(called.append, "never")
        ctx.refuse("no")

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert called == []


@pytest.mark.parametrize("new_database", ["postgres"], indirect=True)
def test_callbacks_of_an_attempt_that_lost_its_message_and_the_answer_to_its_commit_do_not_run(
    app: App, harness: NewHarness
) -> None:
    called: list[str] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.after_commit(called.append, runs_of[-1])

    runs_of: list[str] = ["slow/1"]
    app.start(pay, Order("o1"), flow_id="flow")
    heir = harness(owner="heir/1")

    def lose(step: Step, claim: Claim) -> None:
        if step is Step.COMMITTING and claim.owner == "slow/1":
            heir.access.claimer.release([claim], "test")
            session = cast("PostgresSession", slow.access.session)
            with psycopg.connect(engine_of(app).store.address, autocommit=True) as another:
                another.execute("SELECT pg_terminate_backend(%s, 60000)", (session._connection.info.backend_pid,))

    engine_of(app).listener = lose
    slow = harness(owner="slow/1")
    claim = slow.claim_one()
    assert claim is not None
    assert isinstance(slow.transaction.run(claim), Lost)
    assert called == []
    runs_of.append("heir/1")
    assert isinstance(heir.run_one(), Completed)
    assert called == ["heir/1"]


@pytest.fixture
def pool() -> Iterator[CallbackPool]:
    pool = CallbackPool()
    yield pool
    pool.close()


def test_the_pool_runs_callbacks_on_threads_of_its_own_and_waits_for_them_when_it_closes(pool: CallbackPool) -> None:
    ran: list[str] = []
    gate = threading.Event()

    def callback() -> None:
        gate.wait()
        ran.append(threading.current_thread().name)

    pool(CLAIM, [callback] * 10)
    assert ran == []
    gate.set()
    pool.close()
    assert len(ran) == 10
    assert all(name.startswith("after-commit") for name in ran)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_a_callback_raises_is_logged_with_its_message_and_stops_no_other(
    pool: CallbackPool, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    ran: list[int] = []

    def fail() -> None:
        raise error("no")

    with caplog.at_level(logging.ERROR):
        pool(CLAIM, [fail, lambda: ran.append(1)])
        pool.close()
    assert ran == [1]
    (record,) = caplog.records
    assert f"an after_commit callback of pay raised {error.__name__}" in record.getMessage()
    assert record.__dict__["event"] == "after-commit-failed"
    assert (record.__dict__["message_id"], record.__dict__["flow_id"]) == ("m1", "flow")


def test_a_full_pool_makes_its_caller_wait_and_has_room_again_when_callbacks_end(pool: CallbackPool) -> None:
    gate = threading.Event()
    ran: list[int] = []

    def callback() -> None:
        gate.wait()
        ran.append(1)

    pool(CLAIM, [callback] * (THREADS + WAITING_MAX))
    assert not pool._has_room()
    caller = threading.Thread(target=pool, args=(CLAIM, [callback]))
    caller.start()
    gate.set()
    caller.join()
    pool.close()
    assert len(ran) == THREADS + WAITING_MAX + 1


def test_a_pool_that_was_never_used_has_nothing_to_close() -> None:
    CallbackPool().close()


def test_a_callback_that_never_returns_is_told_of_and_keeps_nobody_waiting_for_ever(
    pool: CallbackPool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "ROOM_SECONDS", 0.05)
    gate = threading.Event()
    ran: list[int] = []
    pool(CLAIM, [gate.wait] * (THREADS + WAITING_MAX))
    # There is no room for it.
    pool(CLAIM, [lambda: ran.append(1)])
    pool.close(0.05)
    events = Counter(record.__dict__["event"] for record in caplog.records)
    assert events == {"after-commit-stuck": THREADS, "after-commit-given-up": WAITING_MAX + 1}
    assert "all threads run callbacks of pay" in caplog.text
    gate.set()
    pool.close()
    assert ran == []
