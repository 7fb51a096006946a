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
from stagepost.flow.ids import RandomIds
from stagepost.flow.lives import Registration
from stagepost.liveness.incarnation import Running
from stagepost.liveness.lock_row import LOST_SECONDS, LockRow, LockRowSurvey
from stagepost.liveness.survey import LOOKS_MIN
from stagepost.store.postgres.lives import LOCK_CLASS
from stagepost.store.postgres.session import PostgresSession
from stagepost.store.postgres.store import PostgresStore
from stagepost.testing import ManualClock
from stagepost.testing.contract.givens import a_row, committed
from tests.faults.waiting import wait_until
from tests.liveness.row_lodger import RowLodger, row_lodging
from tests.servers.postgres import OwnServer

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
def new_survey(store: PostgresStore, clock: ManualClock) -> Iterator[Callable[..., LockRowSurvey]]:
    made: list[LockRowSurvey] = []

    def make(app: str = "bank") -> LockRowSurvey:
        made.append(LockRowSurvey(store.lives(), app, clock, PAUSED_SECONDS))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def survey(new_survey: Callable[..., LockRowSurvey]) -> LockRowSurvey:
    return new_survey()


def states(survey: LockRowSurvey) -> dict[str, str]:
    return {found.record.header.owner: found.state for found in survey.look()}


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
            claims += session.queue.claim(["pay"], 1, owner)
    return claims


def test_where_nobody_is_there_is_nobody(survey: LockRowSurvey) -> None:
    assert survey.look() == []


@pytest.mark.more
def test_a_living_one_is_alive_for_as_long_as_its_heart_beats(
    url: str, survey: LockRowSurvey, clock: ManualClock, foreign: psycopg.Connection[Any]
) -> None:
    with row_lodging(url) as lodger:
        for _ in range(LOOKS_MIN + 1):
            assert states(survey) == {lodger.owner: "alive"}
            clock.advance(PAUSED_SECONDS + 1)
            moved_on(foreign)
        (found,) = survey.look()
        assert (found.record.header.process, found.record.header.node) == (lodger.pid, "lodger@here")


def test_one_that_was_killed_is_dead_at_once_on_this_machine(
    url: str, survey: LockRowSurvey, session: PostgresSession
) -> None:
    with row_lodging(url) as lodger:
        (claim,) = claimed(session, lodger.owner, rows=1)
        assert states(survey) == {lodger.owner: "alive"}
        lodger.kill()
        # The clock stands still: nobody waits for a heartbeat.
        wait_until(lambda: states(survey) == {lodger.owner: "dead"}, "it is seen to be dead")
        (found,) = survey.look()
        assert found.record.running == (Running("running", claim.row, claim.deliveries),)


def test_one_that_was_killed_on_another_machine_is_dead_once_its_lock_was_free_for_a_while(
    url: str, survey: LockRowSurvey, clock: ManualClock, foreign: psycopg.Connection[Any]
) -> None:
    with row_lodging(url) as lodger:
        foreign.execute("UPDATE stagepost_incarnation SET host = 'elsewhere'")
        pid = control_pid(foreign)
        lodger.kill()
        wait_until(
            lambda: foreign.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is None,
            "the server notices",
        )
        for _ in range(LOOKS_MIN + 1):
            assert states(survey) == {lodger.owner: "alive"}
        clock.advance(LOST_SECONDS + 1)
        assert states(survey) == {lodger.owner: "dead"}


def test_one_that_is_stopped_is_paused_and_alive_again_when_it_goes_on(
    url: str, survey: LockRowSurvey, clock: ManualClock, foreign: psycopg.Connection[Any]
) -> None:
    with row_lodging(url) as lodger:
        assert states(survey) == {lodger.owner: "alive"}
        lodger.signal(signal.SIGSTOP)

        def is_paused() -> bool:
            # What it sent before it was stopped may still move its heart.
            clock.advance(PAUSED_SECONDS + 1)
            return states(survey) == {lodger.owner: "paused"}

        wait_until(is_paused, "its heart is seen to stand still")
        lodger.signal(signal.SIGCONT)
        wait_until(lambda: states(survey) == {lodger.owner: "alive"}, "its heart beats again")


