"""While a broker is frozen, receiver and dispatcher hold no transaction open, and callers work on a small pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from stagepost import App, Context, Target
from stagepost.app.app import engine_of
from stagepost.runtime.edge import broker_of
from tests.edges.test_edge_threads import Edge, Order
from tests.waiting import PATIENCE_SECONDS, wait_until

STAGES, POOL, CALLS = 100, 10, 200
OPEN = """
    SELECT pid, xact_start FROM pg_stat_activity
    WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
    AND backend_type = 'client backend'
"""

Pool = list[psycopg.Connection[Any]]


@pytest.fixture
def url(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


@pytest.fixture
def pool(url: str) -> Iterator[Pool]:
    with ExitStack() as connections:
        yield [connections.enter_context(psycopg.connect(url)) for _ in range(POOL)]


@pytest.mark.more
@pytest.mark.parametrize("product", ["rabbitmq", "activemq"])
def test_a_frozen_broker_holds_no_connection(
    url: str, pool: Pool, product: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(product)
    name = f"t{uuid4().hex[:8]}"
    app = App(name, database=url, broker=server.url("heartbeat=5"))

    def handle(ctx: Context, order: Order) -> None:
        raise AssertionError("nothing arrives")

    for number in range(STAGES):
        app.endpoint(f"{name}.stage{number}")(handle)
    elsewhere: Target[Order, Any] = app.remote(f"{name}-elsewhere.take", Order)
    with closing(broker_of(engine_of(app)).connect(PATIENCE_SECONDS)) as connection:
        connection.prepare([elsewhere.address], "another store")
    with closing(Edge(app)) as edge, psycopg.connect(url, autocommit=True) as foreign:
        queue = edge.harness.access.session.queue
        wait_until(lambda: edge.receiver.quiet_since is not None, "the edge is connected")
        with server.frozen():
            app.start(elsewhere, Order("first"), flow_id="first")
            wait_until(lambda: sum(each.claimed for each in queue.depths()), "the dispatcher sends to it")
            before = set(foreign.execute(OPEN))
            for number in range(CALLS):
                caller = pool[number % POOL]
                with app.initiate(connection=caller) as out:
                    out.send(elsewhere, Order(f"o{number}"), flow_id=f"o{number}")
                caller.commit()
            assert not before & set(foreign.execute(OPEN))
        wait_until(lambda: not queue.depths(), "all have left")
