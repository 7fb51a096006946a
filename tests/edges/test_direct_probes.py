"""A direct stage that is paused: the store probes it, because only claims know of pauses."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.broker.memory import MemoryBroker
from stagepost.flow.clock import SystemClock
from stagepost.ports.broker import Publication
from stagepost.ports.circuits import CircuitBreaker, Pause
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import committed
from stagepost.worker.child import Plan
from stagepost.worker.process import WorkerProcess
from tests.edges.direct_service import broker_named
from tests.edges.test_receiving import an_envelope
from tests.waiting import PATIENCE_SECONDS, wait_until

STAGE = "shop.pay"


@dataclass
class Order:
    order_id: str


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> MemoryBroker:
    return broker_named(f"memory:{request.node.name}", is_atomic=False)


@pytest.fixture
def app(broker: MemoryBroker, tmp_path: Path) -> Iterator[App]:
    app = App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}", broker=broker.url)
    yield app
    app.close()


def pause(session: Session) -> None:
    now = SystemClock().now()
    with committed(session):
        session.circuits.lock(STAGE)
        session.circuits.keep(CircuitBreaker(STAGE, pause=Pause(now, now)))


def test_a_message_of_a_paused_direct_stage_that_waits_at_the_broker_ends_the_pause(
    app: App, broker: MemoryBroker
) -> None:
    @app.endpoint(STAGE, mode="best_effort")
    def pay(ctx: Context, order: Order) -> None: ...

    engine = engine_of(app)
    with closing(engine.access()) as access, closing(broker.connect(PATIENCE_SECONDS)) as connection:
        pause(access.session)
        connection.prepare([STAGE], engine.store_uuid)
        body = an_envelope("m1", '{"order_id":"m1"}', to=STAGE)
        assert connection.publish([Publication(STAGE, "m1", body, {})], PATIENCE_SECONDS) == ["confirmed"]
        process = WorkerProcess(engine, Plan("", threads=1, drain=False, grace_seconds=10.0, supervisor=os.getppid()))
        worker = threading.Thread(target=process.run, name="worker", daemon=True)
        worker.start()

        def waypoints() -> list[str]:
            return [each.waypoint for each in access.session.journal.history("flow-m1")]

        try:
            wait_until(lambda: "committed" in waypoints(), "the message is handled")
        finally:
            process.stop()
            worker.join(PATIENCE_SECONDS)
        assert not worker.is_alive()
        assert access.session.circuits.paused() == []
        # A claim took it, and no thread ran it from the broker.
        assert waypoints() == ["arrived", "received", "committed"]