@pytest.mark.more
def test_one_that_lost_its_connection_comes_back_and_is_never_taken_for_dead(
    url: str, survey: LockRowSurvey, clock: ManualClock, foreign: psycopg.Connection[Any]
) -> None:
    with row_lodging(url) as lodger:
        for _ in range(2):
            before = control_pid(foreign)
            assert states(survey) == {lodger.owner: "alive"}
            foreign.execute("SELECT pg_terminate_backend(%s, 60000)", (before,))
            for _ in range(LOOKS_MIN + 1):
                assert states(survey) == {lodger.owner: "alive"}
            control_pid(foreign, other_than=before)
            for _ in range(LOOKS_MIN + 1):
                clock.advance(LOST_SECONDS + 1)
                moved_on(foreign)
                assert states(survey) == {lodger.owner: "alive"}


@pytest.mark.more
def test_one_whose_old_connection_still_holds_the_lock_asks_for_it_until_it_is_free(
    url: str, survey: LockRowSurvey, clock: ManualClock, foreign: psycopg.Connection[Any]
) -> None:
    """The server has not noticed yet that the connection was lost on its way."""
    with row_lodging(url) as lodger, closing(psycopg.connect(url, autocommit=True)) as zombie:
        (found,) = survey.look()
        pid = control_pid(foreign)
        lodger.signal(signal.SIGSTOP)
        foreign.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))
        zombie.execute("SELECT pg_advisory_lock(%s, %s::int)", (LOCK_CLASS, found.key))
        lodger.signal(signal.SIGCONT)
        # Its heart is seen to beat meanwhile.
        for _ in range(LOOKS_MIN + 1):
            moved_on(foreign)
            clock.advance(PAUSED_SECONDS + 1)
            assert states(survey) == {lodger.owner: "alive"}
        zombie_pid = zombie.info.backend_pid
        zombie.close()
        control_pid(foreign, other_than=zombie_pid)
        for _ in range(LOOKS_MIN + 1):
            moved_on(foreign)
            clock.advance(LOST_SECONDS + 1)
            assert states(survey) == {lodger.owner: "alive"}


def test_one_that_was_taken_for_dead_meanwhile_enters_again(
    url: str, survey: LockRowSurvey, foreign: psycopg.Connection[Any]
) -> None:
    with row_lodging(url) as lodger:
        pid = control_pid(foreign)
        (found,) = survey.look()
        lodger.signal(signal.SIGSTOP)
        foreign.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))
        survey.forget(found)
        assert survey.look() == []
        lodger.signal(signal.SIGCONT)
        wait_until(lambda: states(survey) == {lodger.owner: "alive"}, "it is there again")


@pytest.mark.more
@pytest.mark.parametrize("how", [pytest.param("fast", marks=pytest.mark.soak), "immediate"])
def test_a_server_that_starts_again_makes_nobody_dead(mortal_postgres: OwnServer, clock: ManualClock, how: str) -> None:
    url = mortal_postgres.new_database()
    store = PostgresStore(url)
    with row_lodging(url) as lodger:
        mortal_postgres.stop(how)
        mortal_postgres.start()
        with closing(LockRowSurvey(store.lives(), "bank", clock, PAUSED_SECONDS)) as survey:
            for _ in range(LOOKS_MIN + 1):
                assert states(survey) == {lodger.owner: "alive"}
            with closing(psycopg.connect(url, autocommit=True)) as foreign:
                control_pid(foreign)
                for _ in range(LOOKS_MIN + 1):
                    clock.advance(LOST_SECONDS + 1)
                    moved_on(foreign)
                    assert states(survey) == {lodger.owner: "alive"}


# What was running


def running(survey: LockRowSurvey, lodger: RowLodger) -> tuple[Running, ...]:
    (found,) = [each for each in survey.look() if each.record.header.owner == lodger.owner]
    return found.record.running


