"""A disk that is full, for real, at whatever statement: no message is to blame, whatever its handler makes of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, cast

import pytest

from stagepost import App, Context, StoreExhausted, StoreUnavailable, Target
from stagepost.store.sqlite import session as sqlite_session
from stagepost.store.sqlite.connection import GuardedConnection, connect
from stagepost.store.sqlite.session import SqliteSession
from stagepost.testing import ManualClock
from stagepost.transaction.outcome import Completed, Redelivered
from tests.transaction.test_contention import TEN_MINUTES, Order, Worker

LARGE = "x" * 100_000
# Enough for what Stagepost writes, and not for LARGE.
SOME_PAGES = 20


class Disk:
    """Full until it is waited for: then somebody has made room. ``room`` is how many pages are left until then."""

    def __init__(self, worker: Worker, patch: pytest.MonkeyPatch, *, room: int = 1) -> None:
        self._session = inner(worker)
        (self._used,) = self._session._cursor.execute("PRAGMA page_count").fetchone()
        self._set(self._used + room)
        self.waits = 0
        # A session opens its file anew after an outage.
        patch.setattr(sqlite_session, "connect", self._connect)

    def wait(self, seconds: float) -> bool:
        self.waits += 1
        self._set(self._used + 1_000_000)
        return self.waits < 5

    def _set(self, pages: int) -> None:
        self._pages = pages
        self._session._cursor.execute(f"PRAGMA max_page_count = {pages}")

    def _connect(self, path: Path, *, is_pinned: bool) -> GuardedConnection:
        connection = connect(path, is_pinned=is_pinned)
        connection.cross(f"PRAGMA max_page_count = {self._pages}")
        return connection


@pytest.fixture
def new_database(new_sqlite: Callable[[], str]) -> Callable[[], str]:
    return new_sqlite


@pytest.fixture
def worker(app: App, clock: ManualClock) -> Iterator[Worker]:
    worker = Worker(app, clock)
    yield worker
    worker.session.close()


def writes(ctx: Context) -> None:
    ctx.sql("CREATE TABLE IF NOT EXISTS heap (text)")
    ctx.sql("INSERT INTO heap VALUES (:text)", text=LARGE)


def writes_and_catches(ctx: Context) -> None:
    try:
        writes(ctx)
    except sqlite3.Error:
        return


def writes_and_reads_on(ctx: Context) -> None:
    ctx.connection.execute("CREATE TABLE IF NOT EXISTS heap (text)")
    cursor = ctx.connection.execute("INSERT INTO heap VALUES (?), (?) RETURNING text", (LARGE, LARGE))
    assert len(cursor.fetchall()) == 2


@pytest.mark.parametrize("handle", [writes, writes_and_catches, writes_and_reads_on])
def test_a_disk_that_is_full_for_a_while_is_waited_for(
    app: App, worker: Worker, monkeypatch: pytest.MonkeyPatch, handle: Callable[[Context], None]
) -> None:
    @app.endpoint("fills")
    def fills(ctx: Context, order: Order) -> None:
        handle(ctx)

    app.start(fills, Order("o1"), flow_id="flow")
    claim = worker.claim()
    disk = Disk(worker, monkeypatch)
    worker.patience = disk  # type: ignore[assignment]
    assert isinstance(worker.run(claim), Completed)
    assert disk.waits == 1
    (count,) = inner(worker)._cursor.execute("SELECT count(*) FROM heap").fetchone()
    assert count > 0


def test_one_for_whom_alone_there_is_no_room_has_failed_after_ten_minutes(
    app: App, worker: Worker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.endpoint("fills")
    def fills(ctx: Context, order: Order) -> None:
        writes(ctx)

    app.start(fills, Order("o1"), flow_id="flow")
    claim = worker.claim()
    begin = clock.monotonic()
    Disk(worker, monkeypatch, room=SOME_PAGES)
    outcome = worker.run(claim)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, StoreExhausted)
    assert TEN_MINUTES < clock.monotonic() - begin <= TEN_MINUTES + 4


@pytest.mark.parametrize("catches", [False, True])
def test_a_disk_that_is_full_for_what_a_stage_starts_is_waited_for(
    app: App, worker: Worker, monkeypatch: pytest.MonkeyPatch, *, catches: bool
) -> None:
    other: Target[Order, None] = app.remote("other", Order)

    @app.endpoint("fills")
    def fills(ctx: Context, order: Order) -> None:
        try:
            with ctx.initiate() as out:
                out.send(other, Order(LARGE), flow_id="another")
        except Exception:
            if not catches:
                raise

    app.start(fills, Order("o1"), flow_id="flow")
    claim = worker.claim()
    disk = Disk(worker, monkeypatch)
    worker.patience = disk  # type: ignore[assignment]
    assert isinstance(worker.run(claim), Completed)
    assert disk.waits == 1
    assert len(worker.access.claimer.claim(["other"], 10, "w2", "test")) == 1


class TornCursor(sqlite3.Cursor):
    """The first row is there; the next one cannot be read, once."""

    is_torn = True

    def fetchall(self) -> list[tuple[object, ...]]:
        if self.is_torn:
            self.is_torn = False
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
            raise error
        return super().fetchall()


def test_a_disk_that_fails_while_rows_are_read_counts_against_nobody(app: App, worker: Worker) -> None:
    @app.endpoint("reads")
    def reads(ctx: Context, order: Order) -> None:
        ctx.sql("SELECT 1")

    app.start(reads, Order("o1"), flow_id="flow")
    claim = worker.claim()
    session = inner(worker)
    session._handler_cursor = sqlite3.Connection.cursor(session._connection, TornCursor)
    assert isinstance(worker.run(claim), Completed)
    assert len(worker.patience.waited) == 1


def test_a_session_whose_file_could_not_be_opened_again_comes_back_with_the_file(
    app: App, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked of it first, reading included."""

    def gone(*arguments: object, **options: object) -> NoReturn:
        raise StoreUnavailable("unable to open database file")

    @app.endpoint("computes")
    def computes(ctx: Context, order: Order) -> None: ...

    app.start(computes, Order("o1"), flow_id="flow")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_session, "connect", gone)
        with pytest.raises(StoreUnavailable):
            inner(worker).reconnect()
        with pytest.raises(StoreUnavailable):
            worker.claim()
    assert isinstance(worker.run(worker.claim()), Completed)


def inner(worker: Worker) -> SqliteSession:
    return cast("SqliteSession", worker.session._session)
