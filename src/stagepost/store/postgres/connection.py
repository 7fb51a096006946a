"""A ``psycopg.Connection`` that can be lent to a handler, and cannot be used to end the stage's transaction.

It is the driver's own class, so that whatever takes a ``psycopg.Connection`` takes it. While it is lent, each statement
first makes sure that the stage's transaction is open; what would commit, roll back, leave or outlive it is refused with
the reason. A cursor belongs to the run it was made in: kept for longer, it refuses too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, NoReturn

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import Composable

from stagepost.flow.errors import TransactionBoundary
from stagepost.store.postgres.boundary import forbidden
from stagepost.store.postgres.faults import is_outage

# How many of a worker's statements stay prepared; the handlers' are among them.
PREPARED_MAX = 500


class Lease:
    """One handler run's right to use the connection."""

    def __init__(self, place: str, touch: Callable[[], None], catch_up: Callable[[], None]) -> None:
        self.place = place
        self.touch = touch
        self.catch_up = catch_up
        self.is_over = False
        self.outage: psycopg.Error | None = None

    def met(self, error: psycopg.Error) -> None:
        """What a statement of the handler was answered with; it may catch it, or raise something of its own."""
        if is_outage(error):
            self.outage = error

    def check(self, statement: str) -> None:
        """Before each statement of the handler."""
        if self.is_over:
            raise TransactionBoundary(
                f"a connection or cursor of {self.place} was used after its handler had returned: its transaction is "
                "over. Take ctx.connection anew in each run."
            )
        what = forbidden(statement)
        if what is not None:
            self.refuse(what)
        self.touch()

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
        with self._guarded.admitted(self._lease, query):
            super().execute(query, params, **options)
        return self

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        with self._guarded.admitted(self._lease, query):
            super().executemany(query, params_seq, **options)

    def stream(self, query: Any, params: Any = None, **options: Any) -> Iterator[Any]:
        with self._guarded.admitted(self._lease, query):
            yield from super().stream(query, params, **options)

    @contextmanager
    def copy(self, statement: Any, params: Any = None, **options: Any) -> Iterator[psycopg.Copy]:
        with self._guarded.admitted(self._lease, statement), super().copy(statement, params, **options) as copy:
            yield copy


class GuardedServerCursor(psycopg.ServerCursor[Any]):
    def __init__(self, connection: psycopg.Connection[Any], name: str, **options: Any) -> None:
        super().__init__(connection, name, **options)
        assert isinstance(connection, GuardedConnection)
        self._guarded = connection
        self._lease = connection.lease
        if self.withhold:
            self._lease.refuse("a cursor WITH HOLD, which would outlive this run,")

    def execute(self, query: Any, params: Any = None, **options: Any) -> GuardedServerCursor:
        with self._guarded.admitted(self._lease, query):
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
            return
        with self._guarded.ours():
            super().close()


class GuardedConnection(psycopg.Connection[Any]):
    _lease: Lease | None = None
    # Ours are the statements that may open and end transactions.
    _is_ours = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.prepared_max = PREPARED_MAX
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

    def lend(self, place: str, touch: Callable[[], None], catch_up: Callable[[], None]) -> None:
        """``catch_up`` sends what was to come before the handler's next statement, and waits."""
        self._lease = Lease(place, touch, catch_up)
        self._is_ours = False

    def take_back(self) -> psycopg.Error | None:
        """Returns the outage that a statement of the handler met, if any."""
        self._is_ours = True
        lease = self._lease
        if lease is None:
            return None
        self._lease = None
        lease.is_over = True
        self._prepare_for_handlers()
        return lease.outage

    def _prepare_for_handlers(self) -> None:
        """What a handler may have set is not there for the next one."""
        self.row_factory = tuple_row
        self.cursor_factory = GuardedCursor
        self.server_cursor_factory = GuardedServerCursor

    def cursor_of_ours(self) -> psycopg.RawCursor[Any]:
        return psycopg.RawCursor(self, row_factory=tuple_row)

    @contextmanager
    def ours(self) -> Iterator[None]:
        was, self._is_ours = self._is_ours, True
        try:
            yield
        finally:
            self._is_ours = was

    @contextmanager
    def admitted(self, lease: Lease, query: Any) -> Iterator[None]:
        """A statement of the handler that was looked at, with the transaction open."""
        lease.check(_text(query, self))
        lease.catch_up()
        with self.ours():
            try:
                yield
            except psycopg.Error as error:
                lease.met(error)
                raise

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Everything that talks to the server comes by here: the net below the checks above."""
        if not self._is_ours:
            self.lease.refuse("a statement past ctx.connection.cursor()")
        return super().wait(*arguments, **options)

    # What a handler meets. The signatures are the driver's.

    @contextmanager
    def transaction(self, *arguments: Any, **options: Any) -> Iterator[psycopg.Transaction]:
        """Within the stage's transaction: a savepoint."""
        if self._lease is None:
            with super().transaction(*arguments, **options) as transaction:
                yield transaction
            return
        savepoint = _Savepoint(self, self.lease, super().transaction(*arguments, **options))
        with savepoint as transaction:
            yield transaction

    def commit(self) -> None:
        self.lease.refuse("commit()")

    def rollback(self) -> None:
        self.lease.refuse("rollback()")

    def __enter__(self) -> NoReturn:
        self.lease.refuse("`with connection`, which commits and closes at its end,")

    def pipeline(self) -> Any:
        if not self._is_ours:
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


class _Savepoint:
    """Its SAVEPOINT and its end are statements of the handler; what is between them is not of its making."""

    def __init__(
        self, connection: GuardedConnection, lease: Lease, made: AbstractContextManager[psycopg.Transaction]
    ) -> None:
        self._connection = connection
        self._lease = lease
        self._made = made

    def __enter__(self) -> psycopg.Transaction:
        with self._connection.admitted(self._lease, ""):
            return self._made.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with self._connection.ours():
            return self._made.__exit__(kind, error, trace)


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
    connection = GuardedConnection.connect(**parameters, autocommit=True, prepare_threshold=0)
    return connection
