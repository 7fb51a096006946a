"""A session on the caller's own connection, in the caller's transaction. The flows start when the caller commits."""

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

# This runs first. It fails in no database, so it cannot fail the caller's transaction. It also tells whether the server
# allows prepared transactions. PostgreSQL refuses to prepare a transaction that used NOTIFY.
HAS_TABLES = Statement(
    b"SELECT to_regclass('stagepost_meta') IS NOT NULL AND to_regclass('stagepost_journal') IS NOT NULL, "
    b"current_setting('max_prepared_transactions') <> '0'",
    (),
)
# The setting ends with the transaction, at the latest.
SET_ENCODING = Statement(b"SELECT set_config('client_encoding', $1, true)", ("encoding",))
# The longest wait for another thread's statement on the same connection.
BUSY_SECONDS = 1.0
BUSY_LOOKS = 20
# Each statement is a round trip here. PostgreSQL takes 65,535 parameters in one, and a journal's line has 14.
ROWS_A_STATEMENT = 1_000


class CallersWriter(PostgresWriter):
    """A writer that executes each statement immediately, because the transaction is the caller's.

    Even in pipeline mode it waits for each result, so an error is raised by its own statement.
    """

    rows_a_statement = ROWS_A_STATEMENT

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
    """Write in the caller's transaction: all that the block writes, or nothing if the block raises.

    On a connection in autocommit mode without an open transaction, the writes commit together at the end of the block.

    Raises ``DeclarationError`` if ``connection`` is not a connection to this database, ``StoreContention`` if it is
    busy, and ``CommitUnknown`` if the commit had no answer. Also raises the pending errors of the caller's own
    statements in pipeline mode.
    """
    if not isinstance(connection, psycopg.Connection):
        raise DeclarationError(
            f"connection= or session= takes a psycopg.Connection to {place}, not a {type(connection).__qualname__}"
        )
    _check_not_busy(connection, place)
    # The transaction status is known only after all results have arrived.
    synchronise(connection)
    writer = CallersWriter(connection, place, notifier)
    try:
        # On a connection that does not autocommit, the check below also opens the transaction, as psycopg does. Then
        # the block is a savepoint in it.
        was_idle = connection.info.transaction_status == TransactionStatus.IDLE
        try:
            may_be_prepared = _check_same_database(writer, is_same_database, place)
        except DeclarationError:
            if was_idle:
                connection.rollback()
            raise
        # If so, the end of the block commits.
        is_its_own = connection.autocommit and was_idle
        # A transaction that the caller may prepare must not notify. Waiting workers poll the queue every half a second.
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
    """Wait for the results of all statements that were sent in pipeline mode."""
    if connection.pgconn.pipeline_status:
        with connection.pipeline() as pipeline:
            pipeline.sync()


def _check_not_busy(connection: psycopg.Connection[Any], place: str) -> None:
    """Raise ``StoreContention`` if the connection stays busy.

    A COPY or a stream holds the driver's lock until it ends. The thread that reads it would deadlock here.
    """
    for _ in range(BUSY_LOOKS):
        if not connection.lock.locked():
            return
        time.sleep(BUSY_SECONDS / BUSY_LOOKS)
    raise StoreContention(
        f"connection= or session= was given a connection to {place} that is busy: a copy() or stream() on it has not "
        "ended, or another thread uses it. End that first, or use another connection."
    )


@contextmanager
def _in_utf8(writer: CallersWriter, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Set the client encoding to UTF8 for the block.

    Ids may contain any character, and are read back as text. In SQL_ASCII psycopg returns bytes.
    """
    encoding = connection.info.parameter_status("client_encoding")
    if encoding == "UTF8":
        yield
        return
    writer.run(SET_ENCODING, ("UTF8",))
    yield
    writer.run(SET_ENCODING, (encoding,))


def _check_same_database(writer: CallersWriter, is_same_database: Callable[[str], bool], place: str) -> bool:
    """Raise ``DeclarationError`` if the connection is to another database.

    Return whether the server allows the caller to prepare the transaction. ``is_same_database`` compares an epoch.
    """
    has_tables, may_be_prepared = only(writer.run(HAS_TABLES))
    if not has_tables or not is_same_database(str(only(writer.run("find_epoch"))[0])):
        raise DeclarationError(
            f"connection= or session= was given a connection to another database than {place}, which holds the app's "
            "messages, or its search_path does not include Stagepost's tables. Two databases cannot commit together. "
            "Connect to the app's database, or start flows without it."
        )
    return bool(may_be_prepared)
