"""The queue's server stands still: it takes what it is sent, and answers nothing. Nobody who waits for it holds
anything of the stages' database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from stagepost import App, Context, Target
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.ids import node_name
from stagepost.runtime.connections import ConnectionUsage
from stagepost.runtime.loop import StageThread
from stagepost.runtime.prefetch import Prefetcher
from stagepost.runtime.relay_service import RelayService
from stagepost.transaction.callbacks import CallbackPool
from stagepost.transaction.steps import Step
from tests.servers.postgres import OwnServer
from tests.servers.stalling import stalled
from tests.waiting import PATIENCE_SECONDS, wait_until

THREADS = 4
CALLERS = 25
CONNECTIONS = 10

# In a transaction, or with a lock, whoever it is.
HOLDING = """
    SELECT pid, state, query FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND (
        state LIKE 'idle in transaction%' OR xact_start IS NOT NULL
        OR EXISTS (SELECT FROM pg_locks WHERE pg_locks.pid = pg_stat_activity.pid)
    ) AND backend_type = 'client backend'
"""


@dataclass
class Order:
    id: str


class Stop:
    """A step listener that lets each stage's thread come to ``committed``, and no further until it is told to."""

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self.may_go_on = threading.Event()

    def __call__(self, step: Step, claim: Claim) -> None:
        if step is Step.COMMITTED:
            self.arrived.append(claim.message_id)
            self.may_go_on.wait()


class Shop:
    def __init__(self, business: str, queue: str) -> None:
        self.stop = Stop()
        self.url = business
        self.app = App("shop", database=business, queue=queue, connections_max=CONNECTIONS, listener=self.stop)
        self.held: list[ConnectionUsage] = []
        self.run("CREATE TABLE ledger (entry text)")

        @self.app.endpoint("shop.pay")
        def pay(ctx: Context, order: Order) -> None:
            ctx.sql("INSERT INTO ledger VALUES (:id)", id=order.id)
            self.held += [each for each in self.app.connections().holders if each.message_id == ctx.message_id]

        self.pay: Target[Order, None] = pay

    def start(self, name: str) -> None:
        assert self.app.start(self.pay, Order(name), flow_id=name).is_new

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def entries(self) -> list[str]:
        return sorted(entry for (entry,) in self.run("SELECT entry FROM ledger"))


@contextmanager
def working(app: App) -> Iterator[list[StageThread]]:
    """What a worker process runs: threads for the stages, and one that relays."""
    node = node_name("worker")
    incarnation = engine_of(app).incarnate(node, slots=THREADS)
    prefetcher = Prefetcher(engine_of(app).batches(), incarnation.owner, node, THREADS, engine_of(app).clock)
    go = threading.Event()
    threads = [
        StageThread(engine_of(app), slot, incarnation, prefetcher, CallbackPool(), node, go) for slot in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.opened()
    go.set()
    relay_service = RelayService(engine_of(app), node)
    relay_service.start()
    yield threads
    prefetcher.stop()
    assert all(thread.join(PATIENCE_SECONDS) for thread in threads)
    assert [thread.error for thread in threads] == [None] * THREADS
    relay_service.stop()
    assert relay_service.join(PATIENCE_SECONDS)
    assert relay_service.error is None
    incarnation.close()


@pytest.fixture
def shop(new_postgres: Callable[[], str], mortal_postgres: OwnServer) -> Iterator[Shop]:
    queue = mortal_postgres.new_database()
    shop = Shop(new_postgres(), queue)
    yield shop
    shop.app.close()
    mortal_postgres.drop_database(queue)


def test_while_the_queue_stalls_callers_return_and_nobody_holds_a_connection(
    shop: Shop, mortal_postgres: OwnServer
) -> None:
    app = shop.app
    for number in range(THREADS):
        shop.start(f"early {number}")
    with working(app) as threads:
        wait_until(lambda: len(shop.stop.arrived) == THREADS, "every stage's thread has committed")
        with stalled(mortal_postgres):
            shop.stop.may_go_on.set()
            callers = [threading.Thread(target=shop.start, args=(f"late {number}",)) for number in range(CALLERS)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join(PATIENCE_SECONDS)
            assert not any(caller.is_alive() for caller in callers)
            wait_until(lambda: shop.run(HOLDING) == [], "nobody holds anything in the stages' database")
            figures = app.connections()
            assert (figures.in_use, figures.waiting) == (0, 0)
            assert THREADS < figures.size <= THREADS + CONNECTIONS
            # And it is the queue that they wait for.
            assert all(thread.watch is not None and thread.watch.claim is not None for thread in threads)
            assert len(shop.entries()) == THREADS
        wait_until(lambda: len(shop.entries()) == THREADS + CALLERS, "everything that was started is done")
    assert len(set(shop.entries())) == THREADS + CALLERS
    assert app.connections().in_use == 0


def test_a_process_that_never_reached_the_queue_starts_flows_too(shop: Shop, mortal_postgres: OwnServer) -> None:
    with stalled(mortal_postgres):
        caller = threading.Thread(target=shop.start, args=("first",), daemon=True)
        caller.start()
        caller.join(PATIENCE_SECONDS)
        assert not caller.is_alive()


def test_a_stages_thread_says_what_it_holds_its_connection_for(shop: Shop) -> None:
    shop.stop.may_go_on.set()
    begin = engine_of(shop.app).clock.now()
    shop.start("one")
    with working(shop.app):
        wait_until(lambda: shop.stop.arrived, "it is done")
    (holder,) = shop.held
    assert (holder.stage, holder.flow_id, holder.message_id) == ("shop.pay", "one", shop.stop.arrived[0])
    assert (holder.who.startswith("stage-"), holder.step) == (True, "admitted")
    assert begin <= holder.since <= engine_of(shop.app).clock.now()
    assert f"{holder.message_id} of flow one at shop.pay, after admitted" in str(holder)
