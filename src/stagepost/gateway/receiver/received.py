"""Record received message ids in the consumer's own transaction, on a connection to SQLite or PostgreSQL.

The row of the id commits with the consumer's work or not at all. So each later copy finds it exactly if the work is
done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from stagepost.flow.clock import SECOND, SystemClock
from stagepost.flow.errors import DeclarationError, IllegalCall, StagepostError
from stagepost.flow.ids import check_id

STATEMENTS = Path(__file__).parent / "statements"
# SQLITE_BUSY and SQLITE_LOCKED, in the low byte of an error's code.
LOCKED = (5, 6)
PURGED_AT_ONCE = 1_000

Dialect = Literal["sqlite", "postgres"]
now: Callable[[], int] = SystemClock().now


class AtWork(StagepostError):
    """Another copy of the message is at work, or another writer holds the database. Answer 425, and roll back."""

    code = "at-work"


class AnotherBody(StagepostError):
    """The id was received before with another body, so its sender has a fault. Answer 422, and roll back."""

    code = "another-body"


@dataclass(frozen=True, slots=True)
class Received:
    """A received message. ``is_new``: do its work in the same transaction, and commit.

    ``status``, ``content_type``, ``answer``  of a duplicate: the answer to its first copy, if one was kept
    """

    is_new: bool
    status: int | None = None
    content_type: str | None = None
    answer: bytes = b""


def receive(connection: Any, message_id: str, body: bytes = b"") -> Received:
    """Record the message in the open transaction of a ``sqlite3`` or ``psycopg`` connection, and say whether it is new.

    Call it first in the transaction. A connection that is not in autocommit mode begins one by itself.

    Raises ``AtWork``, ``AnotherBody``, ``InvalidId``, and the driver's errors. ``IllegalCall`` in autocommit mode
    without an open transaction.
    """
    return record(connection, message_id, hashlib.sha256(body).hexdigest())


def record(connection: Any, message_id: str, digest: str) -> Received:
    """Do as ``receive``, for a body with this SHA-256 digest."""
    check_id("the message id", message_id)
    dialect = dialect_of(connection)
    _check_transaction(connection, dialect)
    with closing(_cursor(connection, dialect)) as cursor:
        if dialect == "postgres":
            cursor.execute(statement(dialect, "lock"), {"message_id": message_id})
            if not cursor.fetchone()[0]:
                raise AtWork(f"another copy of {message_id} is at work")
        try:
            cursor.execute(
                statement(dialect, "add"), {"message_id": message_id, "digest": digest, "received_at": now()}
            )
        except Exception as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in LOCKED:
                raise AtWork(f"another writer holds the database, which {message_id} needs") from error
            raise
        if cursor.rowcount:
            return Received(is_new=True)
        cursor.execute(statement(dialect, "find"), {"message_id": message_id})
        first, status, content_type, answer = cursor.fetchone()
    if first != digest:
        raise AnotherBody(f"{message_id} was received before with another body")
    return Received(False, status, content_type, bytes(answer or b""))


def keep_answer(connection: Any, message_id: str, status: int, content_type: str | None, answer: bytes) -> None:
    """Keep the answer for later copies, in the transaction that received the message."""
    values = {"message_id": message_id, "status": status, "content_type": content_type, "answer": answer}
    _run(connection, "keep_answer", values)


def make_table(connection: Any) -> None:
    """Make the table ``stagepost_received`` unless it is there, in the open transaction."""
    _run(connection, "make_table", {})
    _run(connection, "make_index", {})


def purge(connection: Any, *, older_than_days: float, most: int = PURGED_AT_ONCE) -> int:
    """Delete ids that were received before that time, at most so many, and return their number.

    The gateway sends no copy more than three days after the first, unless an operator replays it. Keep ids for longer.
    """
    before = now() - round(older_than_days * 86_400 * SECOND)
    return _run(connection, "purge", {"before": before, "most": most})


def begin(connection: Any) -> None:
    """Begin a transaction, unless the connection begins one by itself."""
    dialect = dialect_of(connection)
    if _is_autocommit(connection, dialect) and not is_in_transaction(connection):
        try:
            _run(connection, "begin", {})
        except Exception as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in LOCKED:
                raise AtWork("another writer holds the database") from error
            raise


def is_in_transaction(connection: Any) -> bool:
    if dialect_of(connection) == "sqlite":
        return bool(connection.in_transaction)
    # The status IDLE is 0.
    return int(connection.info.transaction_status) != 0


def dialect_of(connection: Any) -> Dialect:
    """Return the database of a connection. Raises ``DeclarationError``."""
    kinds = {each.__module__.partition(".")[0] for each in type(connection).__mro__}
    if "sqlite3" in kinds:
        return "sqlite"
    if "psycopg" in kinds and not type(connection).__name__.startswith("Async"):
        return "postgres"
    raise DeclarationError(
        f"a receiver needs a sqlite3.Connection or a psycopg.Connection, not a {type(connection).__qualname__}. "
        "SQLAlchemy has it in connection.connection.driver_connection, Django in connection.connection."
    )


@cache
def statement(dialect: Dialect, name: str) -> str:
    return (STATEMENTS / dialect / f"{name}.sql").read_text(encoding="utf-8")


def _run(connection: Any, name: str, values: dict[str, Any]) -> int:
    dialect = dialect_of(connection)
    with closing(_cursor(connection, dialect)) as cursor:
        cursor.execute(statement(dialect, name), values)
        return int(cursor.rowcount)


def _cursor(connection: Any, dialect: Dialect) -> Any:
    """Return a cursor whose rows are tuples, whatever the caller set."""
    if dialect == "postgres":
        return connection.cursor(row_factory=import_module("psycopg.rows").tuple_row)
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def _is_autocommit(connection: Any, dialect: Dialect) -> bool:
    if dialect == "postgres":
        return bool(connection.autocommit)
    # From Python 3.12 on there is an attribute. -1 is its legacy value, where isolation_level decides.
    autocommit = getattr(connection, "autocommit", -1)
    return connection.isolation_level is None if autocommit == -1 else bool(autocommit)


def _check_transaction(connection: Any, dialect: Dialect) -> None:
    if _is_autocommit(connection, dialect) and not is_in_transaction(connection):
        raise IllegalCall(
            "receive was called on a connection in autocommit mode, so the id would commit without the work. Begin a "
            "transaction first."
        )
