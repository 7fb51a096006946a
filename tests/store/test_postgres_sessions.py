"""What is PostgreSQL's own about its sessions: lost connections, errors in Stagepost's words, the bell, other people's
connections."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec import structs
from psycopg.rows import dict_row
from psycopg.types.string import TextBinaryLoader

from stagepost import (
    App,
    CommitUnknown,
    NothingSent,
    SchemaMismatch,
    StagepostError,
    StoreContention,
    StoreError,
    StoreExhausted,
    StoreUnavailable,
    Target,
    TransactionBoundary,
)
from stagepost.app.app import engine_of
from stagepost.flow import ids
from stagepost.flow.claim import Claim
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import ConnectionLost
from stagepost.store.postgres.faults import translate
from stagepost.store.postgres.key_waits import WAIT_FOR_KEYS
from stagepost.store.postgres.notifier import POLL_SECONDS, RING_SECONDS_MIN, Notifier
from stagepost.store.postgres.session import PostgresSession
from stagepost.store.postgres.statement_pipeline import PREPARED_MAX
from stagepost.store.postgres.statements import Statement
from stagepost.store.postgres.store import PostgresStore, migrate_database
from stagepost.store.sql.database import only
from stagepost.testing.contract.givens import a_row, a_waypoint, an_acceptance, committed
from tests.servers.postgres import OwnServer, Server
from tests.servers.proxy import Proxy
from tests.waiting import wait_until

PASSWORD = "geheim%und!gut"
QUOTED_PASSWORD = "geheim%25und!gut"


@dataclass
class Order:
    id: str


@pytest.fixture
def url(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


@pytest.fixture
def store(url: str) -> PostgresStore:
    return PostgresStore(url)


@pytest.fixture
def session(store: PostgresStore) -> Iterator[PostgresSession]:
    session = store.session()
    yield session
    session.close()


@pytest.fixture
def other(store: PostgresStore) -> Iterator[PostgresSession]:
    session = store.session()
    yield session
    session.close()


@pytest.fixture
def foreign(url: str) -> Iterator[psycopg.Connection[Any]]:
    """The user's own connection."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield connection


def pid_of(session: PostgresSession) -> int:
    return session._connection.info.backend_pid


def terminate(foreign: psycopg.Connection[Any], pid: int) -> None:
    """Returns when it is gone."""
    foreign.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))


def claimed(session: PostgresSession) -> Claim:
    """A message of the session's own."""
    with committed(session):
        session.queue.enqueue([a_row()])
    with committed(session):
        (claim,) = session.queue.claim(["pay"], 1, "shop/1", 0)
    return claim


def run(session: PostgresSession, statement: str) -> None:
    """As a handler would."""
    session.lend("pay", lambda: None)
    try:
        session.connection.execute(statement)
    finally:
        session.take_back()


def in_transactions(foreign: psycopg.Connection[Any]) -> int:
    """How many connections of others wait in one."""
    (found,) = foreign.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state ^@ 'idle in transaction'"
    ).fetchall()
    return int(found[0])


@pytest.mark.parametrize("is_out_of_reach", [False, True])
def test_what_a_lost_connection_holds_over_there_is_let_go_of_when_another_is_made(
    url: str, foreign: psycopg.Connection[Any], *, is_out_of_reach: bool
) -> None:
    """The server was not told, and would wait for two hours; whoever takes the same message again, for the server."""
    foreign.execute("CREATE TABLE account (id int); INSERT INTO account VALUES (1)")
    PostgresStore(url)
    with closing(Proxy(url)) as proxy, closing(PostgresStore(proxy.url).session()) as session:
        session.begin()
        run(session, "UPDATE account SET id = 2")
        proxy.lose_clients()
        with pytest.raises(psycopg.OperationalError):
            run(session, "SELECT 1")
        session.rollback()
        assert in_transactions(foreign) == 1
        if is_out_of_reach:
            proxy.shut_out()
            with pytest.raises(StoreUnavailable):
                session.reconnect()
            proxy.let_in()
        session.begin()
        run(session, "UPDATE account SET id = 3")
        session.commit()
    assert foreign.execute("SELECT id FROM account").fetchall() == [(3,)]


