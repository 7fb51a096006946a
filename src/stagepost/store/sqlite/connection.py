"""A ``sqlite3.Connection`` that can be lent to a handler, and cannot be used to end the stage's transaction.

It is the driver's own class, so that whatever takes a ``sqlite3.Connection`` takes it. While it is lent, each statement
first makes sure that the stage's transaction is open; what would commit, roll back or leave it is refused with the
reason. A cursor belongs to the run it was made in: kept for longer, it refuses too.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn

from stagepost.flow.errors import TransactionBoundary

# How long a statement of ours may wait for a writer that does not pass the turnstile: the user's own connections.
BUSY_TIMEOUT_SECONDS = 5.0

# The remark keeps them apart from a handler's own text in the driver's statement cache: what was prepared for us, and
# so authorized, must not be found there.
BEGIN = "BEGIN IMMEDIATE -- stagepost"
COMMIT = "COMMIT -- stagepost"
ROLLBACK = "ROLLBACK -- stagepost"

_COMMENTS = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|;)*"
_FIRST_WORD = re.compile(_COMMENTS + r"([a-z]+)(?:\s+(?:transaction\s+)?(to)\b)?", re.IGNORECASE | re.DOTALL)
_REFUSED = {"BEGIN", "COMMIT", "END", "ROLLBACK", "ATTACH", "DETACH", "VACUUM"}


class Lease:
    """One handler run's right to use the connection."""

    def __init__(self, place: str, touch: Callable[[], None]) -> None:
        self.place = place
        self.touch = touch
        self.is_over = False
        self.opened: list[sqlite3.Cursor | sqlite3.Blob] = []

    def check(self, statement: str) -> None:
        if self.is_over:
            raise TransactionBoundary(
                f"a connection or cursor of {self.place} was used after its handler had returned: its transaction is "
                "over. Take ctx.connection anew in each run."
            )
        word = boundary_word(statement)
        if word is not None:
            self.refuse(word)
        self.touch()

    def refuse(self, what: str) -> NoReturn:
        raise TransactionBoundary(
            f"{what} was refused in {self.place}: the handler's statements, its message and what it sends commit "
            "together "
            "when the handler has returned, or roll back when it raises. To undo and set the message aside, call "
            "ctx.refuse(reason); to undo a part, use SAVEPOINT and ROLLBACK TO."
        )

    def end(self) -> None:
        self.is_over = True
        # A statement left half read would keep its snapshot open past the commit.
        for each in self.opened:
            each.close()


@lru_cache(maxsize=1_000)
def boundary_word(statement: str) -> str | None:
    """The word by which a statement would begin, end or leave a transaction."""
    found = _FIRST_WORD.match(statement)
    word = found[1].upper() if found else ""
    if word not in _REFUSED or (word == "ROLLBACK" and found and found[2]):
        return None
    return word


class GuardedCursor(sqlite3.Cursor):
    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        assert isinstance(connection, GuardedConnection)
        self._lease = connection.lease
        self._lease.opened.append(self)

    def execute(self, sql: str, parameters: Any = (), /) -> GuardedCursor:
        self._lease.check(sql)
        super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> GuardedCursor:
        self._lease.check(sql)
        super().executemany(sql, parameters)
        return self

    def executescript(self, sql_script: str, /) -> NoReturn:
        self._lease.refuse("executescript, which commits first,")


class GuardedConnection(sqlite3.Connection):
    _lease: Lease | None = None
    # Ours are the statements that may open and end transactions.
    _is_ours = True

    @property
    def lease(self) -> Lease:
        if self._lease is None:
            raise TransactionBoundary(
                "Stagepost's connection was used outside the handler it was lent to. Take ctx.connection inside the "
                "handler, or open a connection of your own."
            )
        return self._lease

    def lend(self, place: str, touch: Callable[[], None]) -> None:
        self._lease = Lease(place, touch)
        self._is_ours = False

    def take_back(self) -> None:
        self._is_ours = True
        if self._lease is not None:
            self._lease.end()
            self._lease = None
            self.row_factory = None
            self.text_factory = str

    def own_cursor(self) -> sqlite3.Cursor:
        return super().cursor(sqlite3.Cursor)

    @cached_property
    def _boundary_cursor(self) -> sqlite3.Cursor:
        return self.own_cursor()

    def cross(self, boundary: str) -> None:
        """Begin or end a transaction, also while the connection is lent: ``BEGIN``, ``COMMIT`` or ``ROLLBACK``."""
        was, self._is_ours = self._is_ours, True
        try:
            self._boundary_cursor.execute(boundary)
        finally:
            self._is_ours = was

    def authorize(self, action: int, *_details: object) -> int:
        """The net below the checks by text: asked when a statement is prepared, by whatever way it came."""
        if action == sqlite3.SQLITE_TRANSACTION and not self._is_ours:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    # What a handler meets. The signatures are the driver's.

    def cursor(self, factory: Any = None) -> GuardedCursor:  # type: ignore[override]  # always ours, whatever is asked for
        return super().cursor(GuardedCursor)

    def commit(self) -> None:
        self.lease.refuse("commit()")

    def rollback(self) -> None:
        self.lease.refuse("rollback()")

    def executescript(self, sql_script: str, /) -> NoReturn:
        self.lease.refuse("executescript(), which commits first,")

    def __enter__(self) -> NoReturn:
        self.lease.refuse("`with connection`, which commits at its end,")

    def blobopen(self, *arguments: Any, **options: Any) -> sqlite3.Blob:
        self.lease.check("")
        blob = super().blobopen(*arguments, **options)
        self.lease.opened.append(blob)
        return blob

    def close(self) -> None:
        if self._lease is not None:
            self._lease.refuse("close()")
        super().close()

    @property
    def isolation_level(self) -> None:
        return None

    @isolation_level.setter
    def isolation_level(self, value: object) -> None:
        self.lease.refuse("setting isolation_level, which commits,")


def connect(path: Path) -> GuardedConnection:
    """Raises ``sqlite3.Error``."""
    connection = sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_SECONDS,
        isolation_level=None,
        factory=GuardedConnection,
        cached_statements=256,
    )
    assert isinstance(connection, GuardedConnection)
    connection.set_authorizer(connection.authorize)
    return connection
