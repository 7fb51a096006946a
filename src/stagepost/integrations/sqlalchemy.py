"""A SQLAlchemy ``Session`` in a stage's transaction. It needs the extra ``sqlalchemy``.

Two dialects of our own leave the end of the transaction to Stagepost. Their engines have no connections: each session
brings the one that is lent to its handlers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NoReturn

from sqlalchemy import Connection, Engine, Transaction, create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from stagepost.flow.errors import DeclarationError, IllegalCall, TransactionBoundary

# The dialect for each module of a driver's connection.
SCHEMES = {"sqlite3": "sqlite+stagepost", "psycopg": "postgresql+stagepost"}


class LentConnection:
    """A driver's connection as SQLAlchemy sees it. It can close nothing, and rolls back only for SQLAlchemy's own use.

    ``may_roll_back``  SQLAlchemy itself rolls back, after a failed flush or for its first look at a database. The
                       transaction stays open until Stagepost ends it
    """

    def __init__(self, driver_connection: Any, stage: str) -> None:
        self.driver_connection = driver_connection
        self.stage = stage
        self.may_roll_back = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver_connection, name)

    @contextmanager
    def rolling_back(self) -> Iterator[None]:
        was, self.may_roll_back = self.may_roll_back, True
        try:
            yield
        finally:
            self.may_roll_back = was

    def commit(self) -> NoReturn:
        self.refuse("commit()")

    def rollback(self) -> None:
        if not self.may_roll_back:
            self.refuse("rollback()")

    def close(self) -> None:
        pass

    def refuse(self, what: str) -> NoReturn:
        raise TransactionBoundary(
            f"{what} of the session was refused in {self.stage}: its work, the message and the messages that it sends "
            "commit together when the handler returns, or roll back when it raises. To roll back and set the message "
            "aside, call ctx.refuse(reason). To undo a part, use `with ctx.session.begin_nested()`."
        )


class _LentDialect:
    """The common part of both dialects."""

    def get_driver_connection(self, connection: Any) -> Any:
        return connection.driver_connection

    def get_default_isolation_level(self, connection: Any) -> Any:
        """Stagepost opens the transaction, so the default of the database does not matter."""
        return None

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        dbapi_connection.refuse(f"the isolation level {level}")


class SqliteDialect(_LentDialect, SQLiteDialect_pysqlite):
    supports_statement_cache = True

    def on_connect(self) -> Any:
        add = super().on_connect()

        def add_functions(lent: LentConnection) -> None:
            # Past the guard, which would replace the connection after the run, because every run adds the same ones.
            connection = lent.driver_connection
            if not getattr(connection, "has_sqlalchemy_functions", False):
                add(SimpleNamespace(create_function=partial(sqlite3.Connection.create_function, connection)))  # type: ignore[arg-type]  # the only method in use
                connection.has_sqlalchemy_functions = True

        return add_functions


class PostgresDialect(_LentDialect, PGDialect_psycopg):
    supports_statement_cache = True

    def on_connect(self) -> None:
        """Set nothing, because the loan ends with the handler."""


registry.register("sqlite.stagepost", __name__, "SqliteDialect")
registry.register("postgresql.stagepost", __name__, "PostgresDialect")

_to_connect: ContextVar[LentConnection] = ContextVar("to_connect")


@cache
def _engine(scheme: str) -> Engine:
    """Return the engine of a dialect, which has the cache of compiled statements."""
    options = {} if scheme.startswith("sqlite") else {"use_native_hstore": False}
    # Parameters are hidden, because logs and dead letters show the texts of errors.
    return create_engine(f"{scheme}://", creator=_to_connect.get, poolclass=NullPool, hide_parameters=True, **options)


class StageSession(Session):
    """A session that joins a stage's transaction, and cannot end it.

    ``lent`` is its connection. ``failed_flush`` is the error of a flush whose work no savepoint has undone.
    """

    lent: LentConnection
    joined: Connection
    failed_flush: BaseException | None = None

    def get_bind(self, *_arguments: Any, **_options: Any) -> Connection:
        return self.joined

    def flush(self, objects: Any = None) -> None:
        try:
            with self.lent.rolling_back():
                super().flush(objects)
        except BaseException as error:
            if not self.in_nested_transaction():
                self.failed_flush = self.failed_flush or error
            raise

    def begin(self, nested: bool = False) -> SessionTransaction:
        if not nested:
            self.lent.refuse("begin(), which commits at its end,")
        return super().begin(nested=True)

    def commit(self) -> None:
        self.lent.refuse("commit()")

    def rollback(self) -> None:
        self.lent.refuse("rollback()")

    def close(self) -> None:
        self.lent.refuse("close(), which rolls back,")

    def reset(self) -> None:
        self.lent.refuse("reset(), which rolls back,")

    def invalidate(self) -> None:
        self.lent.refuse("invalidate(), which closes the connection,")

    def end(self) -> None:
        with self.lent.rolling_back(), suppress(SQLAlchemyError):
            super().close()
            self.joined.close()


class SqlalchemySession:
    """Implements ``transaction.user_sessions.UserSession``."""

    def __init__(self, session: StageSession) -> None:
        self.handle = session

    def flush(self) -> Sequence[Callable[[], object]]:
        if self.handle.failed_flush is not None:
            raise self.handle.failed_flush
        self.handle.flush()
        return ()

    def end(self) -> None:
        self.handle.end()


class SqlalchemySessions:
    """Makes the sessions of ``ctx.session``: ``App(sessions=SqlalchemySessions(maker))``.

    ``maker``  gives class and options of the sessions. Its ``bind`` is not used

    An app without it has sessions of SQLAlchemy's defaults. Implements ``transaction.user_sessions.UserSessions``.
    Raises ``DeclarationError`` for a maker with ``binds`` or ``twophase``.
    """

    is_ambient = False

    def __init__(self, maker: sessionmaker[Any] | None = None) -> None:
        given: dict[str, Any] = {} if maker is None else maker.kw
        for option in ("binds", "twophase"):
            if given.get(option):
                raise DeclarationError(
                    f"the sessionmaker of the app has {option}=, and a stage's session has one database, in which "
                    "Stagepost commits. Give SqlalchemySessions a sessionmaker without it."
                )
        self._options = {name: value for name, value in given.items() if name not in ("bind", "binds", "twophase")}
        base = Session if maker is None else maker.class_
        self._class: type[StageSession] = (
            StageSession if base is Session else type("StageSession", (StageSession, base), {})
        )

    def open(self, connection: Any, stage: str) -> SqlalchemySession:
        module = next(
            (
                each.__module__.partition(".")[0]
                for each in type(connection).__mro__
                if each.__module__.partition(".")[0] in SCHEMES
            ),
            None,
        )
        if module is None:
            raise IllegalCall(
                f"ctx.session of {stage} needs a connection of sqlite3 or psycopg, and its store has a "
                f"{type(connection).__qualname__}. Use ctx.connection."
            )
        lent = LentConnection(connection, stage)
        token = _to_connect.set(lent)
        try:
            joined = _engine(SCHEMES[module]).connect()
        finally:
            _to_connect.reset(token)
        session = self._class(bind=joined, **self._options)
        session.lent, session.joined = lent, joined
        lent.may_roll_back = False
        return SqlalchemySession(session)


class JoinedSession:
    """A caller's session or Core connection. Implements ``runtime.callers_sessions.CallersSession``."""

    def __init__(self, session: Session | scoped_session[Any] | Connection) -> None:
        self._session = session
        self._transaction: SessionTransaction | Transaction | None = None

    def driver_connection(self) -> object:
        session = self._session
        if isinstance(session, Connection):
            connection = session
            if not connection.in_transaction():
                # Without it, the caller's commit() would commit nothing.
                connection.begin()
        else:
            connection = session.connection()
        return connection.connection.driver_connection

    def follow(self) -> None:
        # A scoped session is another one in another thread.
        own = self._session() if isinstance(self._session, scoped_session) else self._session
        self._transaction = own.get_transaction()

    @property
    def is_open(self) -> bool:
        return self._transaction is not None and self._transaction.is_active


def join(session: object) -> JoinedSession:
    """Return the caller's session as Stagepost uses it. Raises ``IllegalCall``."""
    if not isinstance(session, Session | scoped_session | Connection):
        raise IllegalCall(
            f"session= takes an open Session or Connection of SQLAlchemy, not a {type(session).__qualname__}. Flows "
            "are written by a synchronous driver: open a Session in a thread of its own, or commit first and then "
            "await app.astart(…)."
        )
    return JoinedSession(session)
