"""A ``psycopg.Connection`` that is lent to a handler, and that refuses to end the stage's transaction.

It is a subclass of the driver's, so every library that takes a ``psycopg.Connection`` accepts it. While it is lent,
each statement first makes sure that the stage's transaction is open. A statement that would commit, roll back, leave
or outlive the transaction is refused, with the reason. A cursor belongs to its handler run, and refuses statements
after the run.
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

from stagepost.flow.errors import IllegalCall, TransactionBoundary, TransactionEnded
from stagepost.store.postgres.connection_loan import ConnectionLoan
from stagepost.store.postgres.cursors import CopyBlock, GuardedCursor, GuardedServerCursor, Stream
from stagepost.store.postgres.forking import forking

ENDED_BY = (
    "a statement of it failed, or a stream of it was not read to its end, and PostgreSQL accepts no more statements in "
    "such a transaction; or it was interrupted, or committed without Stagepost. Nothing of it was written. To catch an "
    "error and continue, put the statement inside `with ctx.connection.transaction()`, which undoes that part alone."
)


class TalkLock:
    """The driver's lock on a connection.

    It refuses a thread that already holds it, which would deadlock, and a thread that is not admitted. Code that Ctrl-C
    may interrupt calls ``check`` and takes ``lock`` directly: an interrupt between the two methods below could leave it
    locked.
    """

    def __init__(self, admit: Callable[[], None]) -> None:
        self._admit = admit
        self._thread: int | None = None
        self.lock = threading.Lock()

    def check(self) -> None:
        """Raise ``IllegalCall`` if this thread holds the lock, ``TransactionBoundary`` if it is not admitted."""
        self._admit()
        if self._thread == threading.get_ident():
            raise IllegalCall(
                "a statement was run while another one of the same handler was not yet over: a stream(), a copy() or "
                "an executemany(). End that one first, or collect its rows."
            )

    def __enter__(self) -> None:
        self.check()
        self.lock.acquire()
        self._thread = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._thread = None
        self.lock.release()


class Ours:
    """The block of ``GuardedConnection.ours``. A generator takes five times as long, several times a message."""

    def __init__(self, connection: GuardedConnection) -> None:
        self._connection = connection
        self._was: int | None = None

    def __enter__(self) -> None:
        self._was = self._connection.exchanging_thread
        self._connection.exchanging_thread = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._connection.exchanging_thread = self._was


class GuardedConnection(psycopg.Connection[Any]):
    _loan: ConnectionLoan | None = None
    # The thread that is running a checked statement, or one of Stagepost's.
    exchanging_thread: int | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        here = weakref.ref(self)
        self.talk_lock = TalkLock(lambda: _admit(here))
        self.lock = self.talk_lock  # type: ignore[assignment]
        # The handler's streams and copies that have not ended.
        self.unfinished: weakref.WeakSet[Stream | CopyBlock] = weakref.WeakSet()
        self._prepare_for_handlers()

    @property
    def loan(self) -> ConnectionLoan:
        if self._loan is None:
            raise TransactionBoundary(
                "Stagepost's connection was used outside the handler it was lent to. Take ctx.connection inside the "
                "handler, or open another connection."
            )
        return self._loan

    @property
    def is_lent(self) -> bool:
        return self._loan is not None

    def check_not_failed(self) -> None:
        """Raise ``TransactionEnded`` if a statement failed and the handler caught its error."""
        if self._loan is not None and self.pgconn.transaction_status == TransactionStatus.INERROR:
            what = f"the transaction of {self._loan.place} cannot go on: {ENDED_BY}"
            raise TransactionEnded(what) from self._loan.broken_by

    def lend(self, place: str, touch: Callable[[], None], catch_up: Callable[[], None]) -> None:
        self._loan = ConnectionLoan(place, touch, catch_up, self)

    def take_back(self) -> ConnectionLoan | None:
        """End the loan, and break off the streams and copies that the handler left unfinished."""
        loan = self._loan
        if loan is None:
            return None
        if self.unfinished:
            for each in list(self.unfinished):
                with suppress(psycopg.Error):
                    each.break_off()
        self._loan = None
        loan.is_over = True
        self._prepare_for_handlers()
        return loan

    def _prepare_for_handlers(self) -> None:
        """Remove the driver's settings that the last handler may have changed."""
        self.row_factory = tuple_row
        self.cursor_factory = GuardedCursor
        self.server_cursor_factory = GuardedServerCursor
        self.prepare_threshold = None
        self._adapters = None
        self._notice_handlers.clear()
        self._notify_handlers.clear()
        # The savepoints that a handler left open end with their transaction.
        self._num_transactions = 0

    @property
    def is_ours(self) -> bool:
        return self.exchanging_thread == threading.get_ident()

    def ours(self) -> Ours:
        """Let this thread open and end transactions in the block."""
        return Ours(self)

    @contextmanager
    def admitted(self, loan: ConnectionLoan, statement: str) -> Iterator[None]:
        """Check a statement of the handler, open the transaction if needed, and run the statement in the block."""
        loan.check(statement)
        loan.catch_up()
        with self.ours():
            try:
                yield
            except psycopg.Error as error:
                loan.note_error(error)
                raise

    def admit(self) -> None:
        if not self.is_ours:
            self.loan.refuse("a statement that bypasses ctx.connection.cursor()")

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Refuse a statement that has bypassed the checks: every exchange of the driver with the server calls this."""
        self.admit()
        return super().wait(*arguments, **options)

    # The methods that a handler calls. The signatures are the driver's.

    def transaction(  # type: ignore[override]
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AbstractContextManager[psycopg.Transaction]:
        """Return a block that is a savepoint within the stage's transaction."""
        return _Savepoint(self, self.loan, psycopg.Transaction(self, savepoint_name, force_rollback))

    def commit(self) -> None:
        self.loan.refuse("commit()")

    def rollback(self) -> None:
        self.loan.refuse("rollback()")

    def __enter__(self) -> NoReturn:
        self.loan.refuse("`with connection`, which commits and closes at its end,")

    def pipeline(self) -> NoReturn:
        self.loan.refuse("pipeline(), which raises an error later than its statement,")

    def set_autocommit(self, value: bool) -> None:
        if self._loan is not None:
            self.loan.refuse("set_autocommit()")
        super().set_autocommit(value)

    def tpc_begin(self, *arguments: Any, **options: Any) -> NoReturn:
        self.loan.refuse("tpc_begin()")

    def close(self) -> None:
        if self._loan is not None:
            self._loan.refuse("close()")
        super().close()


class _Savepoint(AbstractContextManager[psycopg.Transaction]):
    """A savepoint block. SAVEPOINT and RELEASE or ROLLBACK TO are checked like the handler's other statements."""

    def __init__(self, connection: GuardedConnection, loan: ConnectionLoan, made: psycopg.Transaction) -> None:
        self._connection = connection
        self._loan = loan
        self._made = made

    def __enter__(self) -> psycopg.Transaction:
        with self._connection.admitted(self._loan, ""):
            return self._made.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._loan.is_over:
            # The savepoint ended with its transaction.
            return None
        # The statements that wait belong to the block, so they must run before it ends.
        self._loan.catch_up()
        with self._connection.ours():
            return self._made.__exit__(kind, error, trace)


def _admit(connection: weakref.ref[GuardedConnection]) -> None:
    if (here := connection()) is not None:
        here.admit()


def connect(parameters: dict[str, Any]) -> GuardedConnection:
    """Open a connection in autocommit mode. Raises ``psycopg.Error``."""
    connection = GuardedConnection.connect(**parameters, autocommit=True, prepare_threshold=None)
    forking.opened(connection)
    return connection
