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

from stagepost.flow.errors import IllegalCall, TransactionBoundary, TransactionEnded
from stagepost.store.postgres.connection_loan import ConnectionLoan
from stagepost.store.postgres.cursors import CopyBlock, GuardedCursor, GuardedServerCursor, Stream
from stagepost.store.postgres.forking import forking

ENDED_BY = (
    "a statement of it failed, or a stream of it was not read to its end, and PostgreSQL takes nothing more in such a "
    "transaction; or it was interrupted, or committed behind Stagepost's back. Nothing of it was written. To catch an "
    "error and go on, have the statement inside `with ctx.connection.transaction()`, which undoes that part alone."
)


class TalkLock:
    """The driver's lock on a connection: not for a thread that would wait for itself for ever, nor for one that is to
    be kept out.

    What may meet Ctrl-C checks, and takes ``lock`` itself: between the two methods below it could be left taken.
    """

    def __init__(self, admit: Callable[[], None]) -> None:
        self._admit = admit
        self._thread: int | None = None
        self.lock = threading.Lock()

    def check(self) -> None:
        """Raises ``IllegalCall``, and ``TransactionBoundary``."""
        self._admit()
        if self._thread == threading.get_ident():
            raise IllegalCall(
                "a statement was run while another one of the same handler was not yet over: a stream() or copy() that "
                "is being read, or an executemany() that is being fed. End that one first, or collect its rows."
            )

    def __enter__(self) -> None:
        self.check()
        self.lock.acquire()
        self._thread = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._thread = None
        self.lock.release()


class Ours:
    """``GuardedConnection.ours``; a generator would take five times as long, several times a message."""

    def __init__(self, connection: GuardedConnection) -> None:
        self._connection = connection
        self._was: int | None = None

    def __enter__(self) -> None:
        self._was = self._connection.speaking
        self._connection.speaking = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._connection.speaking = self._was


class GuardedConnection(psycopg.Connection[Any]):
    _loan: ConnectionLoan | None = None
    # The thread that is just running a statement that was looked at, or one of ours.
    speaking: int | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        here = weakref.ref(self)
        self.talk_lock = TalkLock(lambda: _admit(here))
        self.lock = self.talk_lock  # type: ignore[assignment]
        # The streams and copies that the handler has under way.
        self.unfinished: weakref.WeakSet[Stream | CopyBlock] = weakref.WeakSet()
        self._prepare_for_handlers()

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

    def check_not_failed(self) -> None:
        """A handler may have caught the error of a statement, and know nothing of what follows from it."""
        if self._loan is not None and self.pgconn.transaction_status == TransactionStatus.INERROR:
            what = f"the transaction of {self._loan.place} cannot go on: {ENDED_BY}"
            raise TransactionEnded(what) from self._loan.broken_by

    def lend(self, place: str, touch: Callable[[], None], catch_up: Callable[[], None]) -> None:
        self._loan = ConnectionLoan(place, touch, catch_up, self)

    def take_back(self) -> ConnectionLoan | None:
        """Whatever the handler left unfinished is broken off."""
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

    @property
    def is_ours(self) -> bool:
        return self.speaking == threading.get_ident()

    def ours(self) -> Ours:
        """What this thread says in the block may open and end transactions."""
        return Ours(self)

    @contextmanager
    def admitted(self, loan: ConnectionLoan, statement: str) -> Iterator[None]:
        """A statement of the handler that was looked at, with the transaction open."""
        loan.check(statement)
        loan.catch_up()
        with self.ours():
            try:
                yield
            except psycopg.Error as error:
                loan.met(error)
                raise

    def admit(self) -> None:
        if not self.is_ours:
            self.loan.refuse("a statement past ctx.connection.cursor()")

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Everything that talks to the server comes by here: the net below the checks above."""
        self.admit()
        return super().wait(*arguments, **options)

    # What a handler meets. The signatures are the driver's.

    def transaction(  # type: ignore[override]
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AbstractContextManager[psycopg.Transaction]:
        """Within the stage's transaction: a savepoint."""
        return _Savepoint(self, self.loan, psycopg.Transaction(self, savepoint_name, force_rollback))

    def commit(self) -> None:
        self.loan.refuse("commit()")

    def rollback(self) -> None:
        self.loan.refuse("rollback()")

    def __enter__(self) -> NoReturn:
        self.loan.refuse("`with connection`, which commits and closes at its end,")

    def pipeline(self) -> NoReturn:
        self.loan.refuse("pipeline(), where an error would come after its statement,")

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
    """Its SAVEPOINT and its end are statements of the handler; what is between them is not of its making."""

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
            # It is gone with its transaction.
            return None
        # What was asked for within the block belongs to it, and is undone with it.
        self._loan.catch_up()
        with self._connection.ours():
            return self._made.__exit__(kind, error, trace)


def _admit(connection: weakref.ref[GuardedConnection]) -> None:
    if (here := connection()) is not None:
        here.admit()


def connect(parameters: dict[str, Any]) -> GuardedConnection:
    """Raises ``psycopg.Error``."""
    connection = GuardedConnection.connect(**parameters, autocommit=True, prepare_threshold=None)
    forking.opened(connection)
    return connection
