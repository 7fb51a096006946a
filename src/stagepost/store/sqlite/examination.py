"""Looking at a file for ``stagepost doctor``: at one that cannot be worked with as well, and without changing it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from stagepost.flow.clock import Clock, microseconds
from stagepost.flow.declaration import Undeclared
from stagepost.flow.errors import StoreUnavailable
from stagepost.flow.inbox import Backlog
from stagepost.flow.vitals import (
    LATELY_SECONDS,
    Backlogs,
    FileVitals,
    Heart,
    Holding,
    Lately,
    LockHolder,
    Paused,
    QueueVitals,
    Unseen,
    Version,
    Waiting,
)
from stagepost.store.sqlite import migrate
from stagepost.store.sqlite.connection import BUSY_TIMEOUT_SECONDS
from stagepost.store.sqlite.disk import file_system, holders, lock_holder
from stagepost.store.sqlite.faults import translate
from stagepost.store.sqlite.session import WAL_WRITE_LOCK
from stagepost.store.sqlite.statements import SQL
from stagepost.store.sqlite.store import lives_of
from stagepost.store.sqlite.turnstile import NEXT, SUFFIX, WRITER

T = TypeVar("T")

# Whoever writes for so long keeps the others waiting; looked at so often meanwhile.
WRITER_SECONDS = 1.0
WRITER_LOOKS = 10

Hearts = Callable[[Path], list[Heart]]


def examine(path: Path, clock: Clock, hearts: Hearts, *, thorough: bool = False) -> FileVitals:
    """``hearts`` looks into the folder of lock files, after who holds messages was read. ``thorough`` reads all of the
    file. Raises ``StoreUnavailable`` where there is nothing that can be looked at."""
    try:
        return _examined(path.resolve(), clock, hearts, thorough=thorough)
    except sqlite3.Error as error:
        raise translate(error, path) from error
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error


def _examined(path: Path, clock: Clock, hearts: Hearts, *, thorough: bool) -> FileVitals:
    if not path.exists():
        raise StoreUnavailable(f"{path} does not exist")
    # Whoever closes the file last empties its log: this one perhaps.
    wal = path.with_name(path.name + "-wal")
    turnstile = path.with_name(path.name + SUFFIX)
    wal_bytes = wal.stat().st_size if wal.exists() else 0
    looked_through = [path, wal]
    # Not mode=ro: readers of a file in WAL mode take part in its shared memory.
    with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)) as connection:
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
        connection.execute("PRAGMA query_only = ON")
        cursor = connection.cursor()
        (mode,) = cursor.execute("PRAGMA journal_mode").fetchone()
        version = Version(migrate.version_of(cursor), migrate.newest())
        unseen: list[Unseen] = []
        has_queue = 0 < version.tables <= version.newest
        return FileVitals(
            place=f"sqlite:///{path}",
            library=sqlite3.sqlite_version,
            version=version,
            journal_mode=mode,
            synchronous=synchronous,
            file_system=file_system(path),
            free_bytes=shutil.disk_usage(path.parent).free,
            file_bytes=path.stat().st_size,
            wal_bytes=wal_bytes,
            holders=sorted({each for file in looked_through for each in holders(file)}),
            unwritable=[str(each) for each in (path, path.parent, turnstile) if _is_denied(each)],
            writer=_writer(path, turnstile),
            lock_folder_trouble=_trouble(lives_of(path)),
            journal_rows=_part(unseen, "the journal", lambda: _number(cursor, "span_journal")) if has_queue else None,
            accepted_rows=_part(unseen, "what was accepted", lambda: _number(cursor, "count_accepted"))
            if has_queue and thorough
            else None,
            integrity=_damage(cursor) if thorough else None,
            queue=_part(unseen, "the queue", lambda: _queue(cursor, path, clock, hearts)) if has_queue else None,
            paused=_part(unseen, "paused stages", lambda: _paused(cursor)) if has_queue else None,
            undeclared=_part(unseen, "declared stages", lambda: _undeclared(cursor)) if has_queue else None,
            backlogs=_part(unseen, "what is to be sent", lambda: _backlogs(cursor)) if has_queue else None,
            unseen=unseen,
        )


def _part(unseen: list[Unseen], what: str, look: Callable[[], T]) -> T | None:
    """What is wrong with one part keeps nobody from seeing the others, unless it is the whole file."""
    try:
        return look()
    except OSError as error:
        unseen.append(Unseen(what, str(error)))
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        unseen.append(Unseen(what, str(error)))
    return None


def _queue(cursor: sqlite3.Cursor, path: Path, clock: Clock, hearts: Hearts) -> QueueVitals:
    now = clock.now()
    since = now - microseconds(LATELY_SECONDS)
    return QueueVitals(
        waiting=[Waiting(*row) for row in cursor.execute(SQL["list_waiting"], {"now": now}).fetchall()],
        lately=[Lately(*row) for row in cursor.execute(SQL["count_letters_since"], {"since": since}).fetchall()],
        holdings=[Holding(*row) for row in cursor.execute(SQL["list_holdings"]).fetchall()],
        hearts=hearts(lives_of(path)),
    )


def _paused(cursor: sqlite3.Cursor) -> list[Paused]:
    return [Paused(*row) for row in cursor.execute(SQL["look_at_paused"]).fetchall()]


def _undeclared(cursor: sqlite3.Cursor) -> list[Undeclared]:
    return [Undeclared(*row) for row in cursor.execute(SQL["list_undeclared"]).fetchall()]


def _backlogs(cursor: sqlite3.Cursor) -> Backlogs:
    held = cursor.execute(SQL["count_held"]).fetchone()
    unsent = cursor.execute(SQL["count_unsent"]).fetchone()
    return Backlogs(Backlog(*held), Backlog(*unsent))


def _number(cursor: sqlite3.Cursor, name: str) -> int:
    (number,) = cursor.execute(SQL[name]).fetchone()
    return int(number)


def _damage(cursor: sqlite3.Cursor) -> list[str]:
    found = [str(line) for (line,) in cursor.execute("PRAGMA quick_check(20)").fetchall()]
    return [] if found == ["ok"] else found


def _trouble(folder: Path) -> str | None:
    """Why no lock file could be made in the folder, which the first worker makes, or not be looked at there."""
    if not folder.exists():
        return f"{folder.parent} may not be written to" if _is_denied(folder.parent) else None
    if not folder.is_dir():
        return f"{folder} is not a folder"
    denied = next((each for each in (folder, *sorted(folder.iterdir())) if _is_denied(each)), None)
    return None if denied is None else f"{denied} may not be written to"


def _is_denied(path: Path) -> bool:
    return path.exists() and not os.access(path, os.W_OK)


def _writer(path: Path, turnstile: Path) -> LockHolder | None:
    """The process that keeps all others from writing for as long as one looks."""
    shared_memory = path.with_name(path.name + "-shm")
    places = [(turnstile, WRITER), (turnstile, NEXT), (shared_memory, WAL_WRITE_LOCK)]
    for place in places:
        holder = lock_holder(*place)
        looks = 1
        while holder is not None and lock_holder(*place) == holder:
            if looks == WRITER_LOOKS:
                return holder
            looks += 1
            time.sleep(WRITER_SECONDS / WRITER_LOOKS)
    return None
