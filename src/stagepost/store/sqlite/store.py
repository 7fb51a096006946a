"""The file: found or made, checked, and opened once a thread."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from stagepost.flow.errors import SchemaMismatch, StoreUnavailable
from stagepost.store.sqlite import migrate
from stagepost.store.sqlite.caller import joined
from stagepost.store.sqlite.connection import connect
from stagepost.store.sqlite.faults import translate
from stagepost.store.sqlite.recorder import Recorder
from stagepost.store.sqlite.session import SqliteSession
from stagepost.store.sqlite.turnstile import turnstiles

logger = logging.getLogger(__name__)

# STRICT tables; RETURNING came earlier.
SQLITE_VERSION_MIN = (3, 37, 0)


class SqliteStore:
    """Opening refuses a file whose tables are older or newer. In one that has none it makes them where it
    ``may_make`` them, and refuses it elsewhere.

    Sessions belong to the thread and the process they were made in.
    """

    def __init__(self, path: Path, *, may_make: bool = True) -> None:
        if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
            raise StoreUnavailable(
                f"this Python has SQLite {sqlite3.sqlite_version}; Stagepost needs 3.37 or newer. Use a newer Python "
                "build."
            )
        self.path = path.absolute()
        self.url = self.address = f"sqlite:///{self.path}"
        self.uuid = self._open(may_make=may_make)
        self._file = _identity(self.path)
        self.identity = f"{self.uuid} {self._file}"

    def session(self, *, is_pinned: bool = True) -> SqliteSession:
        return SqliteSession(self.path, is_pinned=is_pinned)

    def join(self, connection: object) -> AbstractContextManager[Recorder]:
        """A session's recording and queueing side on the caller's own connection: see ``caller.joined``."""
        return joined(self.path, connection)

    def lives(self) -> Path:
        """Where worker incarnations of this store keep their lock files."""
        return lives_of(self.path)

    def is_replaced(self) -> bool:
        """Whether the file that was opened is no longer found under its name. Whoever has it open writes to nothing."""
        try:
            return _identity(self.path) != self._file
        except OSError:
            # A disk that does not answer, for a while perhaps, says neither.
            return False

    def _open(self, *, may_make: bool) -> str:
        with _connected(self.path) as cursor:
            version = migrate.version_of(cursor)
            if version == 0 and not may_make:
                raise StoreUnavailable(
                    f"{self.path} has no tables of Stagepost: it is another database, or no worker or 'stagepost "
                    "migrate' has made them yet. Check the database URL."
                )
            (mode,) = cursor.execute("PRAGMA journal_mode").fetchone()
            if version == 0 or mode != "wal":
                with _behind_turnstile(self.path):
                    self._make(cursor)
            self._check_version(migrate.version_of(cursor))
            (found,) = cursor.execute(migrate.READ_META, ("uuid",)).fetchone()
            return str(found)

    def _make(self, cursor: sqlite3.Cursor) -> None:
        (mode,) = cursor.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnavailable(
                f"{self.path}: SQLite could not switch it to write-ahead logging (it says {mode!r}), which several "
                "processes need. Keep the file on a local disk."
            )
        if migrate.version_of(cursor) == 0:
            migrate.migrate(cursor, str(self.path))
            logger.info("%s: made the tables", self.path, extra={"event": "tables-made"})

    def _check_version(self, version: int) -> None:
        migrate.check_not_newer(version, str(self.path))
        if version < migrate.newest():
            raise SchemaMismatch(
                f"{self.path} has tables of version {version}, and this Stagepost needs {migrate.newest()}. "
                "Stop its workers, then run: stagepost migrate"
            )


def lives_of(path: Path) -> Path:
    return path.with_name(path.name + "-workers")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def migrate_file(path: Path) -> list[int]:
    """Bring an existing or new file to the newest version; returns the migrations applied."""
    with _connected(path) as cursor, _behind_turnstile(path):
        cursor.execute("PRAGMA journal_mode = WAL")
        return migrate.migrate(cursor, str(path))


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Cursor]:
    if not path.parent.is_dir():
        raise StoreUnavailable(f"{path}: its folder does not exist. Make it, or check the database URL.")
    try:
        with closing(connect(path)) as connection, closing(connection.own_cursor()) as cursor:
            yield cursor
    except sqlite3.Error as error:
        raise translate(error, path) from error


@contextmanager
def _behind_turnstile(path: Path) -> Iterator[None]:
    """Two that switch a new file to write-ahead logging at the same time would not wait for each other."""
    turnstile = turnstiles.of(path)
    try:
        turnstile.enter()
        try:
            yield
        finally:
            turnstile.leave()
    finally:
        turnstiles.done(turnstile)
