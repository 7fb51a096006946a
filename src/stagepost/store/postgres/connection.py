"""A ``psycopg.Connection`` that can be lent to a handler, and cannot be used to end the stage's transaction.

It is the driver's own class, so that whatever takes a ``psycopg.Connection`` takes it. While it is lent, each statement
first makes sure that the stage's transaction is open; what would commit, roll back, leave or outlive it is refused with
the reason. A cursor belongs to the run it was made in: kept for longer, it refuses too.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.sql import Composable

from stagepost.flow.errors import IllegalCall, TransactionBoundary, TransactionEnded
from stagepost.store.postgres.boundary import forbidden, returns_to_savepoint, sets_something
from stagepost.store.postgres.faults import is_outage
from stagepost.store.postgres.forking import forking

# Once it has prepared something, psycopg has the server forget all that is prepared (DEALLOCATE ALL) after each
# ROLLBACK TO, and Stagepost's own statements with it. What goes through ctx.sql is prepared.
NEVER_PREPARED = {"prepare": False}

ENDED_BY = (
    "a statement of it failed, or a stream of it was not read to its end, and PostgreSQL takes nothing more in such a "
    "transaction; or it was interrupted, or committed behind Stagepost's back. Nothing of it was written. To catch an "
    "error and go on, have the statement inside `with ctx.connection.transaction()`, which undoes that part alone."
)


class TalkLock:
    """The driver's lock on a connection: not for a thread that would wait for itself for ever, nor for one that is to
    be kept out."""

    def __init__(self, admit: Callable[[], None]) -> None:
        self._admit = admit
        self._lock = threading.Lock()
        self._thread: int | None = None

    def __enter__(self) -> None:
        self._admit()
        if self._thread == threading.get_ident():
            raise IllegalCall(
                "a statement was run while another one of the same handler was not yet over: a stream() or copy() that "
                "is being read, or an executemany() that is being fed. End that one first, or collect its rows."
            )
        self._lock.acquire()
        self._thread = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._thread = None
        self._lock.release()


class Lease:
    """One handler run's right to use the connection."""

    def __init__(
        self, place: str, touch: Callable[[], None], catch_up: Callable[[], None], connection: GuardedConnection
    ) -> None:
        self.place = place
        self.touch = touch
        self.catch_up = catch_up
        self._connection = connection
        self.is_over = False
        self.has_set_something = False
        self.outage: psycopg.Error | None = None

    def met(self, error: psycopg.Error) -> None:
        """What a statement of the handler was answered with; it may catch it, or raise something of its own."""
        was_answered = error.sqlstate is not None
        if is_outage(error) and (was_answered or self._connection.broken):
            self.outage = error

    def check(self, statement: str) -> None:
        """Before each statement of the handler."""
        self.check_still_there()
        what = forbidden(statement)
        if what is not None:
            self.refuse(what)
        if not returns_to_savepoint(statement):
            self._connection.check_not_failed()
        self.touch()
        self.has_set_something = self.has_set_something or sets_something(statement)

    def check_still_there(self) -> None:
        if self.is_over:
            raise TransactionBoundary(
                f"a connection or cursor of {self.place} was used after its handler had returned: its transaction is "
                "over. Take ctx.connection anew in each run."
            )

    def refuse(self, what: str) -> NoReturn:
        raise TransactionBoundary(
            f"{what} was refused in {self.place}: the handler's statements, its message and what it sends commit "
            "together when the handler has returned, or roll back when it raises. To undo and set the message aside, "
            "call ctx.refuse(reason); to undo a part, use `with ctx.connection.transaction()`, which is a savepoint "
            "there."
        )


class GuardedCursor(psycopg.Cursor[Any]):
    def __init__(self, connection: psycopg.Connection[Any], **options: Any) -> None:
        super().__init__(connection, **options)
        assert isinstance(connection, GuardedConnection)
        self._guarded = connection
        self._lease = connection.lease

    def execute(self, query: Any, params: Any = None, **options: Any) -> GuardedCursor:
        with self._guarded.admitted(self._lease, _text(query, self._guarded)):
            super().execute(query, params, **options | NEVER_PREPARED)
        return self

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        with self._guarded.admitted(self._lease, _text(query, self._guarded)):
            super().executemany(query, params_seq, **options)

    def stream(self, query: Any, params: Any = None, **options: Any) -> Iterator[Any]:
        made = super().stream(query, params, **options)
        return _Stream(self._guarded, self._lease, _text(query, self._guarded), made)

    def copy(  # type: ignore[override]
        self, statement: Any, params: Any = None, **options: Any
    ) -> AbstractContextManager[psycopg.Copy]:
        made = super().copy(statement, params, **options)
        return _CopyBlock(self._guarded, self._lease, _text(statement, self._guarded), made)


