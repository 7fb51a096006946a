"""Publications reach the subscribers of every store once, whichever way they come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.broker.memory import MemoryBroker
from stagepost.ports.broker import Delivery
from stagepost.runtime.assembly import queue_commit_of
from stagepost.runtime.edge import entrances_of, prepare
from stagepost.testing.harness import Harness
from stagepost.transaction.dispatcher import Dispatcher
from stagepost.transaction.receiver import Receiver
from tests.edges.service import SECONDS


@dataclass
class Price:
    item: str


class Service:
    """An app that subscribes to the prices, and perhaps publishes them."""

    def __init__(self, name: str, folder: Path, broker: MemoryBroker, *, local: bool = True) -> None:
        self.is_local = local
        self.app = App(name, database=f"sqlite:///{folder / name}.db", broker="memory:prices", local=local)
        self.prices = self.app.topic("prices", Price)
        self.seen: list[str] = []

        @self.app.subscribe(self.prices, f"{name}.seen")
        def seen(ctx: Context, price: Price) -> None:
            self.seen.append(price.item)

        @self.app.endpoint(f"{name}.publish")
        def publish(ctx: Context, price: Price) -> None:
            ctx.publish(self.prices, price)

        engine = engine_of(self.app)
        self.harness = Harness(self.app)
        access = self.harness.access
        self.session = access.session
        self.dispatcher = Dispatcher(queue_commit_of(engine, access, "dispatcher"), f"{name}/1", engine.random)
        self._entrances = entrances_of(engine)
        self._connection = broker.connect(SECONDS)
        prepare(self._connection, self._entrances, engine.store_uuid)
        queue_commit = queue_commit_of(engine, access, "receiver")
        self._receiver = Receiver(queue_commit, self._entrances, engine.store_uuid, _cannot_set_aside)

    def work(self) -> None:
        for _ in range(3):
            self.harness.drain()
            self.dispatcher.turn(self._connection)
            self._receiver.turn(self._connection, {each.address: 10 for each in self._entrances}, 0)

    def duplicates(self, flow_id: str) -> list[str | None]:
        return [each.detail for each in self.session.journal.history(flow_id) if each.waypoint == "duplicate"]

    def close(self) -> None:
        self.harness.close()


def _cannot_set_aside(delivery: Delivery) -> bool:
    raise AssertionError(f"nothing is refused here, and {delivery} was")


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture(params=[True, False], ids=["local", "over the broker"])
def two(request: pytest.FixtureRequest, tmp_path: Path, broker: MemoryBroker) -> Iterator[list[Service]]:
    services = [Service("shop", tmp_path, broker, local=request.param), Service("web", tmp_path, broker)]
    yield services
    for each in services:
        each.close()


@pytest.mark.parametrize("start", ["by a stage", "from outside"])
def test_each_subscriber_gets_one_copy(two: list[Service], broker: MemoryBroker, start: str) -> None:
    shop, web = two
    broker.doubling = 4
    if start == "by a stage":
        shop.app.start(shop.app.target("shop.publish"), Price("tea"), flow_id="f1")
    else:
        with shop.app.initiate() as out:
            out.publish(shop.prices, Price("tea"), flow_id="f1")
    for _ in range(3):
        shop.work()
        web.work()
    assert (shop.seen, web.seen) == (["tea"], ["tea"])


def test_a_store_recognises_its_own_publication(two: list[Service]) -> None:
    shop, web = two
    with shop.app.initiate() as out:
        out.publish(shop.prices, Price("tea"), flow_id="f1")

    shop.work()
    assert shop.duplicates("f1") == (["own publication"] if shop.is_local else [])
    web.work()
    assert web.duplicates("f1") == []


def test_a_topic_without_a_subscriber_is_confirmed(tmp_path: Path, broker: MemoryBroker) -> None:
    app = App("alone", database=f"sqlite:///{tmp_path / 'alone.db'}", broker="memory:prices")
    prices = app.topic("prices", Price)
    with app.initiate() as out:
        out.publish(prices, Price("tea"), flow_id="f1")
    engine = engine_of(app)
    with closing(engine.access()) as access:
        dispatcher = Dispatcher(queue_commit_of(engine, access, "dispatcher"), "alone/1", engine.random)
        assert dispatcher.turn(broker.connect(1)) == 1
        last = access.session.journal.history("f1")[-1]
        assert (last.waypoint, last.stage, last.detail) == ("confirmed", "@out/@prices", "no subscriber")
        assert access.session.circuits.paused() == []
