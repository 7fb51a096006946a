"""``app.request``: a wait in vain says whether a worker lived that could have replied."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from stagepost import App, Context, ReplyFuture, ReplyTimeout, Target
from stagepost.app.app import engine_of
from stagepost.runtime.declarations import declare_stages
from stagepost.store.sqlite.store import SqliteStore, lives_of
from stagepost.testing import Harness, ManualClock
from tests.liveness.scripted_worker import scripted_worker
from tests.toy_store.store import ToyStore
from tests.waiting import PATIENCE_SECONDS, wait_until

IN_EVERY_MODE = True

Worker = Callable[[str], AbstractContextManager[object]]


@dataclass
class Number:
    value: int


@pytest.fixture
def double(app: App) -> Iterator[Target[Number, Number]]:
    if isinstance(engine_of(app).store, ToyStore):
        pytest.skip("a memory store has no workers")

    @app.endpoint("double")
    def double(ctx: Context, number: Number) -> Number:
        return Number(number.value * 2)

    yield double
    app.close()


@pytest.fixture
def worker(app: App) -> Worker:
    """A process that works for an app of that name, while the block lasts."""

    def living(name: str) -> AbstractContextManager[object]:
        store = engine_of(app).store
        return scripted_worker(lives_of(store.path) if isinstance(store, SqliteStore) else store.address, name)

    return living


@pytest.fixture
def look(app: App, double: Target[Number, Number], clock: ManualClock) -> Callable[[], None]:
    """Let time go on until the listener has looked at the workers, all of it after now."""
    remote = app.remote("nobody.declares.this", Number, Number)
    seen = [0]

    def wait() -> None:
        seen[0] += 1
        probe = app.request(remote, Number(0), flow_id=f"probe:{seen[0]}")

        def has_looked() -> bool:
            clock.advance(1)
            return bool(probe.unattended)

        wait_until(has_looked, "it has looked")

    return wait


def error_text(asked: ReplyFuture[Number]) -> str:
    with pytest.raises(ReplyTimeout) as caught:
        asked.result(0)
    return re.sub(r"\d\d:\d\d:\d\d", "12:00:00", str(caught.value))


def test_where_no_worker_lives_the_timeout_says_so(
    app: App, double: Target[Number, Number], look: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    declare_stages(engine_of(app))
    asked = app.request(double, Number(1), flow_id="flow")
    look()
    look()
    lines = [each.getMessage() for each in caplog.records if getattr(each, "event", "") == "no-worker"]
    why = "no worker of app 'shop', which declares it, was alive"
    assert lines.count(f"request to double has no worker: {why}") == 1
    assert error_text(asked) == (
        f"double did not reply within 0 s in flow 'flow'. At 12:00:00 UTC {why}. Start a worker: stagepost worker "
        "MODULE:APP. The flow itself goes on, unless it has ended in a dead letter; its reply will be journalled as "
        "expired. See: stagepost trace flow"
    )


def test_where_no_app_declares_the_target_the_timeout_says_so(
    app: App, double: Target[Number, Number], look: Callable[[], None]
) -> None:
    asked = app.request(double, Number(1), flow_id="flow")
    look()
    assert "At 12:00:00 UTC no app had declared it in this store. Start a worker" in error_text(asked)


def test_where_a_worker_lives_the_timeout_says_nothing_of_workers(
    app: App, double: Target[Number, Number], look: Callable[[], None], worker: Worker
) -> None:
    declare_stages(engine_of(app))
    with worker("shop"):
        asked = app.request(double, Number(1), flow_id="flow")
        look()
        assert "worker" not in error_text(asked)


def test_a_worker_of_another_app_is_none_that_could_reply(
    app: App, double: Target[Number, Number], look: Callable[[], None], worker: Worker
) -> None:
    declare_stages(engine_of(app))
    with worker("bank"):
        asked = app.request(double, Number(1), flow_id="flow")
        look()
        assert "no worker of app 'shop'" in error_text(asked)


def test_a_worker_that_comes_while_somebody_waits_is_seen(
    app: App, double: Target[Number, Number], look: Callable[[], None], worker: Worker
) -> None:
    declare_stages(engine_of(app))
    asked, other = (app.request(double, Number(1), flow_id=f"flow:{n}") for n in range(2))
    look()
    assert "no worker" in error_text(asked)
    with worker("shop"):
        look()
        assert "worker" not in error_text(other)


def test_a_wait_that_is_answered_soon_costs_no_look_at_the_workers(
    app: App, double: Target[Number, Number], harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = app.request(double, Number(1), flow_id="flow")
    monkeypatch.setattr("stagepost.edge.looks.Attendance._missing", lambda self, addresses: pytest.fail("looked"))
    harness().drain()
    assert asked.result(PATIENCE_SECONDS) == Number(2)