class GuardedServerCursor(psycopg.ServerCursor[Any]):
    def __init__(self, connection: psycopg.Connection[Any], name: str, **options: Any) -> None:
        super().__init__(connection, name, **options)
        assert isinstance(connection, GuardedConnection)
        self._guarded = connection
        self._lease = connection.lease
        if self.withhold:
            self._lease.refuse("a cursor WITH HOLD, which would outlive this run,")

    def execute(self, query: Any, params: Any = None, **options: Any) -> GuardedServerCursor:
        with self._guarded.admitted(self._lease, _text(query, self._guarded)):
            super().execute(query, params, **options)
        return self

    # The server has the rows.

    def fetchone(self) -> Any:
        with self._guarded.admitted(self._lease, ""):
            return super().fetchone()

    def fetchmany(self, size: int = 0) -> list[Any]:
        with self._guarded.admitted(self._lease, ""):
            return super().fetchmany(size)

    def fetchall(self) -> list[Any]:
        with self._guarded.admitted(self._lease, ""):
            return super().fetchall()

    def __next__(self) -> Any:
        with self._guarded.admitted(self._lease, ""):
            return super().__next__()

    def scroll(self, value: int, mode: str = "relative") -> None:
        with self._guarded.admitted(self._lease, ""):
            super().scroll(value, mode)

    def close(self) -> None:
        if self._lease.is_over:
            # The server has closed it, with the transaction.
            self._closed = True
            return
        with self._guarded.ours():
            super().close()

    def __del__(self, _warn: Any = None, /) -> None:
        """Without the driver's warning: one that was left open ends with the stage's transaction."""


class GuardedConnection(psycopg.Connection[Any]):
    _lease: Lease | None = None
    # The thread that is just running a statement that was looked at, or one of ours.
    _speaker: int | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        here = weakref.ref(self)
        self.lock = TalkLock(lambda: _admit(here))  # type: ignore[assignment]
        # The streams and copies that the handler has under way.
        self._unfinished: weakref.WeakSet[_Stream | _CopyBlock] = weakref.WeakSet()
        self._prepare_for_handlers()

    @property
    def lease(self) -> Lease:
        if self._lease is None:
            raise TransactionBoundary(
                "Stagepost's connection was used outside the handler it was lent to. Take ctx.connection inside the "
                "handler, or open a connection of your own."
            )
        return self._lease

    @property
    def is_lent(self) -> bool:
        return self._lease is not None

    def check_not_failed(self) -> None:
        """A handler may have caught the error of a statement, and know nothing of what follows from it."""
        if self._lease is not None and self.info.transaction_status == TransactionStatus.INERROR:
            raise TransactionEnded(f"the transaction of {self._lease.place} cannot go on: {ENDED_BY}")

    def lend(self, place: str, touch: Callable[[], None], catch_up: Callable[[], None]) -> None:
        """``catch_up`` sends what was to come before the handler's next statement, and waits."""
        self._lease = Lease(place, touch, catch_up, self)

    def take_back(self) -> Lease | None:
        """Whatever the handler left unfinished is broken off."""
        lease = self._lease
        if lease is None:
            return None
        for each in list(self._unfinished):
            with suppress(psycopg.Error):
                each.break_off()
        self._lease = None
        lease.is_over = True
        self._prepare_for_handlers()
        return lease

    def _prepare_for_handlers(self) -> None:
        """What a handler may have set is not there for the next one."""
        self.row_factory = tuple_row
        self.cursor_factory = GuardedCursor
        self.server_cursor_factory = GuardedServerCursor
        self.prepare_threshold = None
        self._adapters = None
        self._notice_handlers.clear()
        self._notify_handlers.clear()
        # Savepoints that were left open are gone with their transaction.
        self._num_transactions = 0

    def began(self, unfinished: _Stream | _CopyBlock) -> None:
        self._unfinished.add(unfinished)

    def ended(self, unfinished: _Stream | _CopyBlock) -> None:
        self._unfinished.discard(unfinished)

    def cursor_of_ours(self) -> psycopg.RawCursor[Any]:
        return psycopg.RawCursor(self, row_factory=tuple_row)

    @property
    def is_ours(self) -> bool:
        return self._speaker == threading.get_ident()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """What this thread says in the block may open and end transactions."""
        was, self._speaker = self._speaker, threading.get_ident()
        try:
            yield
        finally:
            self._speaker = was

    @contextmanager
    def admitted(self, lease: Lease, statement: str) -> Iterator[None]:
        """A statement of the handler that was looked at, with the transaction open."""
        lease.check(statement)
        lease.catch_up()
        with self.ours():
            try:
                yield
            except psycopg.Error as error:
                lease.met(error)
                raise

    def admit(self) -> None:
        if not self.is_ours:
            self.lease.refuse("a statement past ctx.connection.cursor()")

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Everything that talks to the server comes by here: the net below the checks above."""
        self.admit()
        return super().wait(*arguments, **options)

    # What a handler meets. The signatures are the driver's.

    def transaction(  # type: ignore[override]
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AbstractContextManager[psycopg.Transaction]:
        """Within the stage's transaction: a savepoint."""
        return _Savepoint(self, self.lease, psycopg.Transaction(self, savepoint_name, force_rollback))

    def commit(self) -> None:
        self.lease.refuse("commit()")

    def rollback(self) -> None:
        self.lease.refuse("rollback()")

    def __enter__(self) -> NoReturn:
        self.lease.refuse("`with connection`, which commits and closes at its end,")

    def pipeline(self) -> Any:
        if not self.is_ours:
            self.lease.refuse("pipeline(), where an error would come after its statement,")
        return super().pipeline()

    def set_autocommit(self, value: bool) -> None:
        if self._lease is not None:
            self.lease.refuse("set_autocommit()")
        super().set_autocommit(value)

    def tpc_begin(self, *arguments: Any, **options: Any) -> NoReturn:
        self.lease.refuse("tpc_begin()")

    def close(self) -> None:
        if self._lease is not None:
            self._lease.refuse("close()")
        super().close()


