"""A ``sqlite3.Connection`` that can be lent to a handler, and cannot be used to end the stage's transaction.

It is the driver's own class, so that whatever takes a ``sqlite3.Connection`` takes it. While it is lent, each statement
first makes sure that the stage's transaction is open; what would commit, roll back, leave or outlive it is refused with
the reason. A cursor belongs to the run it was made in: kept for longer, it refuses too.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from stagepost.flow.errors import TransactionBoundary
from stagepost.store.sqlite.boundary import LOOKING, forbidden
from stagepost.store.sqlite.faults import is_outage
from stagepost.store.sqlite.forking import forking

T = TypeVar("T")

# How long a statement of ours waits, in one go, for a writer that does not pass the writer lock: a user's connection.
BUSY_TIMEOUT_SECONDS = 1.0

# The remark keeps them apart from a handler's own text in the driver's statement cache: what was prepared for us, and
# so authorized, must not be found there.
_REMARK = f" -- {secrets.token_hex(8)}"
BEGIN = "BEGIN IMMEDIATE" + _REMARK
COMMIT = "COMMIT" + _REMARK
ROLLBACK = "ROLLBACK" + _REMARK


FULL = "PRAGMA synchronous = FULL" + _REMARK
NORMAL = "PRAGMA synchronous = NORMAL" + _REMARK

# What ends the transaction, or is there for the runs to come.
OUTLIVING = {
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_CREATE_TEMP_INDEX,
    sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
    sqlite3.SQLITE_CREATE_TEMP_VIEW,
}


class ConnectionLoan:
    """One handler run's right to use the connection."""

    def __init__(self, place: str, touch: Callable[[], None]) -> None:
        self.place = place
        self.touch = touch
        self.is_over = False
        self.opened: list[sqlite3.Cursor | sqlite3.Blob] = []
        # Whether it made something of the connection that would be there for the next run.
        self.leaves_something = False
        self.limits_before: dict[int, int] = {}
        self.outage: sqlite3.Error | None = None
        self.broken_by: sqlite3.Error | None = None

    def met(self, error: sqlite3.Error, *, is_open: bool) -> None:
        """What a statement of the handler was answered with; it may catch it, or raise something of its own."""
        if is_outage(error):
            self.outage = error
        if not is_open and self.broken_by is None:
            self.broken_by = error

    def check(self, statement: str) -> None:
        """Before each statement of the handler."""
        if self.is_over:
            raise TransactionBoundary(
                f"a connection or cursor of {self.place} was used after its handler had returned: its transaction is "
                "over. Take ctx.connection again in each run."
            )
        what = forbidden(statement)
        if what is not None:
            self.refuse(what)
        self.touch()

    def refuse(self, what: str) -> NoReturn:
        raise TransactionBoundary(
            f"{what} was refused in {self.place}: the handler's statements, its message and what it sends commit "
            "together when the handler has returned, or roll back when it raises. To undo and set the message aside, "
            "call ctx.refuse(reason); to undo a part, use SAVEPOINT and ROLLBACK TO."
        )

    def end(self) -> None:
        self.is_over = True
        for each in self.opened:
            # A statement left half read would keep its snapshot open past the commit. Of a connection that the handler
            # closed, by whatever way, there is none.
            with suppress(sqlite3.Error):
                each.close()
        # Cursor and loan know each other, so they would last until the garbage collector comes.
        self.opened.clear()


