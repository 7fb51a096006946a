"""The threads at the edge, over a broker that is away, in an alarm, or another store's."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.broker.memory import MemoryBroker
from stagepost.flow.errors import AddressTaken, StoreUnavailable
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.runtime import edge, edge_services
from stagepost.runtime.access import Access
from stagepost.runtime.edge import broker_of, check_broker
from stagepost.runtime.edge_services import DispatcherService, ReceiverService
from stagepost.runtime.engine import Engine
from stagepost.testing.harness import Harness
from stagepost.worker.child import EXIT_DONE, Plan
from stagepost.worker.edge import EdgeProcess
from tests.waiting import PATIENCE_SECONDS, wait_until


@dataclass
class Order:
    order_id: str


@dataclass
class Receipt:
    order_id: str


def shop(url: str, broker: str) -> App:
    app = App("shop", database=url, broker=broker)
    reserve = app.remote("ledger.reserve", Order, Receipt)
    place = app.staged("shop.place", reply=Receipt)

    @place.stage
    def ask(ctx: Context, order: Order) -> None:
        ctx.request(reserve, order)

    @place.stage
    def answer(ctx: Context, receipt: Receipt) -> Receipt:
        return receipt

    return app


def ledger(url: str, broker: str) -> App:
    app = App("ledger", database=url, broker=broker)

    @app.endpoint("ledger.reserve")
    def reserve(ctx: Context, order: Order) -> Receipt:
        return Receipt(order.order_id)

    return app


class Edge:
    """The two threads of one app, and a harness that runs its stages."""

    def __init__(self, app: App) -> None:
        self.app = app
        engine = engine_of(app)
        broker = broker_of(engine)
        self.harness = Harness(app)
        self.dispatcher = DispatcherService(engine, broker, f"{app.name}/edge", "broker@test:1")
        self.receiver = ReceiverService(engine, broker, "broker@test:1", lambda: self.dispatcher.is_blocked)
        for each in (self.dispatcher, self.receiver):
            each.start()

    def work(self) -> None:
        self.harness.run_one()
        for each in (self.dispatcher, self.receiver):
            assert each.error is None

    def close(self) -> None:
        for each in (self.receiver, self.dispatcher):
            each.stop()
            assert each.join(PATIENCE_SECONDS)
            assert each.error is None
        self.harness.close()
        self.app.close()


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> MemoryBroker:
    url = f"memory:{request.node.name}"
    engine = engine_of(App("broker", broker=url))
    found = broker_driver_of(url).broker(url, engine.clock, engine.random)
    assert isinstance(found, MemoryBroker)
    return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (edge, edge_services):
        monkeypatch.setattr(module, "RECONNECT_SECONDS", 0.01)
    monkeypatch.setattr(edge, "REFUSED_SECONDS", 0.01)


@pytest.fixture
def edges(tmp_path: Path, broker: MemoryBroker) -> Iterator[tuple[Edge, Edge]]:
    made = [Edge(make(f"sqlite:///{tmp_path / make.__name__}.db", broker.url)) for make in (shop, ledger)]
    yield made[0], made[1]
    for each in made:
        each.close()


def receipt_of(edges: tuple[Edge, Edge], flow_id: str) -> Receipt:
    """Request a receipt from the shop at its edge. The reply comes to this process."""
    front = edges[0].app
    future = front.request(front.target("shop.place"), Order(flow_id), flow_id=flow_id)

    def has_come() -> bool:
        for each in edges:
            each.work()
        return "replied" in repr(future)

    wait_until(has_come, f"{flow_id} is answered")
    return future.result(timeout=1)  # type: ignore[no-any-return]


def test_a_request_through_two_services_gets_its_reply(edges: tuple[Edge, Edge]) -> None:
    assert receipt_of(edges, "o1") == Receipt("o1")


def test_a_request_to_another_service_gets_its_reply_over_the_broker(edges: tuple[Edge, Edge]) -> None:
    front = edges[0].app
    future = front.request(front.remote("ledger.reserve", Order, Receipt), Order("o2"), flow_id="o2")

    def has_come() -> bool:
        edges[1].work()
        return "replied" in repr(future)

    wait_until(has_come, "the reply came")
    assert future.result(timeout=1) == Receipt("o2")
    stages = [each.stage for each in edges[1].harness.history("o2")]
    assert f"@out/_replies.{engine_of(front).store_uuid}" in stages


def test_the_edge_comes_back_after_the_broker_was_away(edges: tuple[Edge, Edge], broker: MemoryBroker) -> None:
    receipt_of(edges, "before")
    broker.is_down = True
    broker.cut()
    front = edges[0].app
    future = front.request(front.remote("ledger.reserve", Order, Receipt), Order("away"), flow_id="away")
    wait_until(lambda: edges[0].receiver.quiet_since is None, "the receiver has noticed")
    broker.is_down = False

    def has_come() -> bool:
        edges[1].work()
        return "replied" in repr(future)

    wait_until(has_come, "the reply came after all")


def test_receiving_goes_on_in_an_alarm_and_sending_after_it(edges: tuple[Edge, Edge], broker: MemoryBroker) -> None:
    receipt_of(edges, "before")
    broker.is_blocked = True
    front = edges[0].app
    future = front.request(front.remote("ledger.reserve", Order, Receipt), Order("o1"), flow_id="o1")
    wait_until(lambda: edges[0].dispatcher.is_blocked, "the alarm was seen")
    assert broker.waiting("ledger.reserve") == []
    broker.is_blocked = False

    def has_come() -> bool:
        edges[1].work()
        return "replied" in repr(future)

    wait_until(has_come, "the reply came after the alarm")


def test_a_second_store_is_refused_with_the_remedy(
    edges: tuple[Edge, Edge], broker: MemoryBroker, tmp_path: Path
) -> None:
    receipt_of(edges, "o1")
    other = ledger(f"sqlite:///{tmp_path / 'other.db'}", broker.url)
    with pytest.raises(AddressTaken, match="share one store"):
        check_broker(engine_of(other))


def test_a_broker_that_is_away_lets_the_app_start(tmp_path: Path, broker: MemoryBroker) -> None:
    broker.is_down = True
    check_broker(engine_of(ledger(f"sqlite:///{tmp_path / 'ledger.db'}", broker.url)))


def test_an_outage_is_one_line_each_time(
    edges: tuple[Edge, Edge], broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    receipt_of(edges, "o1")
    broker.is_down = True
    with caplog.at_level(logging.INFO):
        broker.cut()
        wait_until(lambda: edges[0].receiver.quiet_since is None, "the receiver has noticed")
        broker.is_down = False
        receipt_of(edges, "o2")
    events = {getattr(each, "event", None) for each in caplog.records}
    assert "broker-unavailable" in events
    assert all(each.exc_info is None and "\n" not in each.getMessage() for each in caplog.records)


def test_a_database_that_is_away_at_the_start_is_no_error_of_the_process(
    tmp_path: Path, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = shop(f"sqlite:///{tmp_path / 'shop.db'}", broker.url)
    process = EdgeProcess(engine_of(app), Plan("shop", 1, drain=False, grace_seconds=60, supervisor=os.getppid()))
    access = Engine.access

    def access_later(engine: Engine) -> Access:
        if threading.current_thread() is threading.main_thread():
            process.stop()
            raise StoreUnavailable("the database starts up")
        return access(engine)

    monkeypatch.setattr(Engine, "access", access_later)
    assert process.run() == EXIT_DONE
    app.close()