class _Savepoint(AbstractContextManager[psycopg.Transaction]):
    """Its SAVEPOINT and its end are statements of the handler; what is between them is not of its making."""

    def __init__(self, connection: GuardedConnection, lease: Lease, made: psycopg.Transaction) -> None:
        self._connection = connection
        self._lease = lease
        self._made = made

    def __enter__(self) -> psycopg.Transaction:
        with self._connection.admitted(self._lease, ""):
            return self._made.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._lease.is_over:
            # It is gone with its transaction.
            return None
        with self._connection.ours():
            return self._made.__exit__(kind, error, trace)


class _Stream(Iterator[Any]):
    """Rows that the server still sends; nothing else can be said meanwhile."""

    def __init__(self, connection: GuardedConnection, lease: Lease, statement: str, made: Any) -> None:
        self._connection = connection
        self._lease = lease
        self._statement = statement
        self._made = made
        self._is_begun = False

    def __next__(self) -> Any:
        if not self._is_begun:
            self._lease.check(self._statement)
            self._is_begun = True
            self._connection.began(self)
        else:
            self._lease.check_still_there()
        try:
            with self._connection.ours():
                return next(self._made)
        except BaseException as error:
            self._connection.ended(self)
            if isinstance(error, psycopg.Error):
                self._lease.met(error)
            raise

    def close(self) -> None:
        if self._is_begun and not self._lease.is_over:
            self.break_off()

    def break_off(self) -> None:
        self._connection.ended(self)
        with self._connection.ours():
            self._made.close()

    def __del__(self) -> None:
        self.close()


class _CopyBlock(AbstractContextManager[psycopg.Copy]):
    def __init__(
        self,
        connection: GuardedConnection,
        lease: Lease,
        statement: str,
        made: AbstractContextManager[psycopg.Copy],
    ) -> None:
        self._connection = connection
        self._lease = lease
        self._statement = statement
        self._made = made
        # What the block reads and writes talks to the server past any cursor.
        self._ours = connection.ours()
        self._is_under_way = False

    def __enter__(self) -> psycopg.Copy:
        with self._connection.admitted(self._lease, self._statement):
            copy = self._made.__enter__()
        self._is_under_way = True
        self._connection.began(self)
        self._ours.__enter__()
        return copy

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if not self._is_under_way:
            return None
        self._is_under_way = False
        self._connection.ended(self)
        try:
            return self._made.__exit__(kind, error, trace)
        except psycopg.Error as failure:
            self._lease.met(failure)
            raise
        finally:
            self._ours.__exit__(None, None, None)

    def break_off(self) -> None:
        error = TransactionEnded(f"a copy of {self._lease.place} was not ended by its handler")
        with suppress(TransactionEnded):
            self.__exit__(TransactionEnded, error, None)

    def __del__(self) -> None:
        if self._is_under_way and not self._lease.is_over:
            with suppress(psycopg.Error):
                self.break_off()


def _admit(connection: weakref.ref[GuardedConnection]) -> None:
    if (here := connection()) is not None:
        here.admit()


def _text(query: Any, connection: psycopg.Connection[Any]) -> str:
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    if isinstance(query, Composable):
        return query.as_string(connection)
    # Python 3.14's template strings: what is quoted there cannot be a statement.
    return "".join(getattr(query, "strings", (str(query),)))


def connect(parameters: dict[str, Any]) -> GuardedConnection:
    """Raises ``psycopg.Error``."""
    connection = GuardedConnection.connect(**parameters, autocommit=True, prepare_threshold=None)
    forking.opened(connection)
    return connection
