"""A session on the caller's own connection, in the caller's transaction: what is written starts when they commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from stagepost.flow.errors import CommitUnknown, DeclarationError, StoreContention
from stagepost.store.postgres.faults import translate
from stagepost.store.postgres.notifier import Notifier
from stagepost.store.postgres.statements import Statement
from stagepost.store.postgres.wire import Cursor, found
from stagepost.store.postgres.writer import PostgresWriter
from stagepost.store.sql.database import Answer, Parameters, in_order, only

# This runs first: it fails in no database, and so leaves the caller's transaction as it is. It also tells whether this
# server lets transactions be prepared. PostgreSQL refuses to prepare one that used NOTIFY.
HAS_TABLES = Statement(
    b"SELECT to_regclass('stagepost_meta') IS NOT NULL AND to_regclass('stagepost_journal') IS NOT NULL, "
    b"current_setting('max_prepared_transactions') <> '0'",
    (),
)
# Until the transaction ends, at the latest.
SET_ENCODING = Statement(b"SELECT set_config('client_encoding', $1, true)", ("encoding",))
# A statement of another thread's on the same connection may take so long.
BUSY_SECONDS = 1.0
BUSY_LOOKS = 20


class CallersWriter(PostgresWriter):
    """Runs each statement at once, for the transaction is not ours to keep waiting.

    In pipeline mode too the server's answer is there before the next statement, and an error comes from its own.
    """

    def __init__(self, connection: psycopg.Connection[Any], place: str, notifier: Notifier) -> None:
        super().__init__(notifier)
        self._connection = connection
        self._cursor = Cursor(connection)
        self._place = place

    def run(self, statement: str | Statement, parameters: Parameters = ()) -> Answer:
        text, names = found(statement)
        try:
            self._cursor.execute(text, in_order(names, parameters), binary=True)
            synchronise(self._connection)
        except psycopg.Error as error:
            raise translate(error, self._place) from error
        return self._cursor

    def close(self) -> None:
        self._cursor.close()


@contextmanager
def joined(
    is_same_database: Callable[[str], bool], place: str, connection: object, notifier: Notifier
) -> Iterator[CallersWriter]:
    """Everything the block writes stays in the caller's transaction, or nothing of it where the block raises.

    A connection in autocommit mode that is in no transaction has none to stay in: then the block's writes are
    committed, together, when it ends. Raises ``DeclarationError`` for what is not a connection to this very database,
    ``StoreContention`` for one that is busy, ``CommitUnknown`` where that commit had no answer, and the errors of the
    caller's own statements that pipeline mode had not told yet.
    """
    if not isinstance(connection, psycopg.Connection):
        raise DeclarationError(
            f"initiate(connection=…) takes a psycopg.Connection to {place}, not a {type(connection).__qualname__}"
        )
    _check_not_busy(connection, place)
    # Only then is it known which transaction the connection is in.
    synchronise(connection)
    writer = CallersWriter(connection, place, notifier)
    try:
        # On a connection that does not autocommit this also opens the transaction, as the driver would: what follows
        # is then a savepoint in it.
        was_idle = connection.info.transaction_status == TransactionStatus.IDLE
        try:
            may_be_prepared = _check_same_database(writer, is_same_database, place)
        except DeclarationError:
            if was_idle:
                connection.rollback()
            raise
        # Then the end of the block is its commit.
        is_its_own = connection.autocommit and was_idle
        # Else those who wait look for themselves, within half a second.
        writer.is_quiet = not is_its_own and may_be_prepared
        is_at_its_end = False
        try:
            with connection.transaction(), _in_utf8(writer, connection):
                yield writer
                is_at_its_end = True
        except psycopg.Error as error:
            translated = translate(error, place)
            if is_its_own and is_at_its_end and connection.closed:
                raise CommitUnknown(f"{translated}, and whether it was committed is not known") from error
            raise translated from error
    finally:
        writer.close()


def synchronise(connection: psycopg.Connection[Any]) -> None:
    """Have the server answer everything that was sent in pipeline mode."""
    if connection.pgconn.pipeline_status:
        with connection.pipeline() as pipeline:
            pipeline.sync()


def _check_not_busy(connection: psycopg.Connection[Any], place: str) -> None:
    """A COPY or a stream holds the driver's lock until it ends, and the thread that reads it would wait for itself."""
    for _ in range(BUSY_LOOKS):
        if not connection.lock.locked():
            return
        time.sleep(BUSY_SECONDS / BUSY_LOOKS)
    raise StoreContention(
        f"initiate(connection=…) was given a connection to {place} that is busy: a copy() or stream() on it has not "
        "ended, or another thread uses it. End that first, or use another connection."
    )


@contextmanager
def _in_utf8(writer: CallersWriter, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Ids may hold any character, and are read back as text: the driver gives bytes to a client of SQL_ASCII."""
    encoding = connection.info.parameter_status("client_encoding")
    if encoding == "UTF8":
        yield
        return
    writer.run(SET_ENCODING, ("UTF8",))
    yield
    writer.run(SET_ENCODING, (encoding,))


def _check_same_database(writer: CallersWriter, is_same_database: Callable[[str], bool], place: str) -> bool:
    """``is_same_database`` is asked with an epoch. Returns whether the caller's transaction may be one that they
    prepare."""
    has_tables, may_be_prepared = only(writer.run(HAS_TABLES))
    if not has_tables or not is_same_database(str(only(writer.run("find_epoch"))[0])):
        raise DeclarationError(
            f"initiate(connection=…) was given a connection to another database than {place}, where the app's "
            "messages are kept, or its search_path does not lead to Stagepost's tables: the two could not commit "
            "together. Connect to that one, or start flows with app.start."
        )
    return bool(may_be_prepared)
