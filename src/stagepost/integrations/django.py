"""Django's ORM in a stage's transaction: ``App(sessions=DjangoSessions())``. It needs the extra ``django``.

While a stage's handlers run, Django finds a connection of our own under the alias. It works on the connection that is
lent to the handlers, and is inside an atomic block, so ``transaction.atomic()`` is a savepoint.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from stagepost.flow.errors import DeclarationError, IllegalCall, TransactionBoundary

SQLITE = "django.db.backends.sqlite3"
POSTGRES = "django.db.backends.postgresql"
MAIN_FILE = "SELECT file FROM pragma_database_list WHERE name = 'main'"


class OuterBlock:
    """Stands for the stage's transaction among the atomic blocks, so that Django refuses a durable one."""

    _from_testcase = False


class SqliteCursor:
    """A guarded cursor with Django's marks for parameters, as Django's own cursor has them."""

    def __init__(self, cursor: sqlite3.Cursor, convert_query: Callable[..., str]) -> None:
        self._cursor = cursor
        self._convert_query = convert_query

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)

    def execute(self, query: str, params: Any = None) -> Any:
        return self._cursor.execute(query) if params is None else self._cursor.execute(self._own(query, params), params)

    def executemany(self, query: str, param_list: Any) -> Any:
        rows = list(param_list)
        return self._cursor.executemany(self._own(query, rows[0] if rows else ()), rows)

    def _own(self, query: str, params: Any) -> str:
        return self._convert_query(self, query, param_names=list(params) if isinstance(params, Mapping) else None)


class StageConnection:
    """The part of a stage's connection that refuses to end the transaction. A wrapper of Django's is its other part."""

    stage: str
    connection: Any
    # Checks at the first cursor that the database is the app's own. A stage that uses no database needs no check.
    check: Callable[[], None]

    def refuse(self, what: str) -> NoReturn:
        raise TransactionBoundary(
            f"{what} of Django's connection was refused in {self.stage}: its work, the message and the messages that "
            "it sends commit together when the handler returns, or roll back when it raises. To roll back and set the "
            "message aside, call ctx.refuse(reason). To undo a part, use `with transaction.atomic():`."
        )

    def commit(self) -> None:
        self.refuse("commit()")

    def rollback(self) -> None:
        self.refuse("rollback()")

    def set_autocommit(self, *_arguments: Any, **_options: Any) -> None:
        self.refuse("set_autocommit()")

    def close(self) -> None:
        self.refuse("close(), which rolls back,")

    def close_if_unusable_or_obsolete(self) -> None:
        """Do nothing, because Stagepost looks after the connection."""


class SqliteStageConnection(StageConnection):
    def create_cursor(self, name: str | None = None) -> SqliteCursor:
        self.check()
        return SqliteCursor(self.connection.cursor(), import_module(f"{SQLITE}.base").SQLiteCursorWrapper.convert_query)

    def prepare(self) -> None:
        connection = self.connection
        if not getattr(connection, "has_django_functions", False):
            # Past the guard, which would replace the connection after the run, because every run adds the same ones.
            add_function = partial(sqlite3.Connection.create_function, connection)
            add_aggregate = partial(sqlite3.Connection.create_aggregate, connection)
            # Django asks SQLite how it was compiled, and any connection can answer.
            with closing(sqlite3.connect(":memory:")) as another:
                import_module(f"{SQLITE}._functions").register(
                    SimpleNamespace(
                        create_function=add_function, create_aggregate=add_aggregate, execute=another.execute
                    )
                )
            connection.has_django_functions = True

    def is_same_database(self) -> bool:
        (file,) = self.connection.execute(MAIN_FILE).fetchone()
        with suppress(OSError):
            return Path(self.settings_dict["NAME"]).samefile(file)  # type: ignore[attr-defined]  # Django's part has it
        return False


class PostgresStageConnection(StageConnection):
    timezone: Any

    def create_cursor(self, name: str | None = None) -> Any:
        self.check()
        cursor = self.connection.cursor()
        psycopg_any = import_module(f"{POSTGRES}.psycopg_any")
        # Those of the cursor alone: ctx.sql goes on to have psycopg's own.
        cursor._adapters = psycopg_any.get_adapters_template(settings.USE_TZ, self.timezone)  # noqa: SLF001
        return cursor

    def prepare(self) -> None:
        """Nothing, because the adapters are those of each cursor."""

    def is_same_database(self) -> bool:
        wanted: object = self.settings_dict["NAME"]  # type: ignore[attr-defined]  # Django's part has it
        return bool(wanted == self.connection.info.dbname)


PARTS: Mapping[str, type[SqliteStageConnection | PostgresStageConnection]] = {
    "sqlite3": SqliteStageConnection,
    "psycopg": PostgresStageConnection,
}


