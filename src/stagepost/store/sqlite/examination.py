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

from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.errors import StoreError, StoreUnavailable
from stagepost.ports.findings import Version, critical
from stagepost.ports.health import Heart, StoreHealth, Unseen
from stagepost.ports.liveness import EVERY_APP, IncarnationRecord
from stagepost.store.sql.database import Parameters, Row, in_order
from stagepost.store.sql.examination import Rows, health_of
from stagepost.store.sqlite import migrate
from stagepost.store.sqlite.checks import FileFacts, SecondFileFacts, check_file
from stagepost.store.sqlite.connection import BUSY_TIMEOUT_SECONDS
from stagepost.store.sqlite.disk import LockHolder, file_system, holders, lock_holder
from stagepost.store.sqlite.faults import translate
from stagepost.store.sqlite.lock_file import LockFolder
from stagepost.store.sqlite.second_file import FIRST_UUID, SECOND_UUID, meta_of, second_of, trouble_of
from stagepost.store.sqlite.session import WAL_WRITE_LOCK
from stagepost.store.sqlite.statements import SQL
from stagepost.store.sqlite.store import lives_of
from stagepost.store.sqlite.writer_lock import NEXT, SUFFIX, WRITER

T = TypeVar("T")

# A process that writes for so long keeps the others waiting; it is looked at so often meanwhile.
WRITER_SECONDS = 1.0
WRITER_LOOKS = 10


def examine(path: Path, source: str, clock: Clock, *, thorough: bool = False) -> StoreHealth:
    """Look at the file; ``thorough`` reads all of it. ``source`` says where its URL was found."""
    try:
        return _examined(path.resolve(), clock, thorough=thorough)
    except sqlite3.Error as error:
        seen: object = translate(error, path)
    except OSError as error:
        seen = f"{path}: {error.strerror}"
    except StoreError as error:
        seen = error
    finding = critical(
        "file-unreadable",
        f"{seen} (the URL was taken from {source})",
        "Name the file that there is with --database, or run this where its stagepost.toml is; give this user the "
        "right to read it; restore a backup where it is damaged.",
    )
    return StoreHealth(None, [finding])


def _examined(path: Path, clock: Clock, *, thorough: bool) -> StoreHealth:
    if not path.exists():
        raise StoreUnavailable(f"{path} does not exist")
    # The last connection to close the file empties its log: this one perhaps.
    wal = path.with_name(path.name + "-wal")
    writer_lock = path.with_name(path.name + SUFFIX)
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

        def rows(name: str, parameters: Parameters = ()) -> list[Row]:
            text, names = SQL[name]
            return cursor.execute(text, in_order(names, parameters)).fetchall()

        def part(what: str, look: Callable[[], T]) -> T | None:
            """Look at one part. A fault in it hides no other part, unless the whole file is at fault."""
            try:
                return look() if has_queue else None
            except OSError as error:
                unseen.append(Unseen(what, str(error)))
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                    raise
                unseen.append(Unseen(what, str(error)))
            return None

        has_queue = 0 < version.tables <= version.newest
        facts = FileFacts(
            library=sqlite3.sqlite_version,
            version=version,
            journal_mode=mode,
            synchronous=synchronous,
            file_system=file_system(path),
            free_bytes=shutil.disk_usage(path.parent).free,
            file_bytes=path.stat().st_size,
            wal_bytes=wal_bytes,
            holders=sorted({each for file in looked_through for each in holders(file)}),
            unwritable=[str(each) for each in (path, path.parent, writer_lock) if _is_denied(each)],
            writer=_writer(path, writer_lock),
            lock_folder_trouble=_trouble(lives_of(path)),
            second=part("the second file", lambda: _second(path, cursor, clock.now())),
            journal_rows=part("the journal", lambda: _span(rows)),
            accepted_rows=part("accepted ids", lambda: int(rows("count_accepted")[0][0])) if thorough else None,
            integrity=_damage(cursor) if thorough else None,
        )
        return health_of(
            f"sqlite:///{path}", check_file(facts), rows, part, unseen, clock.now(), lambda: _hearts(path, clock)
        )


def _second(path: Path, cursor: sqlite3.Cursor, now: int) -> SecondFileFacts | None:
    first = meta_of(cursor, SECOND_UUID)
    file = second_of(path)
    if not file.exists():
        trouble = trouble_of(path, first, None)
        return None if trouble is None else SecondFileFacts(trouble)
    try:
        with closing(sqlite3.connect(file, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            looking = connection.cursor()
            has_tables = migrate.version_of(looking) > 0
            trouble = trouble_of(path, first, meta_of(looking, FIRST_UUID) if has_tables else None)
            if trouble is not None or not has_tables:
                return SecondFileFacts(trouble)
            held, oldest_at = looking.execute(SQL["count_held"].text).fetchone()
    except sqlite3.Error as error:
        return SecondFileFacts(str(translate(error, file)))
    return SecondFileFacts(None, held, 0.0 if oldest_at is None else max(0.0, (now - oldest_at) / SECOND))


def _span(rows: Rows) -> int:
    """Return how many lines were written, from the first that is left."""
    lowest, highest = rows("bound_journal")[0]
    return 0 if lowest is None else highest - lowest + 1


def _hearts(path: Path, clock: Clock) -> list[Heart]:
    return [_heart(each, clock.now()) for each in LockFolder(lives_of(path), clock).look(EVERY_APP)]


def _heart(record: IncarnationRecord, now: int) -> Heart:
    """Every lock file was written on this machine, so its time is by this clock."""
    silent = max(0.0, (now - record.beat // 1_000) / SECOND)
    return Heart(record.owner, record.node, record.process, record.is_locked, silent, record.started_at)


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


def _writer(path: Path, writer_lock: Path) -> LockHolder | None:
    """The process that keeps all others from writing for as long as one looks."""
    shared_memory = path.with_name(path.name + "-shm")
    places = [(writer_lock, WRITER), (writer_lock, NEXT), (shared_memory, WAL_WRITE_LOCK)]
    for place in places:
        holder = lock_holder(*place)
        looks = 1
        while holder is not None and lock_holder(*place) == holder:
            if looks == WRITER_LOOKS:
                return holder
            looks += 1
            time.sleep(WRITER_SECONDS / WRITER_LOOKS)
    return None
