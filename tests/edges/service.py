"""Two services with a store each, a broker in this process between them, and the turns of their edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from stagepost import App
from stagepost.app.app import engine_of
from stagepost.broker.memory import MemoryBroker
from stagepost.flow.ids import node_name
from stagepost.flow.target import Target
from stagepost.ports.broker import BrokerConnection, Publication
from stagepost.ports.dead_letters import DeadLetter, Selection
from stagepost.runtime.assembly import queue_commit_of
from stagepost.testing.clock import ManualClock
from stagepost.testing.contract.givens import NOW
from stagepost.transaction.dispatcher import Dispatcher
from stagepost.transaction.steps import EdgeListener, unobserved_edge

ABROAD = "ledger.reserve"
OUT = f"@out/{ABROAD}"
SECONDS = 5.0


@dataclass
class Order:
    order_id: str
    text: str = ""


@dataclass
class Reserved:
    order_id: str


class Sender:
    """An app that sends to other services, its one thread, and a dispatcher. The clock stands still."""

    def __init__(self, url: str, broker: str = "memory:tests", clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(NOW)
        self.app = App("shop", database=url, broker=broker, clock=self.clock, random=Random(1))
        self.abroad: Target[Order, Any] = self.app.remote(ABROAD, Order)
        self.engine = engine_of(self.app)
        self.access = self.engine.access()
        self.session = self.access.session
        self.node = node_name("dispatcher")
        self.dispatcher = self.made("shop/1")

    def made(self, owner: str, listener: EdgeListener = unobserved_edge) -> Dispatcher:
        return Dispatcher(queue_commit_of(self.engine, self.access, self.node), owner, Random(1), listener)

    def send(self, *order_ids: str, to: str = ABROAD, text: str = "", delay: float = 0) -> None:
        target: Target[Order, Any] = self.app.remote(to, Order)
        with self.app.initiate() as out:
            for each in order_ids:
                out.send(target, Order(each, text), flow_id=each, delay=delay)

    def waiting(self) -> dict[str, int]:
        counts = {each.stage: each.ready + each.claimed + each.delayed for each in self.session.queue.depths()}
        return {stage: count for stage, count in counts.items() if count and stage.startswith("@")}

    def claimed(self) -> int:
        return sum(each.claimed for each in self.session.queue.depths())

    def letters(self) -> list[DeadLetter]:
        return [kept.letter for kept in self.session.dead_letters.select(Selection("all"))]

    def paused(self) -> list[str]:
        return [each.stage for each in self.session.circuits.paused()]

    def history(self, flow_id: str) -> list[tuple[str, str]]:
        return [(each.waypoint, each.stage) for each in self.session.journal.history(flow_id)]

    def close(self) -> None:
        self.access.close()
        self.app.close()


def prepared(broker: MemoryBroker, *addresses: str) -> BrokerConnection:
    """Return a connection to the broker, with a queue of another store at each address."""
    connection = broker.connect(SECONDS)
    connection.prepare(addresses, "another store")
    return connection


def flows_of(publications: Sequence[Publication]) -> list[str]:
    return [each.headers["stagepost-flow"] for each in publications]