def test_a_connection_that_was_ended_while_nobody_used_it_costs_nobody_an_error(
    session: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    terminate(foreign, pid_of(session))
    session.begin()
    run(session, "SELECT 1")
    session.commit()
    terminate(foreign, pid_of(session))
    assert session.run(Statement(b"SELECT 1", ())).fetchall() == [(1,)]


def test_a_server_notices_soon_that_a_client_is_gone(session: PostgresSession) -> None:
    session.begin()
    run(session, "SET LOCAL work_mem TO '8MB'")
    session.commit()
    found = session.run(Statement(b"SHOW tcp_keepalives_idle", ())).fetchall()
    assert found == [("10",)]


# Durability


def test_a_commit_is_on_the_disk_unless_it_need_not_be(session: PostgresSession) -> None:
    seen = []
    for is_durable in (True, False, True):
        session.begin(is_durable=is_durable)
        session.lend("pay", lambda: None)
        seen.append(session.execute("SELECT current_setting('synchronous_commit')", {}).scalar())
        session.take_back()
        session.commit()
    assert seen == ["on", "off", "on"]


# Prepared statements


def prepared_in(session: PostgresSession) -> int:
    return int(only(session.run(Statement(b"SELECT count(*)::int FROM pg_prepared_statements", ())))[0])


@pytest.mark.parametrize("is_one_transaction", [True, False])
def test_texts_that_come_once_do_not_stay_prepared_in_any_number(
    session: PostgresSession, is_one_transaction: bool
) -> None:
    for batch in range(1 if is_one_transaction else 4):
        session.begin()
        session.lend("pay", lambda: None)
        for n in range(2_400 if is_one_transaction else 600):
            session.execute(f"SELECT {batch}, {n}", {})
        session.take_back()
        session.commit()
        assert prepared_in(session) <= PREPARED_MAX + 10


def test_what_is_prepared_in_two_phases_does_not_stay_prepared_as_a_statement(session: PostgresSession) -> None:
    for n in range(PREPARED_MAX):
        session.begin_to_prepare()
        session.journal.record([a_waypoint(f"m{n}")])
        session.prepare(f"stagepost:a:{n}")
        session.commit_prepared(f"stagepost:a:{n}")
    assert prepared_in(session) <= PREPARED_MAX + 10
    assert len(session.journal.history("flow")) == PREPARED_MAX


# A connection that ends without a word


def test_a_backend_that_crashes_under_a_handlers_statement_is_told_from_those_that_end_with_it(
    mortal_postgres: OwnServer,
) -> None:
    """The server ends all connections then, and says farewell to the others."""
    url = mortal_postgres.new_database()
    migrate_database(url)
    told: list[object] = []
    with (
        closing(PostgresStore(url).session()) as culprit,
        closing(PostgresStore(url).session()) as neighbour,
        closing(PostgresStore(url).session()) as between,
    ):
        for session in (culprit, neighbour):
            session.begin()
            session.lend("pay", lambda: None)
            session.execute("SELECT 1", {})
        between.begin()
        between.journal.record([a_waypoint()])
        between.catch_up()
        # A backend that is still about to answer says no farewell.
        with psycopg.connect(url, autocommit=True) as foreign:
            wait_until(lambda: awaiting_statements(foreign) == 3, "all three wait for their next statement")
        os.kill(pid_of(culprit), signal.SIGKILL)
        wait_until(neighbour._pipeline.has_ended, "the others are told")
        # One after the other: a backend that is not told yet would still commit.
        wait_until(lambda: is_up(url), "all backends have ended, and the server is there again")
        for session in (culprit, neighbour):
            with pytest.raises((psycopg.Error, StoreUnavailable)):
                session.execute("SELECT 1", {})
            told.append(type(session.take_back()))
            session.rollback()
        with pytest.raises(CommitUnknown, match="because of crash of another server process"):
            between.commit()
        assert told == [ConnectionLost, StoreUnavailable]
    mortal_postgres.drop_database(url)


def awaiting_statements(foreign: psycopg.Connection[Any]) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND wait_event = 'ClientRead'"
    (count,) = foreign.execute(query).fetchone() or (0,)
    return int(count)


def is_up(url: str) -> bool:
    with suppress(psycopg.OperationalError), closing(psycopg.connect(url)):
        return True
    return False


# Commits that are none


def test_the_commit_of_a_transaction_that_had_failed_is_an_error(session: PostgresSession) -> None:
    session.begin()
    session.journal.record([a_waypoint()])
    with suppress(psycopg.Error):
        run(session, "SELECT 1 / 0")
    with pytest.raises(StoreError, match="there is no transaction to commit"):
        session.commit()
    assert session.journal.history("flow") == []


def test_a_commit_that_is_answered_by_a_rollback_is_an_error(
    session: PostgresSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL itself makes none of it."""
    session.begin()
    session.journal.record([a_waypoint()])
    with suppress(psycopg.Error):
        run(session, "SELECT 1 / 0")
    # Past what would have noticed it before.
    monkeypatch.setattr(PostgresSession, "is_open", True)
    with pytest.raises(StoreError, match=r"had failed, and was rolled back \(ROLLBACK\)"):
        session.commit()
    assert session.journal.history("flow") == []


def test_a_constraint_that_is_looked_at_with_the_commit_undoes_all_and_the_session_goes_on(
    session: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    foreign.execute("CREATE TABLE account (id int PRIMARY KEY)")
    foreign.execute("CREATE TABLE entry (account int REFERENCES account DEFERRABLE INITIALLY DEFERRED)")
    session.begin()
    session.journal.record([a_waypoint()])
    run(session, "INSERT INTO entry VALUES (1)")
    with pytest.raises(StoreError, match="foreign key") as caught:
        session.commit()
    assert type(caught.value) is StoreError
    assert not session.is_begun
    with committed(session):
        session.journal.record([a_waypoint("m2")])
    assert [each.message_id for each in session.journal.history("flow")] == ["m2"]


# Connections that are lost


def test_a_connection_lost_in_a_transaction_is_an_outage_once_and_then_made_again(
    session: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    before = pid_of(session)
    session.begin()
    terminate(foreign, before)
    with pytest.raises(StoreUnavailable):
        session.queue.pending(["pay"])
    session.rollback()
    with committed(session):
        session.journal.record([a_waypoint()])
    assert len(session.journal.history("flow")) == 1
    assert pid_of(session) != before


@pytest.mark.parametrize("times", [1, 3])
def test_a_connection_that_is_lost_while_the_lost_one_is_being_ended_is_made_again(
    session: PostgresSession, foreign: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    opened: list[int] = []
    open_another = PostgresSession._open

    def open_and_lose(lost: PostgresSession) -> None:
        open_another(lost)
        opened.append(lost._connection.info.backend_pid)
        if len(opened) <= times:
            terminate(foreign, opened[-1])

    monkeypatch.setattr(PostgresSession, "_open", open_and_lose)
    terminate(foreign, pid_of(session))
    assert not session.queue.pending(["pay"]).ready
    assert len(opened) == times + 1
    assert session._lost == []
    with committed(session):
        session.journal.record([a_waypoint()])


def test_a_connection_lost_before_its_handler_touched_it_is_an_outage_and_no_failure(
    session: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    session.begin()
    terminate(foreign, pid_of(session))
    session.lend("pay", lambda: None)
    with pytest.raises(StoreUnavailable):
        session.execute("SELECT 1", {})
    session.take_back()
    session.rollback()
    session.begin()
    run(session, "SELECT 1")
    session.commit()


def test_a_connection_lost_under_a_handler_is_told_whatever_the_handler_makes_of_it(
    session: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    session.begin()
    session.lend("pay", lambda: None)
    session.execute("SELECT 1", {})
    terminate(foreign, pid_of(session))
    with suppress(psycopg.Error):
        session.connection.execute("SELECT 1")
    assert isinstance(session.take_back(), StoreUnavailable)
    assert not session.is_open
    session.rollback()
    with committed(session):
        session.journal.record([a_waypoint()])


def test_a_connection_lost_at_the_commit_leaves_it_open_what_became_of_it(
    session: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    claim = claimed(session)
    session.begin()
    assert session.queue.remove(claim)
    terminate(foreign, pid_of(session))
    with pytest.raises(CommitUnknown, match="whether it was committed is not known"):
        session.commit()
    assert not session.is_begun
    session.reconnect()
    assert session.queue.holds(claim)


def test_a_commit_whose_answer_was_lost_is_known_by_the_row(
    session: PostgresSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claimed(session)
    session.begin()
    assert session.queue.remove(claim)
    execute = session._execute_pipeline

    def execute_and_lose() -> None:
        execute()
        psycopg.Connection.close(session._connection)
        raise psycopg.OperationalError("the answer was lost")

    monkeypatch.setattr(session, "_execute_pipeline", execute_and_lose)
    with pytest.raises(CommitUnknown):
        session.commit()
    monkeypatch.undo()
    session.reconnect()
    assert not session.queue.holds(claim)


def test_reconnecting_ends_what_the_lost_connection_still_does_over_there(
    session: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    """A connection that was lost on its way lives on, and holds its locks; the row's own would be waited for."""
    claim = claimed(session)
    session.begin()
    assert session.queue.remove(claim)
    zombie = session._connection
    pid = pid_of(session)
    # Dropped here, and nobody told the server.
    session._connection = PostgresSession(session._parameters, "elsewhere", session.queue._notifier)._connection
    session.reconnect()
    assert session.queue.holds(claim)
    assert foreign.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() == (0,)
    psycopg.Connection.close(zombie)


@pytest.mark.parametrize("is_heard_already", [False, True])
def test_a_transaction_that_the_server_ended_for_its_silence_is_known_not_to_be_committed(
    session: PostgresSession, foreign: psycopg.Connection[Any], is_heard_already: bool
) -> None:
    """As an outage it would be tried again for ever, and every time be as slow."""
    session.begin()
    run(session, "SET LOCAL idle_in_transaction_session_timeout = 1")
    session._pipeline.forget()
    pid = pid_of(session)
    wait_until(
        lambda: foreign.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is None,
        "the server ends it",
    )
    if is_heard_already:
        # As when it comes right behind the answer to the last statement: libpq takes it for a notice.
        with suppress(psycopg.OperationalError):
            session._connection.pgconn.consume_input()
        assert session._connection.pgconn.notifies() is None
    with pytest.raises(StoreError, match="idle-in-transaction") as caught:
        session.commit()
    assert type(caught.value) is StoreError


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_server_that_starts_again_between_transactions_is_there_again(mortal_postgres: OwnServer, how: str) -> None:
    url = mortal_postgres.new_database()
    store = PostgresStore(url)
    with closing(store.session()) as session:
        with committed(session):
            session.journal.record([a_waypoint("m1")])
        mortal_postgres.stop(how)
        try:
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    session.begin()
            with pytest.raises(StoreUnavailable):
                session.lend("pay", lambda: None)
            with pytest.raises(StoreUnavailable):
                session.reconnect()
            with pytest.raises(StoreUnavailable):
                PostgresStore(url)
        finally:
            mortal_postgres.start()
        with committed(session):
            session.journal.record([a_waypoint("m2")])
        assert [each.message_id for each in session.journal.history("flow")] == ["m1", "m2"]


# Others at work


def test_a_lock_that_is_not_given_in_time_is_contention(
    session: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    foreign.execute("BEGIN")
    foreign.execute("LOCK TABLE stagepost_journal")
    session.begin()
    session.lend("pay", lambda: None)
    session.execute("SET LOCAL lock_timeout = 1", {})
    with pytest.raises(StoreContention, match="lock timeout"):
        session.journal.history("flow")
    session.take_back()
    session.rollback()
    foreign.execute("ROLLBACK")
    with committed(session):
        session.journal.record([a_waypoint()])


def test_the_victim_of_a_deadlock_is_contention(session: PostgresSession, other: PostgresSession) -> None:
    with committed(session):
        session.queue.enqueue([a_row("m1"), a_row("m2")])
    with committed(session):
        first, second = sorted(session.queue.claim(["pay"], 2, "shop/1", 0), key=lambda claim: claim.row)
    met: list[StoreError] = []

    def cross(mine: PostgresSession, theirs: Claim) -> None:
        try:
            mine.queue.remove(theirs)
            mine.commit()
        except StoreError as error:
            met.append(error)
            mine.rollback()

    for each, claim in ((session, first), (other, second)):
        each.begin()
        each.queue.remove(claim)
    thread = threading.Thread(target=cross, args=(other, first))
    thread.start()
    cross(session, second)
    thread.join()
    assert [type(each) for each in met] == [StoreContention]


def test_a_transaction_that_cannot_be_serialized_is_contention(
    session: PostgresSession, other: PostgresSession
) -> None:
    claim = claimed(session)
    session.begin()
    run(session, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    run(session, "SELECT 1")
    with committed(other):
        other.queue.release(claim)
    with pytest.raises(StoreContention, match="could not serialize"):
        session.queue.remove(claim)
    session.rollback()


def test_a_statement_that_runs_is_broken_off_from_another_thread(
    session: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    pid = pid_of(session)

    def interrupt() -> None:
        wait_until(
            lambda: foreign.execute(
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'", (pid,)
            ).fetchone(),
            "the statement runs",
        )
        session.interrupt()

    thread = threading.Thread(target=interrupt)
    session.begin()
    thread.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        run(session, "SELECT pg_sleep(3600)")
    thread.join()
    session.rollback()
    with committed(session):
        session.journal.record([a_waypoint()])


def test_interrupting_one_that_does_nothing_or_is_gone_does_nothing(session: PostgresSession) -> None:
    session.interrupt()
    with committed(session):
        session.journal.record([a_waypoint()])
    session.close()
    session.interrupt()


def test_stageposts_own_rows_are_the_same_whatever_a_handler_set_on_the_connection(session: PostgresSession) -> None:
    session.begin()
    session.lend("pay", lambda: None)
    session.connection.row_factory = dict_row
    session.connection.adapters.register_loader("int8", TextBinaryLoader)
    for most in range(10):
        for _ in range(most):
            session.later(Statement(b"SELECT 1", ()))
        assert session.run(Statement(b"SELECT $1::int8", ("n",)), (most,)).fetchone() == (most,)
    session.take_back()
    session.rollback()


# Errors in Stagepost's words


def error_of(connection: psycopg.Connection[Any], statement: str) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement)
    return caught.value


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        ("53100", StoreExhausted, "Free some disk space."),
        ("53200", StoreExhausted, ""),
        ("53300", StoreUnavailable, "Raise max_connections"),
        ("58030", StoreUnavailable, ""),
        ("57P01", StoreUnavailable, ""),
        ("57P03", StoreUnavailable, ""),
        ("25006", StoreUnavailable, "connect to the primary"),
        ("XX001", StoreUnavailable, ""),
        ("40001", StoreContention, ""),
        ("40P01", StoreContention, ""),
        ("55P03", StoreContention, ""),
        ("57014", StoreContention, ""),
        ("42P01", SchemaMismatch, "stagepost migrate"),
        ("42703", SchemaMismatch, "stagepost migrate"),
        ("XX000", StoreError, ""),
        ("23505", StoreError, ""),
        ("42601", StoreError, ""),
    ],
)
def test_an_error_is_what_it_means_to_stagepost_and_says_where_and_what_to_do(
    postgres_server: Server, code: str, kind: type[StoreError], remedy: str
) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        error = error_of(connection, f"DO $$ BEGIN RAISE 'it said' USING ERRCODE = '{code}'; END $$")
    found = translate(error, "the place")
    assert type(found) is kind
    assert str(found).startswith("the place: it said")
    assert remedy in str(found)


def test_a_server_that_does_not_answer_is_told_in_whole_sentences(tmp_path: Path) -> None:
    """The text of libpq ends with a question mark."""
    with pytest.raises(StoreUnavailable, match=r"on that socket\?$"):
        PostgresStore(f"postgresql:///shop?host={tmp_path}").session()


def test_a_server_that_became_read_only_is_waited_for(
    session: PostgresSession, foreign: psycopg.Connection[Any], url: str
) -> None:
    name = url.rpartition("/")[2]
    foreign.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    session.reconnect()
    session.begin()
    session.journal.record([a_waypoint()])
    with pytest.raises(StoreUnavailable, match=r"read-only transaction.*connect to the primary"):
        session.commit()
    foreign.execute("SET default_transaction_read_only = off")
    foreign.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    session.reconnect()
    with committed(session):
        session.journal.record([a_waypoint()])


def test_too_many_connections_are_a_database_that_is_not_there_for_now(postgres_server: Server, url: str) -> None:
    name = url.rpartition("/")[2]
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        # A limit is not for superusers.
        admin.execute(f"CREATE ROLE {name}_clerk LOGIN")
        admin.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0")
        with pytest.raises(StoreUnavailable, match=r"too many connections for database.*Raise max_connections"):
            PostgresStore(url.replace("//postgres@", f"//{name}_clerk@"))
        admin.execute(f"DROP ROLE {name}_clerk")


@pytest.fixture
def protected(postgres_server: Server, url: str) -> str:
    """A URL with a password in it that the server does not know."""
    return url.replace("//postgres@", f"//nobody:{QUOTED_PASSWORD}@")


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (("//postgres@", "//nobody@"), "Check the user in the database URL"),
        (("/stagepost_", "/nothing_"), "Create it, or check the database URL"),
    ],
)
def test_a_database_that_cannot_be_connected_to_is_not_there_and_says_what_to_do(
    url: str, change: tuple[str, str], remedy: str
) -> None:
    with pytest.raises(StoreUnavailable, match=remedy):
        PostgresStore(url.replace(*change))


