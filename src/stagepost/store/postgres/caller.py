"""A session on the caller's own connection, in the caller's transaction: what is written starts when they commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from stagepost.flow.errors import CommitUnknown, DeclarationError
from stagepost.store.postgres.bell import Bell
from stagepost.store.postgres.faults import translate
from stagepost.store.postgres.recorder import Recorder
from stagepost.store.postgres.statements import Statement
from stagepost.store.postgres.wire import Answer, Parameters, in_order, only

# Asked first, for it fails in no database, and so leaves the caller's transaction as it is.
HAS_TABLES = Statement(b"SELECT to_regclass('stagepost_meta') IS NOT NULL", ())
READ_IDENTITY = Statement(
    b"SELECT value || ' ' || oid FROM stagepost_meta, pg_database WHERE key = 'uuid' AND datname = current_database()",
    (),
)


class CallersWire:
    """Implements ``flight.Wire``: each statement at once, for the transaction is not ours to keep waiting."""

    def __init__(self, connection: psycopg.Connection[Any], place: str) -> None:
        self._cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
        self._place = place

    def run(self, statement: Statement, parameters: Parameters = ()) -> Answer:
        try:
            self._cursor.execute(statement.text, in_order(statement, parameters), binary=True)
        except psycopg.Error as error:
            raise translate(error, self._place) from error
        return self._cursor

    def later(self, statement: Statement, parameters: Parameters = ()) -> None:
        self.run(statement, parameters)

    def close(self) -> None:
        self._cursor.close()


@contextmanager
def joined(identity: str, place: str, connection: object, bell: Bell) -> Iterator[Recorder]:
    """Everything the block writes stays in the caller's transaction, or nothing of it where the block raises.

    A connection in autocommit mode that is in no transaction has none to stay in: then the block's writes are
    committed, together, when it ends. Raises ``DeclarationError`` for what is not a connection to this very database,
    ``CommitUnknown`` where that commit had no answer.
    """
    if not isinstance(connection, psycopg.Connection):
        raise DeclarationError(
            f"initiate(connection=…) takes a psycopg.Connection to {place}, not a {type(connection).__qualname__}"
        )
    wire = CallersWire(connection, place)
    try:
        # On a connection that does not autocommit this also opens the transaction, as the driver would: what follows
        # is then a savepoint in it.
        was_idle = connection.info.transaction_status == TransactionStatus.IDLE
        try:
            _check_same_database(wire, identity, place)
        except DeclarationError:
            if was_idle:
                connection.rollback()
            raise
        # Then the end of the block is its commit.
        is_its_own = connection.autocommit and was_idle
        is_at_its_end = False
        try:
            with connection.transaction():
                yield Recorder(wire, bell)
                is_at_its_end = True
        except psycopg.Error as error:
            translated = translate(error, place)
            if is_its_own and is_at_its_end and connection.closed:
                raise CommitUnknown(f"{translated}, and whether it was committed is not known") from error
            raise translated from error
    finally:
        wire.close()


def _check_same_database(wire: CallersWire, identity: str, place: str) -> None:
    has_tables = only(wire.run(HAS_TABLES))[0]
    if not has_tables or only(wire.run(READ_IDENTITY))[0] != identity:
        raise DeclarationError(
            f"initiate(connection=…) was given a connection to another database than {place}, where the app's "
            "messages are kept: the two could not commit together. Connect to that one, or start flows with app.start."
        )