class GuardedCursor(sqlite3.Cursor):
    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        assert isinstance(connection, GuardedConnection)
        self._loan = connection.loan
        self._loan.opened.append(self)

    def execute(self, sql: str, parameters: Any = (), /) -> GuardedCursor:
        self._loan.check(sql)
        self._watched(super().execute, sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> GuardedCursor:
        self._loan.check(sql)
        self._watched(super().executemany, sql, parameters)
        return self

    # SQLite reads all rows but the first when they are asked for.

    def fetchone(self) -> Any:
        return self._watched(super().fetchone)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        return self._watched(super().fetchmany, self.arraysize if size is None else size)

    def fetchall(self) -> list[Any]:
        return self._watched(super().fetchall)

    def __next__(self) -> Any:
        return self._watched(super().__next__)

    def _watched(self, ask: Callable[..., T], *arguments: Any) -> T:
        try:
            return ask(*arguments)
        except sqlite3.Error as error:
            self._loan.met(error, is_open=self.connection.in_transaction)
            raise

    def executescript(self, sql_script: str, /) -> NoReturn:
        self._loan.refuse("executescript, which commits first,")


class GuardedConnection(sqlite3.Connection):
    _loan: ConnectionLoan | None = None
    # Ours are the statements that may open and end transactions.
    _is_ours = True
    _has_authorizer = False

    @property
    def loan(self) -> ConnectionLoan:
        if self._loan is None:
            raise TransactionBoundary(
                "Stagepost's connection was used outside the handler it was lent to. Take ctx.connection inside the "
                "handler, or open a connection of your own."
            )
        return self._loan

    @property
    def is_lent(self) -> bool:
        return self._loan is not None

    @property
    def is_closed(self) -> bool:
        """Whoever has kept the connection may have closed it, past the method below."""
        try:
            self.total_changes  # noqa: B018 - it refuses where the connection is closed
        except sqlite3.ProgrammingError:
            return True
        return False

    def lend(self, place: str, touch: Callable[[], None]) -> None:
        if not self._has_authorizer:
            # Not before: where Ctrl-C comes while SQLite asks it, SQLite takes that for a no, and Ctrl-C is lost.
            super().set_authorizer(self.authorize)
            self._has_authorizer = True
        self._loan = ConnectionLoan(place, touch)
        self._is_ours = False

    def take_back(self) -> ConnectionLoan | None:
        self._is_ours = True
        loan = self._loan
        if loan is None:
            return None
        self._loan = None
        loan.end()
        if loan.leaves_something:
            # These would be called by Stagepost's own statements.
            with suppress(sqlite3.Error):
                super().set_progress_handler(None, 0)
                super().set_trace_callback(None)
        for category, limit in loan.limits_before.items():
            super().setlimit(category, limit)
        self.row_factory = None
        self.text_factory = str
        return loan

    def own_cursor(self) -> sqlite3.Cursor:
        return super().cursor(sqlite3.Cursor)

    @cached_property
    def _boundary_cursor(self) -> sqlite3.Cursor:
        return self.own_cursor()

    def cross(self, boundary: str) -> None:
        """Run one of the constants above, also while the connection is lent."""
        was, self._is_ours = self._is_ours, True
        try:
            self._boundary_cursor.execute(boundary)
        finally:
            self._is_ours = was

    def authorize(self, action: int, name: str | None, argument: str | None, *_details: object) -> int:
        """The net below the checks by text: asked when a statement is prepared, by whatever way it came."""
        if self._is_ours:
            return sqlite3.SQLITE_OK
        changes = action == sqlite3.SQLITE_PRAGMA and argument is not None and (name or "").lower() not in LOOKING
        if action in OUTLIVING or changes:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    # What a handler meets. The signatures are the driver's.

    def cursor(self, factory: Any = None) -> GuardedCursor:  # type: ignore[override]  # always ours, whatever is asked
        return super().cursor(GuardedCursor)

    def execute(self, sql: str, parameters: Any = (), /) -> GuardedCursor:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> GuardedCursor:
        return self.cursor().executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> NoReturn:
        self.loan.refuse("executescript(), which commits first,")

    def commit(self) -> None:
        self.loan.refuse("commit()")

    def rollback(self) -> None:
        self.loan.refuse("rollback()")

    def __enter__(self) -> NoReturn:
        self.loan.refuse("`with connection`, which commits at its end,")

    def blobopen(self, *arguments: Any, **options: Any) -> sqlite3.Blob:
        self.loan.check("")
        blob = super().blobopen(*arguments, **options)
        self.loan.opened.append(blob)
        return blob

    def set_authorizer(self, *arguments: Any, **options: Any) -> NoReturn:
        self.loan.refuse("set_authorizer(), which keeps the transaction,")

    def setlimit(self, category: int, limit: int, /) -> int:
        before = super().setlimit(category, limit)
        self.loan.limits_before.setdefault(category, before)
        return before

    def close(self) -> None:
        if self._has_authorizer:
            # A handler may have kept it.
            self.loan.refuse("close()")
        self.shut()

    def shut(self) -> None:
        """Close it, whoever has it."""
        # A statement that is still prepared would keep the file, and a transaction that is open its lock.
        self._boundary_cursor.close()
        super().close()
        forking.closed(self)

    @property
    def isolation_level(self) -> None:
        return None

    @isolation_level.setter
    def isolation_level(self, value: object) -> None:
        self.loan.refuse("setting isolation_level, which commits,")


def _leaving_something(change: Callable[..., T]) -> Callable[..., T]:
    def changed(connection: GuardedConnection, *arguments: Any, **options: Any) -> T:
        connection.loan.leaves_something = True
        return change(connection, *arguments, **options)

    return changed


# Some are of newer versions of Python.
for _name in (
    "create_function",
    "create_aggregate",
    "create_window_function",
    "create_collation",
    "set_progress_handler",
    "set_trace_callback",
    "setconfig",
    "enable_load_extension",
    "load_extension",
):
    if hasattr(sqlite3.Connection, _name):
        setattr(GuardedConnection, _name, _leaving_something(getattr(sqlite3.Connection, _name)))


def connect(path: Path, *, is_pinned: bool = True) -> GuardedConnection:
    """``is_pinned``: only the thread that made it may use it.

    Raises ``sqlite3.Error``, and ``StoreUnavailable`` in a process forked from one that had a file open.
    """
    forking.check()
    connection = sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_SECONDS,
        isolation_level=None,
        check_same_thread=is_pinned,
        factory=GuardedConnection,
        cached_statements=256,
    )
    assert isinstance(connection, GuardedConnection)
    forking.opened(connection)
    return connection
