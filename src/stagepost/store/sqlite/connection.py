"""A ``sqlite3.Connection`` that can be lent to a handler, and cannot be used to end the stage's transaction.

It is a subclass of the driver's class, so libraries accept it. While it is lent, each statement first makes sure that
the stage's transaction is open. Statements that would commit, roll back, leave or outlive it are refused with the
reason. A cursor belongs to the run that made it, and refuses every use after it.
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

# How long one of Stagepost's statements waits for a writer without the writer lock, which is a user's connection.
BUSY_TIMEOUT_SECONDS = 1.0

# The comment makes these texts differ from any text of a handler. The driver caches prepared statements by their text,
# and Stagepost's are authorized.
_REMARK = f" -- {secrets.token_hex(8)}"
BEGIN = "BEGIN IMMEDIATE" + _REMARK
COMMIT = "COMMIT" + _REMARK
ROLLBACK = "ROLLBACK" + _REMARK


FULL = "PRAGMA synchronous = FULL" + _REMARK
NORMAL = "PRAGMA synchronous = NORMAL" + _REMARK

# Actions that end the transaction, or whose effect outlives it.
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
    """The right of one handler run to use the connection."""

    def __init__(self, place: str, touch: Callable[[], None]) -> None:
        self.place = place
        self.touch = touch
        self.is_over = False
        self.opened: list[sqlite3.Cursor | sqlite3.Blob] = []
        # The run changed the connection in a way that the next run would see.
        self.leaves_something = False
        self.limits_before: dict[int, int] = {}
        self.outage: sqlite3.Error | None = None
        self.broken_by: sqlite3.Error | None = None

    def met(self, error: sqlite3.Error, *, is_open: bool) -> None:
        """Keep the error of a handler's statement. The handler may catch it, or raise another one."""
        if is_outage(error):
            self.outage = error
        if not is_open and self.broken_by is None:
            self.broken_by = error

    def check(self, statement: str) -> None:
        """Check a statement of the handler before it runs. Raises ``TransactionBoundary``."""
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
            # A half-read statement would keep its snapshot open after the commit. The handler may have closed the
            # connection.
            with suppress(sqlite3.Error):
                each.close()
        # Cursors and loan refer to each other, so without this they would last until a garbage collection.
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
        """Say whether it is closed. Code that kept the connection may close it past the method below."""
        try:
            self.total_changes  # noqa: B018 - it refuses where the connection is closed
        except sqlite3.ProgrammingError:
            return True
        return False

    def lend(self, place: str, touch: Callable[[], None]) -> None:
        if not self._has_authorizer:
            # It is set late, because SQLite takes a Ctrl-C within the authorizer for a refusal and loses it.
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

    # The methods for handlers. Their signatures are the driver's.

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
            # A handler may have kept the connection.
            self.loan.refuse("close()")
        self.shut()

    def shut(self) -> None:
        """Close the connection, also if other code still refers to it."""
        # A prepared statement would keep the file open, and an open transaction would keep its lock.
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


# Some exist only in newer versions of Python.
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
    """Open a connection. If it ``is_pinned``, only the calling thread may use it.

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