def test_what_runs_is_the_first_of_what_is_held_in_the_order_of_the_claims_as_much_as_it_runs_at_a_time(
    url: str, survey: LockRowSurvey, session: PostgresSession
) -> None:
    with row_lodging(url, slots=3) as lodger:
        claims = claimed(session, lodger.owner, rows=5)
        rows = [claim.row for claim in claims]
        assert rows == sorted(rows, reverse=True)
        assert [each.row for each in running(survey, lodger)] == rows[:3]
        with committed(session):
            session.queue.remove(claims[1])
            session.queue.release(claims[3])
        assert [each.row for each in running(survey, lodger)] == [rows[0], rows[2], rows[4]]
        with committed(session):
            (again,) = session.queue.claim(["pay"], 1, lodger.owner)
            session.queue.remove(claims[0])
        assert running(survey, lodger) == (
            Running("running", rows[2], 1),
            Running("running", rows[4], 1),
            Running("running", again.row, 2),
        )


def test_which_of_a_batch_ran_is_not_known_but_for_what_was_said_of_it(
    url: str, survey: LockRowSurvey, session: PostgresSession, clock: ManualClock
) -> None:
    """What is claimed for the second time runs alone, beside it."""
    lives = PostgresStore(url).lives()
    with closing(LockRow(lives, "bank", "here", RandomIds(clock, Random(0)), clock, slots=2, batched=["pay"])) as row:
        first, second, third = claimed(session, row.owner, rows=3)
        with committed(session):
            session.queue.release(third)
            (again,) = session.queue.claim(["pay"], 1, row.owner)

        def running() -> tuple[Running, ...]:
            (found,) = survey.look()
            return found.record.running

        assert running() == (Running("running", again.row, 2),)
        row.note(0, second)
        row.time_out(0)
        assert running() == (Running("timed-out", second.row, 1), Running("running", again.row, 2))
        assert session.queue.holds(first)


def test_how_it_ended_is_written_before_it_may_be_taken_over(
    url: str, survey: LockRowSurvey, session: PostgresSession
) -> None:
    with row_lodging(url, slots=3) as lodger:
        claims = claimed(session, lodger.owner, rows=3)
        for slot, claim in enumerate(claims):
            lodger.told("note", slot, claim.row, claim.deliveries)
        lodger.told("time_out", 0)
        lodger.told("abandon")
        lodger.kill()
        assert [each.state for each in running(survey, lodger)] == ["timed-out", "abandoned", "abandoned"]


def test_who_abandons_what_he_runs_abandons_what_he_has_not_begun_as_well(
    url: str, survey: LockRowSurvey, session: PostgresSession
) -> None:
    """It is among the first that he holds, where one of his slots has just settled what it ran."""
    with row_lodging(url, slots=2) as lodger:
        first, second, third = claimed(session, lodger.owner, rows=3)
        lodger.told("note", 0, first.row, first.deliveries)
        lodger.told("note", 1, second.row, second.deliveries)
        with committed(session):
            session.queue.take(second)
        lodger.told("abandon")
        lodger.kill()
        assert running(survey, lodger) == (Running("abandoned", first.row, 1), Running("abandoned", third.row, 1))


def test_how_one_attempt_ended_says_nothing_of_the_next(
    url: str, survey: LockRowSurvey, session: PostgresSession
) -> None:
    with row_lodging(url) as lodger:
        (claim,) = claimed(session, lodger.owner, rows=1)
        lodger.told("note", 0, claim.row, claim.deliveries)
        lodger.told("time_out", 0)
        with committed(session):
            session.queue.release(claim)
        with committed(session):
            (again,) = session.queue.claim(["pay"], 1, lodger.owner)
        assert running(survey, lodger) == (Running("running", again.row, 2),)


# Coming and going


