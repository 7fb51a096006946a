"""The second file of a store, for commits that cannot wait for the transaction of a stage.

An SQLite file has one writer, which is the running stage. The second file lies beside the first one, and is never
attached to it, because a crash can tear a commit to two files apart. Each file names the other's uuid. At each start
and once an hour both get the same new number, so one that was restored without the other is found.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from stagepost.flow.errors import StoreUnavailable
from stagepost.store.sql.migrations import Migration, check_version, migrations_of
from stagepost.store.sqlite import migrate
from stagepost.store.sqlite.session import SqliteSession
from stagepost.store.sqlite.statements import SQL

SUFFIX = "-apart"
# The keys under which each file names the other one.
FIRST, SECOND = "first", "second"
NUMBER = "number"
# The end of the name of a file that was set aside.
SET_ASIDE = "old"

REMEDY = (
    "Restore both files from the same backup. If there is none, 'stagepost migrate --start-over' forgets these calls, "
    "and messages that still wait may make them again."
)

Opened = Callable[[Path], AbstractContextManager[sqlite3.Cursor]]
BehindWriterLock = Callable[[Path], AbstractContextManager[None]]

logger = logging.getLogger(__name__)


class SecondFile:
    """Implements ``ports.store.Apart``. ``opened`` opens a file, and ``behind_writer_lock`` holds its writer lock."""

    def __init__(self, first: Path, uuid: str, opened: Opened, behind_writer_lock: BehindWriterLock) -> None:
        self._first = first
        self._uuid = uuid
        self._opened = opened
        self._behind_writer_lock = behind_writer_lock
        self._path = first.with_name(first.name + SUFFIX)
        self._is_checked = False

    @property
    def exists(self) -> bool:
        return self._path.exists() or self._named() is not None

    def session(self) -> SqliteSession:
        if not self._is_checked:
            self._check()
            self._is_checked = True
        return SqliteSession(self._path, is_pinned=False)

    def _named(self) -> str | None:
        """Return the uuid of the second file that the first one names."""
        with self._opened(self._first) as cursor:
            return _meta(cursor, SECOND)

    def _check(self) -> None:
        """Make the file, or check that it belongs to the first one. Raises ``StoreUnavailable``.

        A crash while it is made leaves a file that names the first one, and that the first one does not name yet.
        A whole pair needs no writer lock, which a transaction of this thread may hold.
        """
        if self._is_whole():
            return
        with self._behind_writer_lock(self._first):
            named = self._named()
            if named is not None and not self._path.exists():
                raise StoreUnavailable(
                    f"{self._path} is missing, and {self._first} has a record of it. It tells which calls to the "
                    f"outside were made. {REMEDY}"
                )
            uuid, first = self._made()
            if first != self._uuid or named not in (None, uuid):
                raise StoreUnavailable(
                    f"{self._path} does not belong to {self._first}: one of the two was restored or copied without "
                    f"the other. {REMEDY}"
                )
            if named is None:
                with self._opened(self._first) as cursor:
                    cursor.execute(SQL["put_meta"].text, (SECOND, uuid))

    def _is_whole(self) -> bool:
        named = self._named()
        if named is None or not self._path.exists():
            return False
        with self._opened(self._path) as cursor:
            is_ours = (named, self._uuid) == (_meta(cursor, "uuid"), _meta(cursor, FIRST))
            if migrate.version_of(cursor) != len(migrations()) or not is_ours:
                return False
            second = int(_meta(cursor, NUMBER) or 0)
        with self._opened(self._first) as cursor:
            self._check_numbers(int(_meta(cursor, NUMBER) or 0), second)
        return True

    def renumber(self) -> None:
        self.session().close()
        with (
            self._behind_writer_lock(self._first),
            self._behind_writer_lock(self._path),
            self._opened(self._first) as first,
            self._opened(self._path) as second,
        ):
            numbers = [int(_meta(each, NUMBER) or 0) for each in (first, second)]
            self._check_numbers(*numbers)
            # After a crash between the two writes they differ, and only the lower one goes up.
            number = str(max(numbers) + (numbers[0] == numbers[1]))
            for each in (second, first):
                each.execute(SQL["put_meta"].text, (NUMBER, number))

    def start_over(self) -> None:
        with self._behind_writer_lock(self._first), self._opened(self._first) as first:
            for ending in ("", "-wal", "-shm"):
                file = self._path.with_name(self._path.name + ending)
                if file.exists():
                    file.rename(file.with_name(f"{file.name}.{SET_ASIDE}"))
            for key in (SECOND, NUMBER):
                first.execute(SQL["remove_meta"].text, (key,))
        self._is_checked = False
        logger.warning("%s: started over", self._path, extra={"event": "effect-log-started-over"})

    def _check_numbers(self, first: int, second: int) -> None:
        if abs(first - second) > 1:
            older = self._first if first < second else self._path
            raise StoreUnavailable(
                f"{older} was restored without {self._path if older == self._first else self._first}, which is newer. "
                f"Calls to the outside would be repeated or forgotten. {REMEDY}"
            )

    def _made(self) -> tuple[str, str]:
        """Return the uuid of the second file, and that of the first file that it names."""
        with self._opened(self._path) as cursor:
            if migrate.version_of(cursor) == 0:
                cursor.execute(migrate.FREEING)
                cursor.execute("PRAGMA journal_mode = WAL")
                migrate.migrate(cursor, str(self._path), migrations(), {FIRST: self._uuid})
                logger.info("%s: made the tables", self._path, extra={"event": "tables-made"})
            check_version(migrate.version_of(cursor), len(migrations()), str(self._path))
            return str(_meta(cursor, "uuid")), str(_meta(cursor, FIRST))


def migrations() -> list[Migration]:
    return migrations_of("sqlite", "apart")


def _meta(cursor: sqlite3.Cursor, key: str) -> str | None:
    found = cursor.execute(SQL["find_meta"].text, (key,)).fetchone()
    return None if found is None else str(found[0])
