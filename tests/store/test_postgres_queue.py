"""What PostgreSQL's queue does beside what every queue does: the low-water mark of a slow claim, and what is being
worked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import StoreError
from stagepost.flow.ids import RandomIds
from stagepost.liveness.incarnation import registration
from stagepost.observe.status import read_status
from stagepost.runtime.access import Access
from stagepost.store.postgres.low_water import PAUSE_SECONDS_MAX, SLOW_MIN, SLOW_SECONDS
from stagepost.store.postgres.session import PostgresSession
from stagepost.store.postgres.store import PostgresStore
from stagepost.testing.contract.givens import NOW, a_row, committed
from tests.waiting import wait_until


class SlowClock:
    """Time passes whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 100.0
        self.step = 2 * SLOW_SECONDS

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def store(new_postgres: Callable[[], str]) -> PostgresStore:
    return PostgresStore(new_postgres())


@pytest.fixture
def session(store: PostgresStore) -> Iterator[PostgresSession]:
    session = store.session()
    yield session
    session.close()


@pytest.fixture
def clock(session: PostgresSession, monkeypatch: pytest.MonkeyPatch) -> SlowClock:
    clock = SlowClock()
    monkeypatch.setattr(session.queue._low_water, "monotonic", clock)
    return clock


def put(session: PostgresSession, message_id: str, *, age: int) -> None:
    with committed(session):
        session.queue.enqueue([a_row(message_id, origin_at=NOW - age)])


def claimed(session: PostgresSession, limit: int = 1) -> list[str]:
    if not session.queue.look(["pay"], NOW).messages:
        return []
    with committed(session):
        return [claim.message_id for claim in session.queue.claim(["pay"], limit, "w1", 0)]


def slowed(session: PostgresSession) -> None:
    """Claims one by one until the queue knows that they are slow, and leaves two to be claimed."""
    for number in range(SLOW_MIN + 2):
        put(session, f"m{number}", age=100 - number)
    assert [claimed(session) for _ in range(SLOW_MIN)] == [[f"m{n}"] for n in range(SLOW_MIN)]


def test_slow_claims_begin_where_the_last_one_ended(session: PostgresSession, clock: SlowClock) -> None:
    slowed(session)
    put(session, "older", age=1_000)
    assert claimed(session) == [f"m{SLOW_MIN}"]


def test_what_came_in_below_the_mark_is_found_by_the_next_sweep(session: PostgresSession, clock: SlowClock) -> None:
    slowed(session)
    put(session, "older", age=1_000)
    clock.now += PAUSE_SECONDS_MAX
    assert claimed(session) == ["older"]


def test_what_came_in_below_the_mark_is_not_looked_for_whenever_nothing_else_is_there(
    session: PostgresSession, clock: SlowClock
) -> None:
    """It would be all that a worker that waits does."""
    slowed(session)
    put(session, "older", age=1_000)
    assert claimed(session, 3) == [f"m{SLOW_MIN}", f"m{SLOW_MIN + 1}"]
    clock.step = 0.0
    assert [claimed(session) for _ in range(3)] == [[], [], []]
    clock.now += PAUSE_SECONDS_MAX
    assert claimed(session) == ["older"]


def test_claims_that_are_fast_again_are_in_order_again(session: PostgresSession, clock: SlowClock) -> None:
    slowed(session)
    clock.step = 0.0
    clock.now += PAUSE_SECONDS_MAX
    assert claimed(session) == [f"m{SLOW_MIN}"]
    put(session, "older", age=1_000)
    assert claimed(session) == ["older"]


def test_what_is_worked_at_is_still_owned_and_shown_as_running_and_not_unattended(store: PostgresStore) -> None:
    clock = SystemClock()
    worker, looker = Access(store.session(), clock), Access(store.session(), clock)
    incarnation = store.liveness(clock).enter(registration("shop", "worker@here:1", RandomIds(clock, Random(0)), clock))
    put(worker.session, "m1", age=0)  # type: ignore[arg-type]
    (claim,) = worker.claimer.claim(["pay"], 1, incarnation.owner, "worker@here:1")
    worker.session.begin()
    assert worker.session.queue.remove(claim)
    assert looker.session.queue.owned(incarnation.owner) == [claim]
    assert looker.session.queue.owned(incarnation.owner, is_unattended=True) == []
    (shown,) = read_status(store, looker, clock).workers
    assert (shown.state, shown.running) == ("alive", 1)
    worker.session.rollback()
    assert looker.session.queue.owned(incarnation.owner, is_unattended=True) == [claim]
    incarnation.close()
    worker.session.close()
    looker.session.close()


def test_the_transaction_in_which_a_paused_owner_stands_still_is_ended_and_no_other(store: PostgresStore) -> None:
    clock = SystemClock()
    paused, other, looker = (Access(store.session(), clock) for _ in range(3))
    for each, name in ((paused, "m1"), (other, "m2")):
        put(each.session, name, age=0)  # type: ignore[arg-type]
        (claim,) = each.claimer.claim(["pay"], 1, f"shop/{name}", "worker@here:1")
        each.session.begin()
        assert each.session.queue.remove(claim)
    assert looker.session.queue.owned("shop/m1", is_unattended=True) == []
    wait_until(
        lambda: looker.session.queue.owned("shop/m1", is_paused=True, is_unattended=True), "its transaction was ended"
    )
    with pytest.raises(StoreError, match="terminating connection"):
        paused.session.commit()
    other.session.commit()
    assert looker.session.queue.owned("shop/m2") == []
    for each in (paused, other, looker):
        each.session.close()
