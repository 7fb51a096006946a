"""What is SQLite's own about its sessions: durability, errors in Stagepost's words, and connections of others."""

from __future__ import annotations

import errno
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

from stagepost import StoreContention, StoreError, StoreUnavailable
from stagepost.ports.journal import Bounds, Span
from stagepost.store.sqlite import connection as sqlite_connection
from stagepost.store.sqlite import writer_lock
from stagepost.store.sqlite.export import SqliteExport
from stagepost.store.sqlite.faults import translate
from stagepost.store.sqlite.session import SqliteSession
from stagepost.store.sqlite.store import SqliteStore, migrate_file
from stagepost.testing.contract.givens import a_row, a_waypoint, committed
from tests.store.exported import exported


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "store.db")


@pytest.fixture
def session(store: SqliteStore) -> Iterator[SqliteSession]:
    session = store.session()
    yield session
    session.close()


@pytest.fixture
def foreign(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """The user's own connection, which knows nothing of a writer lock."""
    with closing(sqlite3.connect(store.path, timeout=0, isolation_level=None)) as connection:
        yield connection


def synchronous(session: SqliteSession) -> int:
    (level,) = session._cursor.execute("PRAGMA synchronous").fetchone()
    return int(level)


def test_a_commit_is_on_the_disk_unless_it_need_not_be(session: SqliteSession) -> None:
    full, normal = 2, 1
    seen = []
    for is_durable in (True, False, True, True, False, False, True):
        session.begin(is_durable=is_durable)
        seen.append(synchronous(session))
        session.commit()
    assert seen == [full, normal, full, full, normal, normal, full]
    session.begin(is_durable=False)
    session.reconnect()
    session.begin()
    assert synchronous(session) == full
    session.rollback()


def test_a_writer_that_does_not_pass_the_writer_lock_is_contention(
    store: SqliteStore, foreign: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_TIMEOUT_SECONDS", 0)
    monkeypatch.setattr(writer_lock, "WAIT_SECONDS_MAX", 0)
    session = store.session()
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreContention, match=r"store\.db: database is locked"):
        session.begin()
    assert not session.is_begun
    foreign.execute("ROLLBACK")
    # And it did not stay in the writer lock.
    with committed(session):
        session.journal.record([a_waypoint()])
    session.close()


def test_a_reader_of_the_users_holds_up_no_commit(session: SqliteSession, foreign: sqlite3.Connection) -> None:
    foreign.execute("BEGIN")
    assert foreign.execute("SELECT count(*) FROM stagepost_ready").fetchone() == (0,)
    with committed(session):
        session.queue.enqueue([a_row()])
    assert foreign.execute("SELECT count(*) FROM stagepost_ready").fetchone() == (0,)
    foreign.execute("COMMIT")
    assert foreign.execute("SELECT count(*) FROM stagepost_ready").fetchone() == (1,)


def test_a_writer_waits_for_the_one_before_it_and_then_sees_what_it_wrote(store: SqliteStore) -> None:
    first = store.session()
    seen: list[int] = []

    def write() -> None:
        second = store.session()
        with committed(second):
            seen.append(len(second.journal.history("flow")))
        second.close()

    first.begin()
    waiting = threading.Thread(target=write)
    waiting.start()
    first.journal.record([a_waypoint()])
    first.commit()
    waiting.join()
    first.close()
    assert seen == [1]


def test_a_change_is_noticed_once_and_none_where_there_was_none(session: SqliteSession, store: SqliteStore) -> None:
    other = store.session()
    session.queue.changed()
    assert not session.queue.changed()
    with committed(other):
        other.queue.enqueue([a_row()])
    assert [session.queue.changed(), session.queue.changed()] == [True, False]
    other.close()


def test_a_statement_that_runs_is_broken_off_from_another_thread(session: SqliteSession) -> None:
    started = threading.Event()
    go_on = threading.Event()

    def step() -> int:
        started.set()
        go_on.wait()
        return 0

    session.begin()
    session.lend("pay", lambda: None)
    session.connection.create_function("step", 0, step)

    def interrupt() -> None:
        started.wait()
        session.interrupt()
        go_on.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        session.execute("SELECT step() FROM (SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3)", {})
    thread.join()
    session.take_back()
    session.rollback()
    with committed(session):
        session.journal.record([a_waypoint()])


def test_a_session_belongs_to_the_thread_it_was_made_in(session: SqliteSession) -> None:
    refused: list[BaseException] = []

    def use() -> None:
        try:
            session.begin()
        except StoreError as error:
            refused.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(refused) == 1
    assert "thread" in str(refused[0])
    # And whoever tried did not take the writer lock with it.
    with committed(session):
        session.journal.record([a_waypoint()])


def test_sql_gives_rows_columns_and_counts(session: SqliteSession) -> None:
    session.begin()
    session.lend("pay", lambda: None)
    session.execute("CREATE TABLE payment (id INTEGER PRIMARY KEY, name TEXT)", {})
    inserted = session.execute("INSERT INTO payment (name) VALUES (:a), (:b)", {"a": "Ada", "b": "Grace"})
    updated = session.execute("UPDATE payment SET name = upper(name)", {})
    none = session.execute("DELETE FROM payment WHERE id > 10", {})
    read = session.execute("SELECT id, name AS who FROM payment ORDER BY id", {})
    returned = session.execute("DELETE FROM payment RETURNING id", {})
    session.take_back()
    session.rollback()
    assert (inserted.rowcount, updated.rowcount, none.rowcount, read.rowcount) == (2, 2, 0, -1)
    assert (list(inserted), inserted.columns) == ([], ())
    assert (read.columns, [tuple(row) for row in read]) == (("id", "who"), [(1, "ADA"), (2, "GRACE")])
    assert sorted(row[0] for row in returned) == [1, 2]


def test_values_come_back_as_the_driver_gives_them(session: SqliteSession) -> None:
    session.begin()
    session.lend("pay", lambda: None)
    row = session.execute(
        "SELECT :i AS i, :f AS f, :t AS t, :b AS b, :n AS n",
        {"i": 2**62, "f": 0.5, "t": "ü🚚", "b": b"\x00", "n": None},
    ).one()
    session.take_back()
    session.rollback()
    assert row.as_dict() == {"i": 2**62, "f": 0.5, "t": "ü🚚", "b": b"\x00", "n": None}


# Errors


def error_of(cause: Callable[[], object]) -> sqlite3.Error:
    with pytest.raises(sqlite3.Error) as caught:
        cause()
    return caught.value


def test_a_locked_file_is_contention(foreign: sqlite3.Connection, store: SqliteStore) -> None:
    with closing(sqlite3.connect(store.path, timeout=0, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        found = translate(error_of(lambda: foreign.execute("BEGIN IMMEDIATE")), store.path)
    assert isinstance(found, StoreContention)
    assert "store.db" in str(found)


def test_a_snapshot_that_is_out_of_date_is_contention(
    foreign: sqlite3.Connection, session: SqliteSession, store: SqliteStore
) -> None:
    foreign.execute("BEGIN")
    foreign.execute("SELECT * FROM stagepost_ready").fetchall()
    with committed(session):
        session.journal.record([a_waypoint()])
    error = error_of(lambda: foreign.execute("DELETE FROM stagepost_ready"))
    assert error.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT"
    assert isinstance(translate(error, store.path), StoreContention)


def test_a_full_disk_is_a_database_that_is_not_there_and_says_what_to_do(
    foreign: sqlite3.Connection, store: SqliteStore
) -> None:
    foreign.execute("CREATE TABLE big (data BLOB)")
    (pages,) = foreign.execute("PRAGMA page_count").fetchone()
    foreign.execute(f"PRAGMA max_page_count = {pages + 1}")
    error = error_of(lambda: foreign.execute("INSERT INTO big VALUES (zeroblob(1000000))"))
    found = translate(error, store.path)
    assert isinstance(found, StoreUnavailable)
    assert "Free some disk space" in str(found)


def test_a_full_disk_undoes_the_transaction_and_the_session_goes_on(session: SqliteSession) -> None:
    session.begin()
    (pages,) = session._cursor.execute("PRAGMA page_count").fetchone()
    session._cursor.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(StoreUnavailable, match="full"):
        session.queue.enqueue([a_row(envelope=b"x" * 1_000_000)])
    session.rollback()
    session._cursor.execute("PRAGMA max_page_count = 1000000")
    with committed(session):
        session.queue.enqueue([a_row(envelope=b"x" * 1_000_000)])


def test_a_statement_that_is_wrong_is_neither_contention_nor_absence(
    foreign: sqlite3.Connection, store: SqliteStore
) -> None:
    for statement in ("SELECT * FROM nothing", "SELEC", "INSERT INTO stagepost_meta (key) VALUES ('x')"):
        found = translate(error_of(lambda statement=statement: foreign.execute(statement)), store.path)  # type: ignore[misc]
        assert type(found) is StoreError


def test_the_file_of_another_program_in_the_place_of_ours_is_not_taken_for_it(
    session: SqliteSession, foreign: sqlite3.Connection
) -> None:
    foreign.execute("DROP TABLE stagepost_journal")
    session.begin()
    with pytest.raises(StoreError, match="no such table"):
        session.journal.record([a_waypoint()])
    session.rollback()


def test_a_file_that_is_gone_or_another_one_is_told_from_a_disk_that_does_not_answer(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    assert not store.is_replaced()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", broken)
        assert not store.is_replaced()
    store.path.rename(store.path.with_name("moved.db"))
    assert store.is_replaced()
    store.path.write_bytes(b"")
    assert store.is_replaced()


# Runs in another process, which closes the file as SQLite does.
COUNTING = """
import sqlite3, sys
from contextlib import closing
with closing(sqlite3.connect(sys.argv[1])) as connection:
    print(*connection.execute("SELECT count(*) FROM stagepost_journal").fetchone())
"""


def counted_elsewhere(path: Path) -> int:
    return int(subprocess.run([sys.executable, "-c", COUNTING, str(path)], capture_output=True, check=True).stdout)


def test_an_export_keeps_the_locks_that_the_process_has_on_the_file(store: SqliteStore, session: SqliteSession) -> None:
    """POSIX drops a process's locks on a file when it closes any descriptor of the file, as another library would.

    Another process that closes the file would then take itself for the last one, and delete the log that is in use.
    """
    with committed(session):
        session.journal.record([a_waypoint("m1")])
    export = SqliteExport(store.path)
    assert export.journal_bounds(Span()).high == 2
    assert len(exported(export, "journal", Bounds(1, 2))) == 1
    assert counted_elsewhere(store.path) == 1
    with committed(session):
        session.journal.record([a_waypoint("m2")])
    assert counted_elsewhere(store.path) == 2


def test_a_new_file_gives_its_free_pages_back_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.store.sqlite.retention.SPARE_PAGES", 100)
    path = tmp_path / "new.db"
    with closing(SqliteStore(path).session()) as session:
        with committed(session):
            session.journal.record([a_waypoint(f"m{n}", "flow") for n in range(10_000)])
        assert not session.retention.has_spare()
        with committed(session):
            session.retention.remove_lines(["flow"], 2**62)
        assert session.retention.has_spare()
        before = pages(path)
        steps = 0
        while session.retention.has_spare():
            steps += 1
            with committed(session):
                session.retention.shrink()
        assert steps > 1
        assert pages(path) < before / 2


def test_each_way_to_make_a_file_lets_it_give_pages_back(tmp_path: Path) -> None:
    """SQLite cannot change this later without a whole ``VACUUM``."""
    (tmp_path / "empty.db").touch()
    migrate_file(tmp_path / "migrated.db")
    for name in ("opened.db", "empty.db"):
        with closing(SqliteStore(tmp_path / name).apart.session()):
            pass
    for name in ("migrated.db", "opened.db", "opened.db-apart", "empty.db", "empty.db-apart"):
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,), name


def pages(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (found,) = connection.execute("PRAGMA page_count").fetchone()
        return int(found)