def texts_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.__context__) + repr(error.__cause__)


def test_the_password_is_in_no_error_no_log_and_no_name(
    protected: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = []
    for address in (
        protected,
        f"postgresql://nobody:{QUOTED_PASSWORD}@127.0.0.1:1/shop",
        f"postgresql://nobody:{PASSWORD}@127.0.0.1/shop",
        f"postgresql://nobody:{QUOTED_PASSWORD}@[::1/shop",
        f"postgresql://nobody@127.0.0.1/shop?password={QUOTED_PASSWORD}&nonsense=1",
        f"{protected}?sslmode=nonsense",
    ):
        with pytest.raises(StagepostError) as caught:
            PostgresStore(address)
        seen.append(texts_of(caught.value))
    right = url.replace("//postgres@", f"//postgres:{QUOTED_PASSWORD}@")
    store = PostgresStore(right)
    session = store.session()
    seen += [store.url, repr(store), repr(session), repr(session._connection), repr(store.liveness(SystemClock()))]
    session.begin()
    with pytest.raises(StoreError) as at_work:
        session.run(Statement(b"SELECT broken", ()))
    seen.append(texts_of(at_work.value))
    session.close()
    app = App("shop", database=right)
    seen += [repr(app), repr(engine_of(app).store)]
    for text in (*seen, caplog.text):
        for secret in (PASSWORD, QUOTED_PASSWORD, "geheim"):
            assert secret not in text


def test_a_nul_in_what_others_wrote_is_kept_as_its_picture(session: PostgresSession) -> None:
    with committed(session):
        session.journal.record([structs.replace(a_waypoint(), detail="a\0b")])
        session.queue.enqueue([a_row(envelope=b"a\0b")])
    with committed(session):
        (claim,) = session.queue.claim(["pay"], 1, "shop/1", 0)
    assert claim.envelope == b"a\0b"
    assert [each.detail for each in session.journal.history("flow")] == ["a␀b"]


def test_a_flight_that_cannot_land_takes_its_connection_along_and_no_other(session: PostgresSession) -> None:
    """What is left to be read of it would be taken for the answers to what is asked next."""
    with pytest.raises(StoreError, match="COPY"):
        session.run(Statement(b"COPY stagepost_meta TO STDOUT", ()))
    with committed(session):
        session.journal.record([a_waypoint()])
    assert len(session.journal.history("flow")) == 1


def test_a_nul_in_what_is_searched_for_is_an_error_of_the_stores(session: PostgresSession) -> None:
    with pytest.raises(StoreError, match="NUL"):
        session.journal.history("a\0b")
    assert session.journal.history("flow") == []


# Children


def in_a_child(do: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            do()
        finally:
            gc.collect()
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return status


def test_a_forked_child_that_closes_what_it_inherited_does_not_disturb_its_parent(
    store: PostgresStore, session: PostgresSession, other: PostgresSession
) -> None:
    claim = claimed(session)
    session.begin()
    assert session.queue.remove(claim)

    def tidy_up() -> None:
        other.close()
        session.close()
        psycopg.Connection.close(session._connection)

    assert in_a_child(tidy_up) == 0
    session.journal.record([a_waypoint()])
    session.commit()
    assert len(other.journal.history("flow")) == 1


# The bell


class Monotonic:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def still() -> Monotonic:
    """A clock that moves when it is told, so that nobody looks just because time has passed."""
    return Monotonic()


@pytest.fixture
def quiet(store: PostgresStore, still: Monotonic) -> Iterator[PostgresSession]:
    """A session that hears what others put, and has heard all there was."""
    bell = Notifier(store._parameters, still)
    session = PostgresSession(store._parameters, "here", bell)
    session.queue.changed()
    # The first thing heard is that it listens.
    wait_until(lambda: bell.heard == 1, "it listens")
    session.queue.changed()
    yield session
    session.close()


def test_a_message_that_was_put_wakes_those_who_wait_once_it_is_committed(
    quiet: PostgresSession, session: PostgresSession
) -> None:
    assert not quiet.queue.changed()
    session.begin()
    session.queue.enqueue([a_row()])
    session.queue.pending(["pay"])
    assert not quiet.queue.changed()
    session.commit()
    wait_until(quiet.queue.changed, "it is heard")
    assert not quiet.queue.changed()


def test_a_message_that_was_given_back_wakes_those_who_wait(quiet: PostgresSession, other: PostgresSession) -> None:
    claim = claimed(other)
    wait_until(quiet.queue.changed, "the message is heard")
    other.queue._notifier._rung_at = 0.0
    with committed(other):
        other.queue.release(claim)
    wait_until(quiet.queue.changed, "its return is heard")


def test_what_was_rolled_back_wakes_nobody(quiet: PostgresSession, session: PostgresSession) -> None:
    bell = quiet.queue._notifier
    session.begin()
    session.queue.enqueue([a_row()])
    session.queue.pending(["pay"])
    session.rollback()
    session.queue._notifier._rung_at = 0.0
    with committed(session):
        session.queue.enqueue([a_row()])
    wait_until(lambda: bell.heard > 1, "the other one is heard")
    assert bell.heard == 2


def test_it_is_rung_seldom_and_those_who_hear_nothing_look_for_themselves(
    store: PostgresStore, still: Monotonic, quiet: PostgresSession
) -> None:
    bell = Notifier(store._parameters, still)
    assert [bell.may_ring() for _ in range(3)] == [True, False, False]
    still.now += 2 * RING_SECONDS_MIN
    assert [bell.may_ring() for _ in range(3)] == [True, False, False]
    for _ in range(10):
        # That it listens was the first thing it heard.
        still.now += POLL_SECONDS
        quiet.queue.changed()
    still.now += POLL_SECONDS / 2
    assert not quiet.queue.changed()
    still.now += POLL_SECONDS / 2
    assert [quiet.queue.changed() for _ in range(3)] == [True, False, False]


def test_who_heard_a_ring_soon_looks_again_for_what_came_too_shortly_after_it_to_be_rung_for(
    quiet: PostgresSession, session: PostgresSession, still: Monotonic
) -> None:
    session.queue._notifier.monotonic = still
    for name in ("m1", "m2"):
        with committed(session):
            session.queue.enqueue([a_row(name)])
    wait_until(quiet.queue.changed, "the first is heard")
    assert quiet.queue._notifier.heard == 2
    looks = []
    for _ in range(100):
        still.now += RING_SECONDS_MIN
        if quiet.queue.changed():
            looks.append(still.now - 1_000.0)
    assert looks[0] <= 3 * RING_SECONDS_MIN
    # And then ever less often: not at every turn of a worker that waits.
    assert len(looks) < 8


def test_a_listener_that_was_lost_listens_again(
    quiet: PostgresSession, session: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    listening = "SELECT pid FROM pg_stat_activity WHERE query = 'LISTEN stagepost' AND datname = current_database()"
    (pid,) = foreign.execute(listening).fetchone() or (0,)
    terminate(foreign, pid)
    wait_until(lambda: quiet.queue._notifier.heard == 2, "it listens again")
    quiet.queue.changed()
    with committed(session):
        session.queue.enqueue([a_row()])
    wait_until(quiet.queue.changed, "it is heard")


def test_a_bell_that_nobody_has_any_more_listens_no_longer(
    store: PostgresStore, foreign: psycopg.Connection[Any]
) -> None:
    listening = "SELECT 1 FROM pg_stat_activity WHERE query = 'LISTEN stagepost' AND datname = current_database()"
    bell = Notifier(store._parameters)
    bell.listen()
    wait_until(lambda: foreign.execute(listening).fetchone(), "it listens")
    del bell
    gc.collect()
    wait_until(lambda: foreign.execute(listening).fetchone() is None, "it listens no longer")


def test_two_sessions_that_let_the_same_key_in_agree_on_who_was_first(
    session: PostgresSession, other: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    verdicts: list[str] = []
    session.begin()
    assert session.accepted.accept([an_acceptance()])[0].outcome == "started"

    def accept() -> None:
        with committed(other):
            verdicts.append(other.accepted.accept([an_acceptance()])[0].outcome)

    thread = threading.Thread(target=accept)
    thread.start()
    wait_until(
        lambda: foreign.execute(
            "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", (pid_of(other),)
        ).fetchone(),
        "the second one waits",
    )
    session.commit()
    thread.join()
    assert verdicts == ["repeated"]


def within(url: str, milliseconds: int) -> PostgresStore:
    """A store whose sessions wait no longer than that for a lock."""
    return PostgresStore(f"{url}?options=-c%20lock_timeout%3D{milliseconds}ms")


def test_keys_are_let_in_in_one_order_so_that_two_with_the_same_keys_do_not_wait_for_each_other_in_a_circle(
    url: str, session: PostgresSession, other: PostgresSession, foreign: psycopg.Connection[Any]
) -> None:
    """Who waits for the first key holds none of those behind it."""
    session.begin()
    session.accepted.accept([an_acceptance("a")])

    def accept() -> None:
        with committed(other):
            other.accepted.accept([an_acceptance(key) for key in "bac"])

    thread = threading.Thread(target=accept)
    thread.start()
    wait_until(
        lambda: foreign.execute(
            "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", (pid_of(other),)
        ).fetchone(),
        "the other one waits",
    )
    with closing(within(url, 500).session()) as third, committed(third):
        verdicts = third.accepted.accept([an_acceptance(key) for key in "bc"])
    session.rollback()
    thread.join()
    assert [each.outcome for each in verdicts] == ["started", "started"]


def test_an_id_that_an_open_transaction_holds_is_waited_for_for_half_a_minute_and_then_named(
    url: str, session: PostgresSession
) -> None:
    session.begin()
    session.run(WAIT_FOR_KEYS)
    waits = Statement(b"SELECT current_setting('lock_timeout')", ())
    assert session.run(waits).fetchone() == ("30s",)
    session.rollback()
    app = App("shop", database=within(url, 200).address)
    pay: Target[Order, None] = app.remote("pay", Order)
    session.begin()
    session.run(Statement(b"SET LOCAL lock_timeout TO '7s'", ()))
    key = ids.from_key("order:1", "pay", 0)
    session.accepted.accept([an_acceptance(key)])
    assert session.run(waits).fetchone() == ("7s",)
    with pytest.raises(NothingSent, match=rf"has started {key} \(flow 'order:1'\), and neither .*stagepost doctor"):
        app.start(pay, Order("1"), flow_id="order:1")
    session.rollback()
    assert app.start(pay, Order("1"), flow_id="order:1").is_new
    app.close()


def test_stageposts_own_connection_is_refused_outside_a_handler(session: PostgresSession) -> None:
    with pytest.raises(TransactionBoundary, match="outside the handler"):
        session.connection.execute("SELECT 1")
    with pytest.raises(TransactionBoundary, match="outside the handler"):
        psycopg.Cursor(session.connection).execute("SELECT 1")
