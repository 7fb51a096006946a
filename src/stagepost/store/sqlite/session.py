"""One connection to the file, used by one thread: its transactions, and what a handler may do in them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stagepost.flow.errors import (
    CommitUnknown,
    IllegalCall,
    StagepostError,
    StoreContention,
    StoreError,
    StoreExhausted,
    StoreUnavailable,
)
from stagepost.flow.rows import Rows
from stagepost.ports.session import Absent, ended_under
from stagepost.store.sql.database import Parameters
from stagepost.store.sqlite.connection import BEGIN, COMMIT, FULL, NORMAL, ROLLBACK, GuardedConnection, connect
from stagepost.store.sqlite.disk import lock_holder
from stagepost.store.sqlite.faults import is_contention, is_outage, translate
from stagepost.store.sqlite.writer import SqliteWriter
from stagepost.store.sqlite.writer_lock import writer_locks

# The byte of a file's shared memory that SQLite locks for as long as somebody writes.
WAL_WRITE_LOCK = 120


ENDED_BY = (
    "by a statement with ON CONFLICT ROLLBACK, by an interrupt, or by SQL that commits. Nothing after it was "
    "written. Use ON CONFLICT ABORT, and leave the commit to Stagepost."
)


class SqliteSession(SqliteWriter):
    """Implements ``ports.session.Session``."""

    _broken_by: Exception | None = None

    def __init__(self, path: Path, *, is_pinned: bool = True) -> None:
        self._is_pinned = is_pinned
        self._is_closed = False
        self.doing = "another thread of this process"
        connection = _open(path, is_pinned=is_pinned)
        self._writer_lock = writer_locks.of(path)
        super().__init__(path, connection.own_cursor())
        self.decisions: Any = Absent("decisions")
        self.prepared: Any = Absent("prepare")
        self._use(connection)

    def _use(self, connection: GuardedConnection) -> None:
        self._connection = connection
        self._handler_cursor = connection.own_cursor()
        # FULL: a commit is on the disk when it returns. Switched, between transactions, for those that need not be.
        # None where an interrupt came while it was switched.
        self._is_durable: bool | None = True
        self._is_stale = False

    def run(self, statement: str, parameters: Parameters = ()) -> sqlite3.Cursor:
        if self._is_stale:
            self._renew()
        return super().run(statement, parameters)

    def _translated(self, error: sqlite3.Error) -> StoreError:
        if self._connection.is_closed:
            self._is_stale = True
            return StoreUnavailable(f"{self._path}: its connection was closed by a handler that had kept it")
        # A connection that was opened while the file was read-only stays read-only.
        self._is_stale |= is_outage(error)
        return super()._translated(error)

    # Transactions

    def begin(self, *, is_durable: bool = True) -> None:
        if self._is_stale:
            self._renew()
        begin = time.monotonic()
        try:
            self._writer_lock.enter(self, begin)
            if is_durable is not self._is_durable:
                self._is_durable = None
                self._connection.cross(FULL if is_durable else NORMAL)
                self._is_durable = is_durable
            while not self._has_begun():
                self._writer_lock.check(begin, self._outsider)
        except sqlite3.Error as error:
            self.rollback()
            raise self._translated(error) from error
        except BaseException:
            # An interrupt may have come when the transaction was open already.
            self.rollback()
            raise

    def _has_begun(self) -> bool:
        """False where somebody who does not pass the writer lock writes, for longer than SQLite waits."""
        try:
            self._connection.cross(BEGIN)
        except sqlite3.OperationalError as error:
            if is_contention(error):
                return False
            raise
        return True

    def _outsider(self) -> str:
        shared_memory = self._path.with_name(self._path.name + "-shm")
        return str(lock_holder(shared_memory, WAL_WRITE_LOCK) or "another connection")

    def commit(self) -> None:
        if not self.is_open:
            self._leave()
            raise StoreError(f"{self._path}: there is no transaction to commit; it ended before")
        try:
            self._connection.cross(COMMIT)
        except sqlite3.Error as error:
            translated = self._translated(error)
            # A full disk has rolled it back.
            if isinstance(translated, StoreContention | StoreExhausted) or self.is_open:
                raise translated from error
            raise CommitUnknown(f"{self._path}: {error}, and whether it was committed is not known") from error
        finally:
            self.rollback()

    def rollback(self) -> None:
        """Nothing where no transaction is open."""
        try:
            if self.is_begun and self._connection.in_transaction:
                self._connection.cross(ROLLBACK)
        except sqlite3.Error:
            # Nothing of it can be kept on a connection that cannot even roll back, or that its handler closed.
            self._drop()
            self._is_stale = True
        # Not after an interrupt: the transaction is open still, and rolled back by the next call.
        self._leave()

    def reconnect(self) -> None:
        """Raises ``StoreUnavailable`` where the file cannot be opened; it is tried again with the next statement."""
        self._shut()
        self._is_stale = True
        self._renew()

    def _renew(self) -> None:
        # Not while it is lent: a handler may hold it. Not in a transaction: it would vanish. Both end soon.
        if self._connection.is_lent or self.is_begun:
            return
        fresh = _open(self._path, is_pinned=self._is_pinned)
        self._drop()
        self._cursor = fresh.own_cursor()
        self._use(fresh)
        self.queue.reconnected()

    def close(self) -> None:
        self._shut()
        if not self._is_closed:
            self._is_closed = True
            writer_locks.done(self._writer_lock)

    def _shut(self) -> None:
        self._connection.take_back()
        self._drop()
        self._leave()

    def _drop(self) -> None:
        for close in (self._cursor.close, self._handler_cursor.close, self._connection.shut):
            with suppress(sqlite3.Error):
                # A handler that got at the connection itself may have closed it; then there is nothing left to close.
                close()

    @property
    def is_begun(self) -> bool:
        return self._writer_lock.has_inside(self)

    @property
    def is_open(self) -> bool:
        is_begun = self._writer_lock.has_inside(self)
        return is_begun and not self._connection.is_closed and self._connection.in_transaction

    def ending(self, stage: str) -> StagepostError | None:
        if self.is_open:
            return None
        cause = self._connection.loan.broken_by if self._connection.is_lent else self._broken_by
        return ended_under(stage, ENDED_BY, cause)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        self.run("savepoint")
        try:
            yield
        except BaseException:
            # A full disk, and some other errors, have rolled back all of it already.
            if self.is_open:
                self.run("rollback_to")
                self.run("release")
            raise
        self.run("release")

    def _leave(self) -> None:
        # It holds the handler's frames.
        self._broken_by = None
        self._writer_lock.leave(self)

    # The handler's part

    def lend(self, place: str, touch: Callable[[], None], *, may_answer_late: bool = False) -> None:
        # In-process there is nothing to be saved by it.
        if self._is_stale:
            self._renew()
        self.doing = f"{place}, a stage of this process,"
        self._connection.lend(place, touch)

    def catch_up(self) -> None:
        """Nothing is answered late."""

    def take_back(self) -> StoreError | None:
        loan = self._connection.take_back()
        if loan is None:
            return None
        self._broken_by = loan.broken_by
        # Another connection for the next run: a function that takes the place of one of SQLite's cannot be removed.
        self._is_stale |= loan.leaves_something
        return None if loan.outage is None else self._translated(loan.outage)

    @property
    def connection(self) -> GuardedConnection:
        return self._connection

    def execute(self, statement: str, parameters: dict[str, Any]) -> Rows:
        self._connection.loan.check(statement)
        # One cursor for all: what it finds is read out at once, so nothing of it is left open.
        cursor = self._handler_cursor
        try:
            cursor.execute(statement, parameters)
            if cursor.description is None:
                return Rows((), (), cursor.rowcount)
            return Rows(tuple(each[0] for each in cursor.description), cursor.fetchall(), cursor.rowcount)
        except (sqlite3.ProgrammingError, sqlite3.InterfaceError) as error:
            # The driver's own check of statement and parameters: another attempt would meet it again.
            given = ", ".join(parameters) or "none"
            raise IllegalCall(
                f"ctx.sql: {error} (parameters given: {given}). Write one statement, with :name for each parameter, of "
                "types that SQLite knows: ctx.sql('… WHERE id = :id', id=…)."
            ) from error
        except sqlite3.Error as error:
            self._connection.loan.met(error, is_open=self._connection.in_transaction)
            raise

    def interrupt(self) -> None:
        """Break off the statement that runs, from another thread."""
        self._connection.interrupt()


def _open(path: Path, *, is_pinned: bool) -> GuardedConnection:
    try:
        connection = connect(path, is_pinned=is_pinned)
        connection.cross(FULL)
        # SQLite enforces the foreign keys of the user's tables only after this.
        connection.cross("PRAGMA foreign_keys = ON")
        return connection
    except sqlite3.Error as error:
        raise translate(error, path) from error
