"""A session on the caller's own connection, in the caller's transaction: what is written starts when they commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stagepost.flow.errors import CommitUnknown, DeclarationError, StoreError
from stagepost.store.sqlite.faults import translate
from stagepost.store.sqlite.writer import SqliteWriter

# sqlite3.LEGACY_TRANSACTION_CONTROL, which Python 3.11 has no name for, as it has no other kind.
LEGACY_TRANSACTION_CONTROL = -1
# As bytes: the connection's text_factory is the caller's.
MAIN_FILE = "SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'"


@contextmanager
def joined(path: Path, connection: object) -> Iterator[SqliteWriter]:
    """Everything the block writes stays in the caller's transaction, or nothing of it where the block raises.

    A connection in autocommit mode has no transaction to stay in: then the block's writes are committed, together,
    when it ends. Raises ``DeclarationError`` for what is not a connection to this very file, ``CommitUnknown`` where
    that commit failed and left nothing that could be undone.
    """
    cursor = _cursor(path, connection)
    writer = SqliteWriter(path, cursor)
    try:
        _open_as_the_driver_would(writer, cursor.connection)
        # Then the end of the block is its commit.
        is_its_own = not cursor.connection.in_transaction
        is_at_its_end = False
        writer.run("savepoint")
        try:
            yield writer
            is_at_its_end = True
            writer.run("release")
        except BaseException as error:
            # A full disk, and some other errors, have rolled back all of it already.
            if cursor.connection.in_transaction:
                writer.run("rollback_to")
                writer.run("release")
            elif is_its_own and is_at_its_end and isinstance(error, StoreError):
                raise CommitUnknown(f"{error}, and whether it was committed is not known") from error
            raise
    finally:
        cursor.close()


def _cursor(path: Path, connection: object) -> sqlite3.Cursor:
    if not isinstance(connection, sqlite3.Connection):
        raise DeclarationError(
            f"connection= or session= takes a sqlite3.Connection to {path}, not a {type(connection).__qualname__}"
        )
    try:
        # A class of the caller's own may make others.
        cursor = sqlite3.Connection.cursor(connection, sqlite3.Cursor)
        cursor.row_factory = None
        (data,) = cursor.execute(MAIN_FILE).fetchone()
    except sqlite3.Error as error:
        raise translate(error, path) from error
    file = data.decode()
    if not file or not path.samefile(file):
        raise DeclarationError(
            f"connection= or session= was given a connection to {file or 'a database in memory'}, but the app's "
            f"messages are kept in {path}: the two could not commit together. Connect to that file, or "
            "start flows without it."
        )
    return cursor


def _open_as_the_driver_would(writer: SqliteWriter, connection: sqlite3.Connection) -> None:
    """The driver opens a transaction before the first INSERT, unless it was told to autocommit. Our SAVEPOINT would
    otherwise open one, and its RELEASE commit it, before the caller meant to."""
    mode = getattr(connection, "autocommit", LEGACY_TRANSACTION_CONTROL)
    autocommits = connection.isolation_level is None if mode == LEGACY_TRANSACTION_CONTROL else mode
    if not connection.in_transaction and not autocommits:
        writer.run("begin")
