"""The thread that keeps house for a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.flow.errors import StoreUnavailable
from stagepost.ports.liveness import Incarnation
from stagepost.runtime.access import Access
from stagepost.runtime.housekeeper import Housekeeper
from stagepost.runtime.prefetch import Prefetcher
from stagepost.testing import ManualClock
from tests.waiting import wait_until


@dataclass
class Order:
    number: int


@pytest.fixture
def app(tmp_path: Path, clock: ManualClock) -> Iterator[App]:
    """Its clock stands still: what is done is done at once."""
    with_work = App("shop", database=f"sqlite:///{tmp_path}/shop.db", clock=clock)

    @with_work.endpoint("shop.order")
    def order(ctx: Context, message: Order) -> None: ...

    with_work.start(order, Order(1), flow_id="o1")
    yield with_work
    with_work.close()


@pytest.fixture
def incarnation(app: App) -> Iterator[Incarnation]:
    incarnation = engine_of(app).incarnate("shop@here")
    yield incarnation
    incarnation.close()


@pytest.fixture
def housekeeper(app: App, incarnation: Incarnation) -> Housekeeper:
    prefetcher = Prefetcher(engine_of(app).batches(), incarnation.owner, "shop@here", 1, engine_of(app).clock)
    return Housekeeper(engine_of(app), [prefetcher], incarnation, "shop@here")


class Away:
    """A database that cannot be opened for a while."""

    def __init__(self, app: App, times: int) -> None:
        self._access = engine_of(app).access
        self._times = times
        self.asked = 0

    def __call__(self) -> Access:
        self.asked += 1
        if self.asked <= self._times:
            raise StoreUnavailable("nobody answers")
        return self._access()


def test_a_database_that_is_away_when_it_begins_is_waited_for(
    app: App, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_of(app), "access", Away(app, times=2))
    housekeeper.start()
    wait_until(
        lambda: housekeeper.sees_work(housekeeper._prefetchers[0]) or housekeeper.error, "it looks after the queue"
    )
    assert housekeeper.error is None
    assert housekeeper.finish()


def test_it_can_be_told_to_stop_while_it_waits_for_the_database(
    app: App, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Away(app, times=1_000_000)
    monkeypatch.setattr(engine_of(app), "access", away)
    housekeeper.start()
    wait_until(lambda: away.asked or housekeeper.error, "it has asked")
    assert housekeeper.finish()
    assert housekeeper.error is None
