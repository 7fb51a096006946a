"""Measure the effect of a frozen broker on callers that need only the database.

The callers are those of ``stalled_queue``, on the same pool of 10 connections. 25 of them send a message each to
another service over the broker. Our way starts flows in the caller's own transaction, and a dispatcher sends them. The
naive way commits, and then publishes while it still holds the connection. The broker is suspended for ten seconds.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from benchmarks.broker_servers import BROKERS, BrokerServer, broker_at, running_broker
from benchmarks.job import Item
from benchmarks.machine import BUSY_MAX, watched
from benchmarks.postgres_stage import running_server
from benchmarks.stalled_queue import CALLERS, POOL, WORK, Call, Connection, Run, Variant, in_the_transaction, run
from stagepost import App, Target
from stagepost.app.app import engine_of
from stagepost.flow.errors import BrokerError
from stagepost.flow.ids import node_name
from stagepost.ports.broker import BrokerConnection, Publication
from stagepost.runtime.edge_services import DispatcherService

SECONDS = 10.0
ROUNDS = 2
ADDRESS = "elsewhere.take"
CONFIRM_SECONDS = 30.0
P99_MAX_MILLISECONDS = 50.0
P99_MAX = 1.05
JOIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenBroker:
    name: str
    ours: Variant
    naive: Variant
    others: float

    @property
    def is_valid(self) -> bool:
        return self.others <= BUSY_MAX

    @property
    def is_reached(self) -> bool:
        """Return whether our callers hold no connection while the broker stalls, and no other caller is slower."""
        holds_none = all(run.figures is not None and run.figures.in_use == 0 for run in self.ours.stalled)
        p99 = statistics.median(run.p99 for run in self.ours.stalled)
        return holds_none and p99 <= P99_MAX_MILLISECONDS and self.ours.p99 <= P99_MAX

    def lines(self) -> list[str]:
        head = (
            f"{self.name}, frozen for {SECONDS:g} s: calls that need the database alone, beside {CALLERS} callers that "
            f"send, on {POOL} connections"
        )
        if not self.is_valid:
            return [head, f"  not measured: other processes used {self.others:.0%} of a core; run it again"]
        goal = f"no connection in use, p99 {P99_MAX_MILLISECONDS:g} ms at most, and {P99_MAX:g} of the calm run"
        return [
            head,
            *self.ours.lines(),
            *self.naive.lines(),
            f"  goal for ours: {goal}: {'reached' if self.is_reached else 'MISSED'}",
        ]


@dataclass(frozen=True, slots=True)
class FrozenBrokers:
    each: Sequence[FrozenBroker]

    @property
    def is_valid(self) -> bool:
        return all(each.is_valid for each in self.each)

    @property
    def is_reached(self) -> bool:
        return all(each.is_reached for each in self.each)

    def lines(self) -> list[str]:
        return [line for each in self.each for line in each.lines()]


def measure() -> FrozenBrokers:
    with TemporaryDirectory(prefix="stagepost-bench-") as name:
        return FrozenBrokers([_measure(each, Path(name)) for each in BROKERS])


def _measure(name: str, folder: Path) -> FrozenBroker:
    with running_server() as (database, _), running_broker(name, folder) as broker, ExitStack() as running:
        with psycopg.connect(database.url) as connection:
            connection.execute("CREATE TABLE work (what text)")
        app = running.enter_context(dispatching(database.url, broker))
        publish = running.enter_context(AfterCommit.over(broker))
        elsewhere: Target[Item, Any] = app.remote(ADDRESS, Item)
        variants: dict[str, Call] = {
            "ours: app.initiate(connection=…), then commit": partial(in_the_transaction, app, elsewhere),
            "naive: commit, then publish, and then return the connection": publish,
        }
        runs: dict[str, tuple[list[Run], list[Run]]] = {each: ([], []) for each in variants}
        with watched(database.pid) as quiet:
            for _ in range(ROUNDS):
                for each, call in variants.items():
                    calm, stalled = runs[each]
                    calm.append(run(call, database.url, nullcontext, SECONDS))
                    stalled.append(run(call, database.url, broker.frozen, SECONDS))
        ours, naive = (
            Variant(name=each, calm=calm, stalled=stalled, what="broker") for each, (calm, stalled) in runs.items()
        )
        return FrozenBroker(name=name, ours=ours, naive=naive, others=quiet.others)


@contextmanager
def dispatching(url: str, broker: BrokerServer) -> Iterator[App]:
    """Run a dispatcher beside the app during the block. Its target has a queue."""
    app = App("bench", database=url, broker=broker.url())
    engine = engine_of(app)
    connection = broker_at(broker).connect(CONFIRM_SECONDS)
    connection.prepare([ADDRESS], "another store")
    connection.close()
    node = node_name("bench")
    incarnation = engine.incarnate(node)
    service = DispatcherService(engine, engine.broker(), incarnation.owner, node)
    service.start()
    try:
        yield app
    finally:
        service.stop()
        service.join(JOIN_SECONDS)
        incarnation.close()
        app.close()


class AfterCommit:
    """The naive way: publish after the commit, with a connection to the broker for each thread."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._mine = threading.local()
        self._opened: list[BrokerConnection] = []

    @classmethod
    @contextmanager
    def over(cls, broker: BrokerServer) -> Iterator[AfterCommit]:
        made = cls(broker)
        yield made
        for each in made._opened:
            each.close()

    def __call__(self, connection: Connection, name: str) -> None:
        connection.execute(WORK, (name,))
        connection.commit()
        try:
            self._connection().publish([Publication(ADDRESS, name, b"{}", {})], CONFIRM_SECONDS)
        except BrokerError:
            del self._mine.connection

    def _connection(self) -> BrokerConnection:
        if not hasattr(self._mine, "connection"):
            self._mine.connection = broker_at(self._broker).connect(CONFIRM_SECONDS)
            self._opened.append(self._mine.connection)
        found: BrokerConnection = self._mine.connection
        return found
