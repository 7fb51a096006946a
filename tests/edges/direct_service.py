"""A service whose stages consume from a memory broker, with the turns of its parts. The clock stands still."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, LiteralString

import psycopg
import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.broker.memory import MemoryBroker
from stagepost.flow.claim import Claim
from stagepost.flow.codec import decode_envelope
from stagepost.flow.errors import BrokerConnectionLost
from stagepost.flow.target import Target
from stagepost.ports.broker import BrokerConnection, Delivery, Publication
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.runtime.assembly import queue_commit_of
from stagepost.runtime.direct import consumer_of
from stagepost.runtime.edge import entrances_of, prepare, received
from stagepost.testing.clock import ManualClock
from stagepost.testing.contract.givens import NOW
from stagepost.testing.harness import Harness, NoRetries, Unwatched
from stagepost.transaction.dispatcher import Dispatcher
from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import Halt, Step, StepListener, unobserved
from tests.edges.test_receiving import an_envelope

SECONDS = 5.0
PAY = "shop.pay"
ABROAD = "ledger.book"


@dataclass
class Order:
    order_id: str


def note_effect(ctx: Context, order_id: str) -> None:
    """Write in a function of its own, because a handler of the mode ``transport`` may not name the database."""
    ctx.sql("INSERT INTO effect (order_id) VALUES (:id)", id=order_id)


class DirectService:
    """An app with one stage in a direct mode, which writes an effect and sends to another service.

    ``handler`` replaces what the stage does. ``declare`` declares more for the app. ``terms`` are further settings of
    the stage, and ``settings`` those of the app.
    """

    def __init__(
        self,
        url: str,
        broker: MemoryBroker,
        mode: Mode,
        handler: Callable[[Context, Order], Any] | None = None,
        declare: Callable[[App], object] = lambda app: None,
        terms: Mapping[str, Any] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        self._url = url
        self.broker = broker
        self.clock = ManualClock(NOW)
        self.app = App("shop", database=url, broker=broker.url, clock=self.clock, random=Random(1), **settings)
        book: Target[Order, Any] = self.app.remote(ABROAD, Order)
        self.runs: list[str] = []

        @self.app.endpoint(PAY, mode=mode, **terms)
        def pay(ctx: Context, order: Order) -> None:
            self.runs.append(order.order_id)
            if handler is not None:
                handler(ctx, order)
                return
            if mode == "best_effort":
                note_effect(ctx, order.order_id)
            ctx.send(book, order)

        self.pay = pay
        declare(self.app)
        self.engine = engine_of(self.app)
        self.harness = Harness(self.app)
        self.session = self.harness.access.session
        with closing(broker.connect(SECONDS)) as connection:
            connection.prepare([ABROAD], "another store")
        self.begin()

    def begin(self, listener: StepListener = unobserved) -> None:
        """Start the consuming process again, with another connection."""
        self.connection: BrokerConnection = self.broker.connect(SECONDS)
        prepare(self.connection, entrances_of(self.engine), self.engine.store_uuid)
        self.consumer = consumer_of(
            self.engine,
            self.harness.access,
            "shop/direct",
            _cannot_set_aside,
            node="direct",
            monitor=Unwatched(),
            stop=NoRetries(),
            after_commit=lambda claim, callbacks: None,
            listener=listener,
        )

    def restart(self) -> None:
        """Lose the connection, as the broker and the process do, and start again."""
        self.connection.close()
        self.session.rollback()
        self.begin()

    def die_at(self, step: Step) -> None:
        """Let the next run end at this step, as a killed process would."""

        def listen(passed: Step, claim: Claim) -> None:
            if passed == step:
                raise Halt

        self.connection.close()
        self.begin(listen)

    def die_of_a_message_at(self, step: Step) -> None:
        """Let ``m1`` arrive, die of it at this step, and start again."""
        self.die_at(step)
        self.arrive("m1")
        with pytest.raises(Halt):
            self.turn()
        self.restart()

    def arrive(self, *message_ids: str, address: str = PAY, **fields: Any) -> None:
        bodies = {each: an_envelope(each, f'{{"order_id":"{each}"}}', to=address, **fields) for each in message_ids}
        with closing(self.broker.connect(SECONDS)) as connection:
            publications = [Publication(address, each, body, {}) for each, body in bodies.items()]
            assert set(connection.publish(publications, SECONDS)) == {"confirmed"}

    def turn(self) -> int:
        windows = {each.address: 10 for each in received(self.engine, is_direct=True)}
        return self.consumer.turn(self.connection, windows, 0)

    def dispatch(self) -> None:
        dispatcher = Dispatcher(queue_commit_of(self.engine, self.harness.access, "edge"), "shop/edge", Random(1))
        with closing(self.broker.connect(SECONDS)) as connection:
            while dispatcher.turn(connection):
                pass

    def finish(self) -> None:
        """Consume, run what is stored, and dispatch, until nothing is left."""
        while True:
            try:
                if not self.turn():
                    break
            except BrokerConnectionLost:
                self.restart()
        self.harness.drain()
        self.dispatch()

    def run_among_faults(self, random: Random) -> list[str]:
        """Run 60 messages and copies of some. Runs die at any step, connections are lost, and the broker refuses."""
        names = [f"m{n}" for n in range(60)]

        def die_sometimes(step: Step, claim: Claim) -> None:
            if random.random() < 0.03:
                raise Halt

        self.begin(die_sometimes)
        waiting = names + random.sample(names, 6)
        deaths = 0
        for _ in range(400):
            self.broker.refusing, self.broker.cut_after = set(), None
            if waiting:
                self.arrive(waiting.pop())
            self.broker.refusing = {ABROAD} if random.random() < 0.05 else set()
            if random.random() < 0.03:
                self.broker.cut()
            if self.broker.is_atomic and random.random() < 0.02:
                self.broker.cut_commit = random.choice(["committed", "rolled back"])
            elif random.random() < 0.02:
                self.broker.cut_after = 0
            try:
                self.turn()
            except (Halt, BrokerConnectionLost):
                deaths += 1
                self.connection.close()
                self.session.rollback()
                self.begin(die_sometimes)
        self.broker.refusing, self.broker.cut_after, self.broker.cut_commit = set(), None, None
        assert deaths > 20
        self.restart()
        self.finish()
        return names

    def effects(self) -> Counter[str]:
        """Return how often each order's effect is in the database."""
        if self._url.startswith("sqlite"):
            with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"))) as connection:
                return Counter(each for (each,) in connection.execute("SELECT order_id FROM effect"))
        with psycopg.connect(self._url) as server:
            return Counter(each for (each,) in server.execute("SELECT order_id FROM effect"))

    def change(self, statement: LiteralString) -> None:
        """Run a statement of the test's own in the database."""
        if self._url.startswith("sqlite"):
            with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"))) as connection, connection:
                connection.execute(statement)
        else:
            with psycopg.connect(self._url) as server:
                server.execute(statement)

    def sent(self) -> Counter[str]:
        """Return how many copies of each message wait at the other service."""
        return Counter(decode_envelope(each.body).message_id for each in self.broker.waiting(ABROAD))

    def history(self, message_id: str = "m1") -> list[str]:
        return [each.waypoint for each in self.session.journal.history(f"flow-{message_id}")]

    def stored(self) -> int:
        return sum(each.ready + each.claimed + each.delayed for each in self.session.queue.depths())

    def unsettled(self) -> int:
        self.restart()
        return len(self.broker.waiting(PAY)) + len(self.connection_deliveries())

    def connection_deliveries(self) -> list[Delivery]:
        return self.connection.receive(0)

    def close(self) -> None:
        self.connection.close()
        self.harness.close()
        self.app.close()


def broker_named(url: str, *, is_atomic: bool) -> MemoryBroker:
    """Return the memory broker that apps with this URL get."""
    engine = engine_of(App("broker", broker=url))
    found = broker_driver_of(url).broker(url, engine.clock, engine.random)
    assert isinstance(found, MemoryBroker)
    found.is_atomic = is_atomic
    return found


def _cannot_set_aside(delivery: Delivery) -> bool:
    return False