@cache
def _wrapper_class(name: str, *bases: Any) -> Any:
    return type(name, bases, {})


class DjangoSession:
    """Implements ``transaction.user_sessions.UserSession``. ``handle`` is the connection that Django finds."""

    def __init__(self, alias: str, handle: Any) -> None:
        self.handle = handle
        self._alias = alias
        self._before = connections[alias]
        connections[alias] = handle

    def flush(self) -> Sequence[Callable[[], object]]:
        self.handle.validate_no_broken_transaction()
        callbacks = [function for _, function, _ in self.handle.run_on_commit]
        self.handle.run_on_commit = []
        return callbacks

    def end(self) -> None:
        connections[self._alias] = self._before
        # A query set that was kept would read in the next run's transaction.
        self.handle.connection = None


class DjangoSessions:
    """Lets Django's ORM work in the transaction of each stage: ``App(sessions=DjangoSessions())``.

    ``using``  the alias of Django's database, which must be the app's own. Other databases of Django keep their own
               connections and transactions

    ``ctx.session`` is Django's connection. Call ``django.setup()`` before the app is declared. Implements
    ``transaction.user_sessions.UserSessions``. Raises ``DeclarationError`` for an alias of no SQLite or PostgreSQL.
    """

    is_ambient = True

    def __init__(self, using: str = "default") -> None:
        if using not in connections:
            raise DeclarationError(
                f"DjangoSessions(using={using!r}): settings.DATABASES has no such alias; it has "
                f"{', '.join(connections)}."
            )
        self._using = using
        self._is_checked = False

    def open(self, connection: Any, stage: str) -> DjangoSession:
        modules = [each.__module__.partition(".")[0] for each in type(connection).__mro__]
        part: Any = next((PARTS[each] for each in modules if each in PARTS), None)
        own = connections[self._using]
        if part is None or own.vendor != ("sqlite" if part is SqliteStageConnection else "postgresql"):
            raise self._mismatch(stage)
        options = deepcopy(own.settings_dict)
        if part is PostgresStageConnection:
            # The lent connection binds on the server, and its transaction is not one that Django has begun.
            options["OPTIONS"] = {**options["OPTIONS"], "server_side_binding": True}
            options["OPTIONS"].pop("pool", None)
            options["DISABLE_SERVER_SIDE_CURSORS"] = True
        base: Any = next(each for each in type(own).__mro__ if not issubclass(each, StageConnection))
        wrapper: Any = _wrapper_class(part.__name__, part, base)(options, self._using)
        wrapper.stage, wrapper.connection = stage, connection
        wrapper.autocommit, wrapper.in_atomic_block = False, True
        # The end of an atomic block of the handler leaves the outer one open.
        wrapper.commit_on_exit, wrapper.atomic_blocks = True, [OuterBlock()]
        wrapper.check = lambda: self._check(wrapper)
        wrapper.prepare()
        return DjangoSession(self._using, wrapper)

    def _check(self, wrapper: Any) -> None:
        if not self._is_checked and not wrapper.is_same_database():
            raise self._mismatch(wrapper.stage)
        self._is_checked = True

    def _mismatch(self, stage: str) -> DeclarationError:
        return DeclarationError(
            f"Django's database {self._using!r} is another one than that of {stage}, so the two could not commit "
            "together. Give the app the same one: App(database=…), or name another alias: DjangoSessions(using=…)."
        )


class JoinedConnection:
    """A caller's connection of Django. Implements ``runtime.callers_sessions.CallersSession``."""

    def __init__(self, connection: Any) -> None:
        # A proxy is another connection in another thread.
        self._connection = connections[connection.alias] if isinstance(connection, ConnectionProxy) else connection

    def driver_connection(self) -> object:
        connection = self._connection
        connection.validate_thread_sharing()
        connection.validate_no_broken_transaction()
        connection.ensure_connection()
        return connection.connection

    def follow(self) -> None:
        if self._connection.in_atomic_block:
            self._connection.on_commit(self._mark)

    def _mark(self) -> None:
        """Mark the open transaction, and do nothing.

        Django removes it at the commit, and when the block or its savepoint rolls back. A block is no mark, because a
        decorated function has the same block in each call.
        """

    @property
    def is_open(self) -> bool:
        return any(each[1] == self._mark for each in list(self._connection.run_on_commit))


def join(session: object) -> JoinedConnection:
    """Return the caller's connection as Stagepost uses it. Raises ``IllegalCall``."""
    if not isinstance(session, ConnectionProxy | BaseDatabaseWrapper):
        raise IllegalCall(
            f"session= takes a connection of Django, such as django.db.connection or django.db.connections['default'], "
            f"not a {type(session).__qualname__}."
        )
    return JoinedConnection(session)
