"""An incarnation's row and its lock in PostgreSQL: who lives, who is paused, who died, and what was running then."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from random import Random
from typing import Any

import psycopg
import pytest

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SystemClock
from stagepost.flow.ids import RandomIds
from stagepost.liveness.detector import LOOKS_MIN, LOST_SECONDS, FailureDetector
from stagepost.liveness.incarnation import registration
from stagepost.ports.liveness import Registration, Running
from stagepost.store.postgres.session import PostgresSession
from stagepost.store.postgres.store import PostgresStore
from stagepost.store.postgres.worker_registry import LOCK_CLASS
from stagepost.testing import ManualClock
from stagepost.testing.contract.givens import a_row, committed
from tests.liveness.scripted_worker import ScriptedWorker, scripted_worker
from tests.servers.postgres import OwnServer
from tests.waiting import wait_until

PAUSED_SECONDS = 10.0


@pytest.fixture
def url(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


@pytest.fixture
def store(url: str) -> PostgresStore:
    return PostgresStore(url)


@pytest.fixture
def foreign(url: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield connection


@pytest.fixture
def session(store: PostgresStore) -> Iterator[PostgresSession]:
    session = store.session()
    yield session
    session.close()


@pytest.fixture
def new_survey(store: PostgresStore, clock: ManualClock) -> Iterator[Callable[..., FailureDetector]]:
    made: list[FailureDetector] = []

    def make(app: str = "bank") -> FailureDetector:
        made.append(FailureDetector(store.liveness(clock), app, clock, paused_after_seconds=PAUSED_SECONDS))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def survey(new_survey: Callable[..., FailureDetector]) -> FailureDetector:
    return new_survey()


def states(survey: FailureDetector) -> dict[str, str]:
    return {found.record.owner: found.state for found in survey.look()}


def control_pid(foreign: psycopg.Connection[Any], *, other_than: int | None = None) -> int:
    """Of the connection that holds the lock."""
    held = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND granted AND database = "
    mine = "(SELECT oid FROM pg_database WHERE datname = current_database())"

    def find() -> int | None:
        row = foreign.execute((held + mine).encode(), (LOCK_CLASS,)).fetchone()
        return row[0] if row is not None and row[0] != other_than else None

    return wait_until(find, "somebody holds the lock") or 0


def beat_of(foreign: psycopg.Connection[Any]) -> int:
    row = foreign.execute("SELECT beat FROM stagepost_incarnation").fetchone()
    assert row is not None
    return int(row[0])


def moved_on(foreign: psycopg.Connection[Any]) -> None:
    """Returns after the next heartbeat but one: a whole round of the heart."""
    before = beat_of(foreign)
    wait_until(lambda: beat_of(foreign) > before + 1, "the heart beats")


def claimed(session: PostgresSession, owner: str, *, rows: int) -> list[Claim]:
    """In as many transactions as there are rows, so that the order of the claims is not that of the ids."""
    with committed(session):
        session.queue.enqueue([a_row(f"m{n}", origin_at=rows - n) for n in range(rows)])
    claims = []
    for _ in range(rows):
        with committed(session):
            claims += session.queue.claim(["pay"], 1, owner, 0)
    return claims


def test_where_nobody_is_there_is_nobody(survey: FailureDetector) -> None:
    assert survey.look() == []


@pytest.mark.more
def test_a_living_one_is_alive_for_as_long_as_its_heart_beats(
    url: str, survey: FailureDetector, clock: ManualClock, foreign: psycopg.Connection[Any]
) -> None:
    with scripted_worker(url) as worker:
        for _ in range(LOOKS_MIN + 1):
            assert states(survey) == {worker.owner: "alive"}
            clock.advance(PAUSED_SECONDS + 1)
            moved_on(foreign)
        (found,) = survey.look()
        assert (found.record.process, found.record.node) == (worker.pid, "scripted@here")


def test_one_that_was_killed_is_dead_at_once_on_this_machine(
    url: str, survey: FailureDetector, session: PostgresSession
) -> None:
    with scripted_worker(url) as worker:
        (claim,) = claimed(session, worker.owner, rows=1)
        assert states(survey) == {worker.owner: "alive"}
        worker.kill()
        # The clock stands still: nobody waits for a heartbeat.
        wait_until(lambda: states(survey) == {worker.owner: "dead"}, "it is seen to be dead")
        (found,) = survey.look()
        assert found.record.running == (Running("running", claim.row, claim.deliveries),)


def test_one_that_was_killed_on_another_machine_is_dead_once_its_lock_was_free_for_a_while(
    url: str, survey: FailureDetector, clock: ManualClock, foreign: psycopg.Connection[Any]
) -> None:
    with scripted_worker(url) as worker:
        foreign.execute("UPDATE stagepost_incarnation SET host = 'elsewhere'")
        pid = control_pid(foreign)
        worker.kill()
        wait_until(
            lambda: foreign.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is None,
            "the server notices",
        )
        for _ in range(LOOKS_MIN + 1):
            assert states(survey) == {worker.owner: "alive"}
        clock.advance(LOST_SECONDS + 1)
        assert states(survey) == {worker.owner: "dead"}


def test_one_that_is_stopped_is_paused_and_alive_again_when_it_goes_on(
    url: str, survey: FailureDetector, clock: ManualClock, foreign: psycopg.Connection[Any]
) -> None:
    with scripted_worker(url) as worker:
        assert states(survey) == {worker.owner: "alive"}
        worker.signal(signal.SIGSTOP)

        def is_paused() -> bool:
            # What it sent before it was stopped may still move its heart.
            clock.advance(PAUSED_SECONDS + 1)
            return states(survey) == {worker.owner: "paused"}

        wait_until(is_paused, "its heart is seen to stand still")
        worker.signal(signal.SIGCONT)
        wait_until(lambda: states(survey) == {worker.owner: "alive"}, "its heart beats again")


@pytest.mark.more
def test_one_that_lost_its_connection_comes_back_and_is_never_taken_for_dead(
    url: str, survey: FailureDetector, clock: ManualClock, foreign: psycopg.Connection[Any]
) -> None:
    with scripted_worker(url) as worker:
        for _ in range(2):
            before = control_pid(foreign)
            assert states(survey) == {worker.owner: "alive"}
            foreign.execute("SELECT pg_terminate_backend(%s, 60000)", (before,))
            for _ in range(LOOKS_MIN + 1):
                assert states(survey) == {worker.owner: "alive"}
            control_pid(foreign, other_than=before)
            for _ in range(LOOKS_MIN + 1):
                clock.advance(LOST_SECONDS + 1)
                moved_on(foreign)
                assert states(survey) == {worker.owner: "alive"}


@pytest.mark.more
def test_one_whose_old_connection_still_holds_the_lock_asks_for_it_until_it_is_free(
    url: str, survey: FailureDetector, clock: ManualClock, foreign: psycopg.Connection[Any]
) -> None:
    """The server has not noticed yet that the connection was lost on its way."""
    with scripted_worker(url) as worker, closing(psycopg.connect(url, autocommit=True)) as zombie:
        (found,) = survey.look()
        pid = control_pid(foreign)
        worker.signal(signal.SIGSTOP)
        foreign.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))
        zombie.execute("SELECT pg_advisory_lock(%s, %s::int)", (LOCK_CLASS, found.record.key))
        worker.signal(signal.SIGCONT)
        # Its heart is seen to beat meanwhile.
        for _ in range(LOOKS_MIN + 1):
            moved_on(foreign)
            clock.advance(PAUSED_SECONDS + 1)
            assert states(survey) == {worker.owner: "alive"}
        zombie_pid = zombie.info.backend_pid
        zombie.close()
        control_pid(foreign, other_than=zombie_pid)
        for _ in range(LOOKS_MIN + 1):
            moved_on(foreign)
            clock.advance(LOST_SECONDS + 1)
            assert states(survey) == {worker.owner: "alive"}


def test_one_that_was_taken_for_dead_meanwhile_enters_again(
    url: str, survey: FailureDetector, foreign: psycopg.Connection[Any]
) -> None:
    with scripted_worker(url) as worker:
        pid = control_pid(foreign)
        (found,) = survey.look()
        worker.signal(signal.SIGSTOP)
        foreign.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))
        survey.forget(found)
        assert survey.look() == []
        worker.signal(signal.SIGCONT)
        wait_until(lambda: states(survey) == {worker.owner: "alive"}, "it is there again")


@pytest.mark.more
@pytest.mark.parametrize("how", [pytest.param("fast", marks=pytest.mark.soak), "immediate"])
def test_a_server_that_starts_again_makes_nobody_dead(mortal_postgres: OwnServer, clock: ManualClock, how: str) -> None:
    url = mortal_postgres.new_database()
    store = PostgresStore(url)
    with scripted_worker(url) as worker:
        mortal_postgres.stop(how)
        mortal_postgres.start()
        with closing(
            FailureDetector(store.liveness(clock), "bank", clock, paused_after_seconds=PAUSED_SECONDS)
        ) as survey:
            for _ in range(LOOKS_MIN + 1):
                assert states(survey) == {worker.owner: "alive"}
            with closing(psycopg.connect(url, autocommit=True)) as foreign:
                control_pid(foreign)
                for _ in range(LOOKS_MIN + 1):
                    clock.advance(LOST_SECONDS + 1)
                    moved_on(foreign)
                    assert states(survey) == {worker.owner: "alive"}


# What was running


def running(survey: FailureDetector, worker: ScriptedWorker) -> tuple[Running, ...]:
    (found,) = [each for each in survey.look() if each.record.owner == worker.owner]
    return found.record.running


def test_what_runs_is_the_first_of_what_is_held_in_the_order_of_the_claims_as_much_as_it_runs_at_a_time(
    url: str, survey: FailureDetector, session: PostgresSession
) -> None:
    with scripted_worker(url, slots=3) as worker:
        claims = claimed(session, worker.owner, rows=5)
        rows = [claim.row for claim in claims]
        assert rows == sorted(rows, reverse=True)
        assert [each.row for each in running(survey, worker)] == rows[:3]
        with committed(session):
            session.queue.remove(claims[1])
            session.queue.release(claims[3])
        assert [each.row for each in running(survey, worker)] == [rows[0], rows[2], rows[4]]
        with committed(session):
            (again,) = session.queue.claim(["pay"], 1, worker.owner, 0)
            session.queue.remove(claims[0])
        assert running(survey, worker) == (
            Running("running", rows[2], 1),
            Running("running", rows[4], 1),
            Running("running", again.row, 2),
        )


def test_which_of_a_batch_ran_is_not_known_but_for_what_was_said_of_it(
    url: str, survey: FailureDetector, session: PostgresSession, clock: ManualClock
) -> None:
    """What is claimed for the second time runs alone, beside it."""
    entered = registration("bank", "here", RandomIds(clock, Random(0)), clock, slots=2, batched=["pay"])
    with closing(PostgresStore(url).liveness(clock).enter(entered)) as row:
        first, second, third = claimed(session, row.owner, rows=3)
        with committed(session):
            session.queue.release(third)
            (again,) = session.queue.claim(["pay"], 1, row.owner, 0)

        def running() -> tuple[Running, ...]:
            (found,) = survey.look()
            return found.record.running

        assert running() == (Running("running", again.row, 2),)
        row.note(0, second)
        row.time_out(0)
        assert running() == (Running("timed-out", second.row, 1), Running("running", again.row, 2))
        assert session.queue.holds(first)


def test_how_it_ended_is_written_before_it_may_be_taken_over(
    url: str, survey: FailureDetector, session: PostgresSession
) -> None:
    with scripted_worker(url, slots=3) as worker:
        claims = claimed(session, worker.owner, rows=3)
        for slot, claim in enumerate(claims):
            worker.told("note", slot, claim.row, claim.deliveries)
        worker.told("time_out", 0)
        worker.told("abandon")
        worker.kill()
        assert [each.state for each in running(survey, worker)] == ["timed-out", "abandoned", "abandoned"]


def test_who_abandons_what_he_runs_abandons_what_he_has_not_begun_as_well(
    url: str, survey: FailureDetector, session: PostgresSession
) -> None:
    """It is among the first that he holds, where one of his slots has just settled what it ran."""
    with scripted_worker(url, slots=2) as worker:
        first, second, third = claimed(session, worker.owner, rows=3)
        worker.told("note", 0, first.row, first.deliveries)
        worker.told("note", 1, second.row, second.deliveries)
        with committed(session):
            session.queue.take(second)
        worker.told("abandon")
        worker.kill()
        assert running(survey, worker) == (Running("abandoned", first.row, 1), Running("abandoned", third.row, 1))


def test_how_one_attempt_ended_says_nothing_of_the_next(
    url: str, survey: FailureDetector, session: PostgresSession
) -> None:
    with scripted_worker(url) as worker:
        (claim,) = claimed(session, worker.owner, rows=1)
        worker.told("note", 0, claim.row, claim.deliveries)
        worker.told("time_out", 0)
        with committed(session):
            session.queue.release(claim)
        with committed(session):
            (again,) = session.queue.claim(["pay"], 1, worker.owner, 0)
        assert running(survey, worker) == (Running("running", again.row, 2),)


# Coming and going


def test_closing_removes_the_row_and_frees_the_lock(url: str, survey: FailureDetector) -> None:
    with scripted_worker(url) as worker:
        assert states(survey) == {worker.owner: "alive"}
        worker.told("close")
        assert survey.look() == []


def test_closing_one_whose_connection_was_lost_removes_the_row_all_the_same(
    store: PostgresStore, survey: FailureDetector, clock: ManualClock, ids: RandomIds, foreign: psycopg.Connection[Any]
) -> None:
    incarnation = store.liveness(clock).enter(registration("bank", "here", ids, clock))
    foreign.execute("SELECT pg_terminate_backend(%s, 60000)", (control_pid(foreign),))
    incarnation.close()
    assert survey.look() == []


def test_nobody_sees_one_that_lives_and_is_not_locked(store: PostgresStore, survey: FailureDetector) -> None:
    """The lock comes first, and the row after it."""
    lives = store.liveness(SystemClock())
    seen: list[dict[str, str]] = []
    run = lives._run

    def looked_at(name: str, parameters: Any = ()) -> Any:
        found = run(name, parameters)
        seen.append({each.record.owner: each.state for each in survey.look()})
        assert all(each.is_locked for each in survey._registry.look("bank"))
        return found

    lives._run = looked_at  # type: ignore[method-assign]
    lives.add_row(Registration("bank", "bank/1", "here", "elsewhere", 1, 1, 0, []))
    assert seen == [{}, {}, {"bank/1": "alive"}]
    lives.close()


def test_a_number_that_somebody_still_has_is_passed_over(
    store: PostgresStore, foreign: psycopg.Connection[Any]
) -> None:
    """After all numbers were used they begin anew."""
    first, second = store.liveness(SystemClock()), store.liveness(SystemClock())
    number = first.add_row(Registration("bank", "bank/1", "here", "elsewhere", 1, 1, 0, []))
    foreign.execute("SELECT setval(pg_get_serial_sequence('stagepost_incarnation', 'id'), %s, false)", (number,))
    assert second.add_row(Registration("bank", "bank/2", "here", "elsewhere", 1, 1, 0, [])) != number
    assert len(second.look("bank")) == 2
    first.close()
    second.close()


def test_forgetting_removes_the_row_and_may_be_done_by_two(url: str, survey: FailureDetector) -> None:
    with scripted_worker(url) as worker:
        worker.kill()
        wait_until(lambda: states(survey) == {worker.owner: "dead"}, "it is seen to be dead")
        (found,) = survey.look()
        survey.forget(found)
        survey.forget(found)
        assert survey.look() == []


def test_one_that_has_come_back_meanwhile_is_not_forgotten(url: str, survey: FailureDetector) -> None:
    """It would live on, and be seen by nobody."""
    with scripted_worker(url) as worker:
        (found,) = survey.look()
        survey.forget(found)
        assert states(survey) == {worker.owner: "alive"}


def test_other_apps_are_not_looked_at_also_where_their_names_begin_alike(
    url: str, new_survey: Callable[..., FailureDetector]
) -> None:
    with scripted_worker(url, "bank") as ours, scripted_worker(url, "bank2") as theirs:
        assert states(new_survey("bank")) == {ours.owner: "alive"}
        assert states(new_survey("bank2")) == {theirs.owner: "alive"}
        assert len(new_survey("*").look()) == 2


def test_a_lock_of_somebody_elses_or_in_another_database_is_not_the_incarnations(
    url: str, survey: FailureDetector, new_postgres: Callable[[], str]
) -> None:
    with (
        scripted_worker(url) as worker,
        closing(psycopg.connect(url)) as same,
        closing(psycopg.connect(new_postgres())) as other,
    ):
        (found,) = survey.look()
        same.execute("SELECT pg_advisory_lock(%s), pg_advisory_lock(1, %s::int)", (found.record.key, found.record.key))
        other.execute("SELECT pg_advisory_lock(%s, %s::int)", (LOCK_CLASS, found.record.key))
        worker.kill()
        wait_until(lambda: states(survey) == {worker.owner: "dead"}, "it is seen to be dead")
