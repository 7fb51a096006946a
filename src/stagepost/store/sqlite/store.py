"""The file: found or made, checked, and opened once a thread."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from stagepost.flow.clock import Clock
from stagepost.flow.errors import StoreUnavailable
from stagepost.store.sql.migrations import check_there, check_version
from stagepost.store.sqlite import migrate
from stagepost.store.sqlite.caller import joined
from stagepost.store.sqlite.connection import connect
from stagepost.store.sqlite.disk import refused, share
from stagepost.store.sqlite.faults import translate
from stagepost.store.sqlite.lock_file import LockFolder
from stagepost.store.sqlite.second_file import SecondFile
from stagepost.store.sqlite.session import SqliteSession
from stagepost.store.sqlite.statements import SQL
from stagepost.store.sqlite.writer import SqliteWriter
from stagepost.store.sqlite.writer_lock import writer_locks

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
        self._name = path.absolute()
        self.path = file_of(path)
        self._may_make = may_make
        self.url = self.address = f"sqlite:///{self.path}"
        self.uuid = self._open(may_make=may_make)
        self._file = _identity(self.path)
        self.apart = SecondFile(self.path, self.uuid, _connected, _behind_writer_lock)
        self.identity = f"{self.uuid} {self._file}"

    def session(self, *, is_pinned: bool = True) -> SqliteSession:
        return SqliteSession(self.path, is_pinned=is_pinned)

    def join(self, connection: object) -> AbstractContextManager[SqliteWriter]:
        """A session's recording and queueing side on the caller's own connection: see ``caller.joined``."""
        return joined(self.path, connection)

    def liveness(self, clock: Clock) -> LockFolder:
        """Return the incarnations' registry, in a folder beside the file. Raises ``StoreUnavailable``."""
        folder = lives_of(self.path)
        if self._may_make and not folder.exists():
            try:
                folder.mkdir(exist_ok=True)
                share(folder, self.path)
            except OSError as error:
                raise refused(folder, error) from error
        return LockFolder(folder, clock)

    def is_replaced(self) -> bool:
        """Say whether another file, or none, now has the name of the open one. Writes to the open one are lost."""
        try:
            return _identity(self._name) != self._file
        except OSError:
            # A disk that does not answer does not show it, and may come back.
            return False

    def _open(self, *, may_make: bool) -> str:
        with _connected(self.path) as cursor:
            version = migrate.version_of(cursor)
            if not may_make:
                check_there(version, str(self.path))
            (mode,) = cursor.execute("PRAGMA journal_mode").fetchone()
            if version == 0 or mode != "wal":
                with _behind_writer_lock(self.path):
                    self._make(cursor)
            check_version(migrate.version_of(cursor), migrate.newest(), str(self.path))
            (found,) = cursor.execute(SQL["find_meta"].text, ("uuid",)).fetchone()
            return str(found)

    def _make(self, cursor: sqlite3.Cursor) -> None:
        cursor.execute(migrate.FREEING)
        (mode,) = cursor.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnavailable(
                f"{self.path}: SQLite could not switch it to write-ahead logging (it says {mode!r}), which several "
                "processes need. Keep the file on a local disk."
            )
        if migrate.version_of(cursor) == 0:
            migrate.migrate(cursor, str(self.path))
            self._log_made()

    def _log_made(self) -> None:
        logger.info("%s: made the tables", self.path, extra={"event": "tables-made"})


def file_of(path: Path) -> Path:
    """The file itself, whatever link leads to it: it has one lock, and one folder of lock files.

    Raises ``StoreUnavailable`` for one that SQLite cannot tell from another: it keeps a log for each hard link.
    """
    try:
        file = path.resolve()
        links = file.stat().st_nlink if file.is_file() else 1
    except (OSError, RuntimeError) as error:
        raise StoreUnavailable(f"{path}: {getattr(error, 'strerror', error)}. Check the database URL.") from error
    if links > 1:
        raise StoreUnavailable(
            f"{file} has {links} names (hard links). SQLite keeps a log for each of them, and what is committed "
            "through one is lost to the others. Remove the other names, or make them symbolic links."
        )
    return file


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
    path = file_of(path)
    with _connected(path) as cursor, _behind_writer_lock(path):
        cursor.execute(migrate.FREEING)
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


class _Maker:
    """The thread that makes or changes the tables, for the log line of those that wait."""

    doing = "another thread of this process, which makes the tables,"
    is_open = True


@contextmanager
def _behind_writer_lock(path: Path) -> Iterator[None]:
    """Hold the writer lock, because processes that switch a file to write-ahead logging do not wait for others."""
    writer_lock = writer_locks.of(path)
    maker = _Maker()
    try:
        writer_lock.enter(maker, time.monotonic())
        yield
    finally:
        writer_lock.leave(maker)
        writer_locks.done(writer_lock)
