"""The thread of a worker that counts hours and purges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.flow.clock import HOUR
from stagepost.ports.retention import FIRST
from stagepost.ports.session import Session
from stagepost.runtime.purge_service import PurgeService, rest_seconds
from stagepost.testing import ManualClock
from stagepost.testing.contract.givens import NOW, an_acceptance, committed
from stagepost.transaction.retention import Rules
from tests.waiting import PATIENCE_SECONDS, wait_until


@dataclass
class Order:
    number: int


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}", clock=ManualClock(NOW + 30 * HOUR))

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    return app


@pytest.fixture
def session(app: App) -> Iterator[Session]:
    with closing(engine_of(app).store.session()) as session, committed(session):
        session.accepted.accept([an_acceptance("old")])
        for hour in range(30):
            session.retention.count_hour(NOW + hour * HOUR)
    with closing(engine_of(app).store.session()) as session:
        yield session


def ids(session: Session) -> list[str]:
    return [each.key for each in session.retention.old_ids("pay", 1000, FIRST, 1000)]


def test_it_counts_the_hour_and_then_purges(app: App, session: Session) -> None:
    service = PurgeService(engine_of(app), Rules({"@initiations": 24}))
    service.start()
    wait_until(lambda: not ids(session), "the old id is purged")
    service.stop()
    assert service.join(PATIENCE_SECONDS)
    assert service.error is None
    assert session.retention.hours() == 31


def test_an_hour_that_another_process_counted_is_purged_by_that_process(app: App, session: Session) -> None:
    with committed(session):
        session.retention.count_hour(engine_of(app).clock.now())
    service = PurgeService(engine_of(app), Rules({"@initiations": 24}))
    service.stop()
    service.start()
    assert service.join(PATIENCE_SECONDS)
    assert service.error is None
    assert ids(session) == ["old"]


def test_a_purge_takes_a_twentieth_of_the_time_and_a_tenth_if_an_hour_is_too_short() -> None:
    assert 0.1 / (0.1 + rest_seconds(0.1, 60)) == pytest.approx(1 / 20)
    assert 0.1 / (0.1 + rest_seconds(0.1, 3_600)) == pytest.approx(1 / 10)
    assert rest_seconds(60, 60) == 30