def test_closing_removes_the_row_and_frees_the_lock(url: str, survey: LockRowSurvey) -> None:
    with row_lodging(url) as lodger:
        assert states(survey) == {lodger.owner: "alive"}
        lodger.told("close")
        assert survey.look() == []


def test_closing_one_whose_connection_was_lost_removes_the_row_all_the_same(
    store: PostgresStore, survey: LockRowSurvey, clock: ManualClock, ids: RandomIds, foreign: psycopg.Connection[Any]
) -> None:
    incarnation = LockRow(store.lives(), "bank", "here", ids, clock)
    foreign.execute("SELECT pg_terminate_backend(%s, 60000)", (control_pid(foreign),))
    incarnation.close()
    assert survey.look() == []


def test_nobody_sees_one_that_lives_and_is_not_locked(store: PostgresStore, survey: LockRowSurvey) -> None:
    """The lock comes first, and the row after it."""
    lives = store.lives()
    seen: list[dict[str, str]] = []
    run = lives._run

    def looked_at(name: str, parameters: Any = ()) -> Any:
        found = run(name, parameters)
        seen.append({each.record.header.owner: each.state for each in survey.look()})
        assert all(life.is_locked for life in survey._lives.look("bank"))
        return found

    lives._run = looked_at  # type: ignore[method-assign]
    lives.enter(Registration("bank", "bank/1", "here", "elsewhere", 1, 1, 0, []))
    assert seen == [{}, {}, {"bank/1": "alive"}]
    lives.close()


def test_a_number_that_somebody_still_has_is_passed_over(
    store: PostgresStore, foreign: psycopg.Connection[Any]
) -> None:
    """After all numbers were used they begin anew."""
    first, second = store.lives(), store.lives()
    number = first.enter(Registration("bank", "bank/1", "here", "elsewhere", 1, 1, 0, []))
    foreign.execute("SELECT setval(pg_get_serial_sequence('stagepost_incarnation', 'id'), %s, false)", (number,))
    assert second.enter(Registration("bank", "bank/2", "here", "elsewhere", 1, 1, 0, [])) != number
    assert len(second.look("bank")) == 2
    first.close()
    second.close()


def test_forgetting_removes_the_row_and_may_be_done_by_two(url: str, survey: LockRowSurvey) -> None:
    with row_lodging(url) as lodger:
        lodger.kill()
        wait_until(lambda: states(survey) == {lodger.owner: "dead"}, "it is seen to be dead")
        (found,) = survey.look()
        survey.forget(found)
        survey.forget(found)
        assert survey.look() == []


def test_one_that_has_come_back_meanwhile_is_not_forgotten(url: str, survey: LockRowSurvey) -> None:
    """It would live on, and be seen by nobody."""
    with row_lodging(url) as lodger:
        (found,) = survey.look()
        survey.forget(found)
        assert states(survey) == {lodger.owner: "alive"}


def test_other_apps_are_not_looked_at_also_where_their_names_begin_alike(
    url: str, new_survey: Callable[..., LockRowSurvey]
) -> None:
    with row_lodging(url, "bank") as ours, row_lodging(url, "bank2") as theirs:
        assert states(new_survey("bank")) == {ours.owner: "alive"}
        assert states(new_survey("bank2")) == {theirs.owner: "alive"}
        assert len(new_survey("*").look()) == 2


def test_a_lock_of_somebody_elses_or_in_another_database_is_not_the_incarnations(
    url: str, survey: LockRowSurvey, new_postgres: Callable[[], str]
) -> None:
    with (
        row_lodging(url) as lodger,
        closing(psycopg.connect(url)) as same,
        closing(psycopg.connect(new_postgres())) as other,
    ):
        (found,) = survey.look()
        same.execute("SELECT pg_advisory_lock(%s), pg_advisory_lock(1, %s::int)", (found.key, found.key))
        other.execute("SELECT pg_advisory_lock(%s, %s::int)", (LOCK_CLASS, found.key))
        lodger.kill()
        wait_until(lambda: states(survey) == {lodger.owner: "dead"}, "it is seen to be dead")
