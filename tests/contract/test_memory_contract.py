"""The toy store against the contract, and under a worker: a third party's store, written from the ports alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.runtime.access import Access
from stagepost.testing import ManualClock
from stagepost.testing.contract import StoreContract
from stagepost.testing.contract.liveness import Seen
from stagepost.testing.contract.threads import OneWriterContract
from stagepost.worker.child import EXIT_DRAINED, Plan
from stagepost.worker.process import WorkerProcess
from tests.contract.claiming import ClaimingContract
from tests.toy_store.store import ToyStore

COUNT = 5


@dataclass
class Order:
    number: int


@pytest.fixture
def store() -> ToyStore:
    return ToyStore()


class TestMemoryStore(StoreContract, OneWriterContract):
    @pytest.fixture
    def scribble(self) -> Callable[[Any, str], None]:
        return lambda connection, text: connection.append(text)

    @pytest.fixture
    def scribbles(self, store: ToyStore) -> Callable[[], list[str]]:
        return lambda: list(store.tables.ledger.values())

    @pytest.fixture
    def seen(self, store: ToyStore, clock: ManualClock) -> Seen:
        """Another process cannot see this one."""
        return lambda app: store.liveness(clock).look(app)


class TestClaimingInMemory(ClaimingContract):
    @pytest.fixture
    def make_access(self, store: ToyStore, clock: ManualClock) -> Callable[[], Access]:
        return lambda: Access(store.session(), clock)


def test_a_worker_runs_on_a_store_of_another_package() -> None:
    """The driver is found by the URL's scheme, and no code of ``stagepost.store`` runs."""
    app = App("shop", database="toy:")

    @app.endpoint("orders.place")
    def place(ctx: Context, order: Order) -> None:
        ctx.connection.append(order.number)
        if order.number < COUNT:
            ctx.send(place, Order(order.number + 1))

    store = engine_of(app).store
    assert isinstance(store, ToyStore)
    app.start(place, Order(1), flow_id="order")
    plan = Plan("", threads=2, drain=True, grace_seconds=10.0, supervisor=os.getppid())
    assert WorkerProcess(engine_of(app), plan).run() == EXIT_DRAINED
    assert list(store.tables.ledger.values()) == list(range(1, COUNT + 1))
    assert store.liveness(engine_of(app).clock).look("shop") == []
