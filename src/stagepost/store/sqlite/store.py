"""The file: found or made, checked, and opened once a thread."""

from __future__ import annotations

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

# STRICT tables; RETURNING came earlier.
SQLITE_VERSION_MIN = (3, 37, 0)


class SqliteStore:
    """Opening makes the tables in a file that has none, and refuses one whose tables are older or newer.

    Sessions belong to the thread and the process they were made in.
    """

    def __init__(self, path: Path) -> None:
        if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
            raise StoreUnavailable(
                f"this Python has SQLite {sqlite3.sqlite_version}; Stagepost needs 3.37 or newer. Use a newer Python "
                "build."
            )
        self.path = path.absolute()
        self.url = f"sqlite:///{self.path}"
        self.uuid = self._open()

    def session(self, *, is_pinned: bool = True) -> SqliteSession:
        return SqliteSession(self.path, is_pinned=is_pinned)

    def join(self, connection: object) -> AbstractContextManager[Recorder]:
        """A session's recording and queueing side on the caller's own connection: see ``caller.joined``."""
        return joined(self.path, connection)

    @property
    def liveness_folder(self) -> Path:
        """Where worker incarnations of this store keep their lock files."""
        return self.path.with_name(self.path.name + "-workers")

    def _open(self) -> str:
        with _alone(self.path) as cursor:
            self._check(cursor)
            (found,) = cursor.execute(migrate.READ_META, ("uuid",)).fetchone()
            return str(found)

    def _check(self, cursor: sqlite3.Cursor) -> None:
        (mode,) = cursor.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnavailable(
                f"{self.path}: SQLite could not switch it to write-ahead logging (it says {mode!r}), which several "
                "processes need. Keep the file on a local disk."
            )
        version = migrate.version_of(cursor)
        migrate.check_not_newer(version, str(self.path))
        if version == 0:
            migrate.migrate(cursor, str(self.path))
        elif version < migrate.newest():
            raise SchemaMismatch(
                f"{self.path} has tables of version {version}, and this Stagepost needs {migrate.newest()}. "
                "Stop its workers, then run: stagepost migrate"
            )


def migrate_file(path: Path) -> list[int]:
    """Bring an existing or new file to the newest version; returns the migrations applied."""
    with _alone(path) as cursor:
        cursor.execute("PRAGMA journal_mode = WAL")
        return migrate.migrate(cursor, str(path))


@contextmanager
def _alone(path: Path) -> Iterator[sqlite3.Cursor]:
    """A cursor for the block, behind the turnstile: two that switch a new file to write-ahead logging at the same time
    would not wait for each other."""
    if not path.parent.is_dir():
        raise StoreUnavailable(f"{path}: its folder does not exist. Make it, or check the database URL.")
    turnstile = turnstiles.of(path)
    turnstile.enter()
    try:
        with closing(connect(path)) as connection, closing(connection.own_cursor()) as cursor:
            yield cursor
    except sqlite3.Error as error:
        raise translate(error, path) from error
    finally:
        turnstile.leave()
