"""One connection to the file, used by one thread: its transactions, and what a handler may do in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stagepost.flow.errors import CommitUnknown, IllegalCall, StagepostError, StoreContention, StoreError
from stagepost.flow.rows import Rows
from stagepost.store.sqlite.connection import BEGIN, COMMIT, FULL, NORMAL, ROLLBACK, GuardedConnection, connect
from stagepost.store.sqlite.faults import is_outage, translate
from stagepost.store.sqlite.recorder import Recorder
from stagepost.store.sqlite.turnstile import turnstiles


class SqliteSession(Recorder):
    """Implements ``transaction.seams.Session``."""

    ended_by = (
        "by a statement with ON CONFLICT ROLLBACK, by an interrupt, or by SQL that commits. Nothing after it was "
        "written. Use ON CONFLICT ABORT, and leave the commit to Stagepost."
    )
    interruption: StagepostError | None = None
    _broken_by: Exception | None = None

    def __init__(self, path: Path, *, is_pinned: bool = True) -> None:
        self._is_pinned = is_pinned
        self._is_inside = False
        self._is_closed = False
        connection = _open(path, is_pinned=is_pinned)
        self._turnstile = turnstiles.of(path)
        super().__init__(path, connection.own_cursor())
        self._use(connection)

    def _use(self, connection: GuardedConnection) -> None:
        self._connection = connection
        self._handler_cursor = connection.own_cursor()
        # FULL: a commit is on the disk when it returns. Switched, between transactions, for those that need not be.
        self._is_durable = True
        self._is_stale = False

    def run(self, statement: str, parameters: Any = ()) -> sqlite3.Cursor:
        if self._is_stale:
            self._renew()
        return super().run(statement, parameters)

    def _translated(self, error: sqlite3.Error) -> StoreError:
        # A connection that was opened while the file could only be read can only read for ever.
        self._is_stale |= is_outage(error)
        return super()._translated(error)

    # Transactions

    def begin(self, *, is_durable: bool = True) -> None:
        if self._is_stale:
            self._renew()
        self._turnstile.enter()
        self._is_inside = True
        try:
            if is_durable is not self._is_durable:
                self._connection.cross(FULL if is_durable else NORMAL)
                self._is_durable = is_durable
            self._connection.cross(BEGIN)
        except sqlite3.Error as error:
            self._leave()
            raise self._translated(error) from error
        except BaseException:
            self._leave()
            raise

    def commit(self) -> None:
        if not self.is_open:
            self._leave()
            raise StoreError(f"{self._path}: there is no transaction to commit; it ended before")
        try:
            self._connection.cross(COMMIT)
        except sqlite3.Error as error:
            translated = self._translated(error)
            if self._connection.in_transaction:
                self.rollback()
                raise translated from error
            if isinstance(translated, StoreContention):
                raise translated from error
            raise CommitUnknown(f"{self._path}: {error}, and whether it was committed is not known") from error
        finally:
            self._leave()

    def rollback(self) -> None:
        try:
            if self._is_inside and self._connection.in_transaction:
                self._connection.cross(ROLLBACK)
        except sqlite3.Error:
            # Nothing of it can be kept on a connection that cannot even roll back.
            self._drop()
            self._is_stale = True
        finally:
            self._leave()

    def reconnect(self) -> None:
        """Raises ``StoreUnavailable`` where the file cannot be opened; it is tried again with the next statement."""
        self._shut()
        self._is_stale = True
        self._renew()

    def _renew(self) -> None:
        # Not while it is lent: a handler may hold it. Not in a transaction: it would vanish. Both end soon.
        if self._connection.is_lent or self._is_inside:
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
            turnstiles.done(self._turnstile)

    def _shut(self) -> None:
        self._connection.take_back()
        self._drop()
        self._leave()

    def _drop(self) -> None:
        for each in (self._cursor, self._handler_cursor, self._connection):
            with suppress(sqlite3.Error):
                # A handler that got at the connection itself may have closed it; then there is nothing left to close.
                each.close()

    @property
    def is_begun(self) -> bool:
        return self._is_inside

    @property
    def is_open(self) -> bool:
        return self._is_inside and self._connection.in_transaction

    @contextmanager
    def atomic(self) -> Iterator[None]:
        self.run("SAVEPOINT stagepost")
        try:
            yield
        except BaseException:
            # A full disk, and some other errors, have rolled back all of it already.
            if self.is_open:
                self.run("ROLLBACK TO stagepost")
                self.run("RELEASE stagepost")
            raise
        self.run("RELEASE stagepost")

    def _leave(self) -> None:
        # It holds the handler's frames.
        self._broken_by = None
        if self._is_inside:
            self._is_inside = False
            self._turnstile.leave()

    # The handler's part

    def lend(self, place: str, touch: Callable[[], None], *, may_answer_late: bool = False) -> None:
        # In-process there is nothing to be saved by it.
        if self._is_stale:
            self._renew()
        self._connection.lend(place, touch)

    def catch_up(self) -> None:
        """Nothing is answered late."""

    def take_back(self) -> StoreError | None:
        lease = self._connection.take_back()
        if lease is None:
            return None
        self._broken_by = lease.broken_by
        return None if lease.outage is None else self._translated(lease.outage)

    @property
    def broken_by(self) -> Exception | None:
        return self._connection.lease.broken_by if self._connection.is_lent else self._broken_by

    @property
    def connection(self) -> GuardedConnection:
        return self._connection

    def execute(self, statement: str, parameters: dict[str, Any]) -> Rows:
        self._connection.lease.check(statement)
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
            self._connection.lease.met(error, is_open=self._connection.in_transaction)
            raise

    def interrupt(self) -> None:
        """Break off the statement that runs, from another thread."""
        self._connection.interrupt()


def _open(path: Path, *, is_pinned: bool) -> GuardedConnection:
    try:
        connection = connect(path, is_pinned=is_pinned)
        connection.cross(FULL)
        # What the user's tables declare holds, in stages as elsewhere; SQLite asks for it to be said.
        connection.cross("PRAGMA foreign_keys = ON")
        return connection
    except sqlite3.Error as error:
        raise translate(error, path) from error
