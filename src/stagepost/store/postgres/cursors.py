"""The cursors of a lent connection. They check each statement before it runs, and keep track of streams and copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import psycopg
from psycopg.sql import Composable

from stagepost.flow.errors import TransactionEnded
from stagepost.store.postgres.connection_loan import ConnectionLoan

if TYPE_CHECKING:
    from stagepost.store.postgres.connection import GuardedConnection

# Once psycopg has prepared a statement, it runs DEALLOCATE ALL after each ROLLBACK TO, which also drops Stagepost's
# prepared statements. The statements of ctx.sql are prepared by the pipeline.
NEVER_PREPARED = {"prepare": False}


class GuardedCursor(psycopg.Cursor[Any]):
    def __init__(self, connection: psycopg.Connection[Any], **options: Any) -> None:
        super().__init__(connection, **options)
        self._guarded = cast("GuardedConnection", connection)
        self._loan = self._guarded.loan

    def execute(self, query: Any, params: Any = None, **options: Any) -> GuardedCursor:
        with self._guarded.admitted(self._loan, _text(query, self._guarded)):
            super().execute(query, params, **options | NEVER_PREPARED)
        return self

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        with self._guarded.admitted(self._loan, _text(query, self._guarded)):
            super().executemany(query, params_seq, **options)

    def stream(self, query: Any, params: Any = None, **options: Any) -> Iterator[Any]:
        made = super().stream(query, params, **options)
        return Stream(self._guarded, self._loan, _text(query, self._guarded), made)

    def copy(  # type: ignore[override]
        self, statement: Any, params: Any = None, **options: Any
    ) -> AbstractContextManager[psycopg.Copy]:
        made = super().copy(statement, params, **options)
        return CopyBlock(self._guarded, self._loan, _text(statement, self._guarded), made)


class GuardedServerCursor(psycopg.ServerCursor[Any]):
    def __init__(self, connection: psycopg.Connection[Any], name: str, **options: Any) -> None:
        super().__init__(connection, name, **options)
        self._guarded = cast("GuardedConnection", connection)
        self._loan = self._guarded.loan
        if self.withhold:
            self._loan.refuse("a cursor WITH HOLD, which would outlive this run,")

    def execute(self, query: Any, params: Any = None, **options: Any) -> GuardedServerCursor:
        with self._guarded.admitted(self._loan, _text(query, self._guarded)):
            super().execute(query, params, **options)
        return self

    # These fetch rows from the server, so each is a statement.

    def fetchone(self) -> Any:
        with self._guarded.admitted(self._loan, ""):
            return super().fetchone()

    def fetchmany(self, size: int = 0) -> list[Any]:
        with self._guarded.admitted(self._loan, ""):
            return super().fetchmany(size)

    def fetchall(self) -> list[Any]:
        with self._guarded.admitted(self._loan, ""):
            return super().fetchall()

    def __next__(self) -> Any:
        with self._guarded.admitted(self._loan, ""):
            return super().__next__()

    def scroll(self, value: int, mode: str = "relative") -> None:
        with self._guarded.admitted(self._loan, ""):
            super().scroll(value, mode)

    def close(self) -> None:
        if self._loan.is_over:
            # The server closed the cursor at the end of the transaction.
            self._closed = True
            return
        with self._guarded.ours():
            super().close()

    def __del__(self, _warn: Any = None, /) -> None:
        """Suppress the driver's warning: a cursor that was left open ends with the stage's transaction."""


class Stream(Iterator[Any]):
    """Rows that the server still sends. No other statement can run on the connection meanwhile."""

    def __init__(self, connection: GuardedConnection, loan: ConnectionLoan, statement: str, made: Any) -> None:
        self._connection = connection
        self._loan = loan
        self._statement = statement
        self._made = made
        self._is_begun = False

    def __next__(self) -> Any:
        if not self._is_begun:
            self._loan.check(self._statement)
            self._loan.catch_up()
            self._is_begun = True
            self._connection.unfinished.add(self)
        else:
            self._loan.check_still_there()
        try:
            with self._connection.ours():
                return next(self._made)
        except BaseException as error:
            self._connection.unfinished.discard(self)
            if isinstance(error, psycopg.Error):
                self._loan.note_error(error)
            raise

    def close(self) -> None:
        if self._is_begun and not self._loan.is_over:
            self.break_off()

    def break_off(self) -> None:
        self._connection.unfinished.discard(self)
        with self._connection.ours():
            self._made.close()

    def __del__(self) -> None:
        self.close()


class CopyBlock(AbstractContextManager[psycopg.Copy]):
    """The block of a handler's ``copy()``. No other statement can run on the connection meanwhile."""

    def __init__(
        self,
        connection: GuardedConnection,
        loan: ConnectionLoan,
        statement: str,
        made: AbstractContextManager[psycopg.Copy],
    ) -> None:
        self._connection = connection
        self._loan = loan
        self._statement = statement
        self._made = made
        # The copy reads and writes without a cursor, so the connection must admit the whole block.
        self._ours = connection.ours()
        self._is_under_way = False

    def __enter__(self) -> psycopg.Copy:
        with self._connection.admitted(self._loan, self._statement):
            copy = self._made.__enter__()
        self._is_under_way = True
        self._connection.unfinished.add(self)
        self._ours.__enter__()
        return copy

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if not self._is_under_way:
            return None
        self._is_under_way = False
        self._connection.unfinished.discard(self)
        try:
            return self._made.__exit__(kind, error, trace)
        except psycopg.Error as failure:
            self._loan.note_error(failure)
            raise
        finally:
            self._ours.__exit__(None, None, None)

    def break_off(self) -> None:
        error = TransactionEnded(f"a copy() was left open by the handler of {self._loan.place}")
        with suppress(TransactionEnded):
            self.__exit__(TransactionEnded, error, None)

    def __del__(self) -> None:
        if self._is_under_way and not self._loan.is_over:
            with suppress(psycopg.Error):
                self.break_off()


def _text(query: Any, connection: psycopg.Connection[Any]) -> str:
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    if isinstance(query, Composable):
        return query.as_string(connection)
    # A template string of Python 3.14: its interpolated values are parameters, and cannot be statements.
    return "".join(getattr(query, "strings", (str(query),)))
