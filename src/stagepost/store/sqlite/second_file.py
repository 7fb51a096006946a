"""The second file of a store, for commits that cannot wait for the transaction of a stage.

An SQLite file has one writer, which is the running stage. The second file lies beside the first one, and is never
attached to it, because a crash can tear a commit to two files apart. It has the log of effects, and the flows that
stages start independently, until the first file has accepted them.

Each file names the other's uuid. At each start and once an hour both get the same new number, so one that was restored
without the other is found.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from stagepost.flow.errors import StoreUnavailable
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.store.sql.database import SqlPart, text_of
from stagepost.store.sql.migrations import Migration, check_version, migrations_of
from stagepost.store.sqlite import migrate
from stagepost.store.sqlite.session import SqliteSession
from stagepost.store.sqlite.statements import SQL

SUFFIX = "-apart"
# The keys under which each file names the other one.
FIRST_UUID, SECOND_UUID = "first", "second"
NUMBER = "number"
# The end of the name of a file that was set aside.
SET_ASIDE = "old"

REMEDY = (
    "Restore both files from the same backup. If there is none, 'stagepost migrate --start-over' begins a new second "
    "file: it forgets these calls, which messages that still wait may make again, and the flows that wait there."
)

Opened = Callable[[Path], AbstractContextManager[sqlite3.Cursor]]
BehindWriterLock = Callable[[Path], AbstractContextManager[None]]

logger = logging.getLogger(__name__)


class FileMeta(NamedTuple):
    """Facts that one file has about the pair. ``other`` is the uuid of the other one; None if it names none."""

    uuid: str
    other: str | None
    number: int


class SecondFile:
    """Implements ``ports.store.Apart``. ``opened`` opens a file, and ``behind_writer_lock`` holds its writer lock."""

    def __init__(self, first: Path, uuid: str, opened: Opened, behind_writer_lock: BehindWriterLock) -> None:
        self._first = first
        self._uuid = uuid
        self._opened = opened
        self._behind_writer_lock = behind_writer_lock
        self._path = second_of(first)
        self._is_checked = False

    @property
    def exists(self) -> bool:
        return self.has_outbox or self._metas()[0].other is not None

    @property
    def has_outbox(self) -> bool:
        return self._path.exists()

    def session(self) -> SecondFileSession:
        if not self._is_checked:
            self._check()
            self._is_checked = True
        return SecondFileSession(self._path, partial(self._opened, self._first))

    def _check(self) -> None:
        """Make the file, or check that it belongs to the first one. Raises ``StoreUnavailable``.

        A transaction of this thread may hold the writer lock of the first file, so nothing is written there: it does
        not name a new file before ``renumber``.
        """
        first, second = self._metas()
        if second is not None and trouble_of(self._first, first, second) is None:
            return
        # Another process may be making the file, or giving both a number.
        with self._behind_writer_lock(self._path):
            first, second = self._metas()
            if second is None and first.other is None:
                second = self._made()
        trouble = trouble_of(self._first, first, second)
        if trouble is not None:
            raise StoreUnavailable(f"{trouble} {REMEDY}")

    def _metas(self) -> tuple[FileMeta, FileMeta | None]:
        """Return the facts of both files; None for a second one that is not there, or has no tables yet."""
        with self._opened(self._first) as cursor:
            first = meta_of(cursor, SECOND_UUID)
        if not self._path.exists():
            return first, None
        with self._opened(self._path) as cursor:
            if migrate.version_of(cursor) == 0:
                return first, None
            check_version(migrate.version_of(cursor), len(migrations()), str(self._path))
            return first, meta_of(cursor, FIRST_UUID)

    def _made(self) -> FileMeta:
        with self._opened(self._path) as cursor:
            cursor.execute(migrate.FREEING)
            cursor.execute("PRAGMA journal_mode = WAL")
            migrate.migrate(cursor, str(self._path), migrations(), {FIRST_UUID: self._uuid})
            logger.info("%s: made the tables", self._path, extra={"event": "tables-made"})
            return meta_of(cursor, FIRST_UUID)

    def renumber(self) -> None:
        self.session().close()
        with (
            self._behind_writer_lock(self._first),
            self._behind_writer_lock(self._path),
            self._opened(self._first) as in_first,
            self._opened(self._path) as in_second,
        ):
            first, second = meta_of(in_first, SECOND_UUID), meta_of(in_second, FIRST_UUID)
            trouble = trouble_of(self._first, first, second)
            if trouble is not None:
                raise StoreUnavailable(f"{trouble} {REMEDY}")
            if first.other is None:
                in_first.execute(SQL["put_meta"].text, (SECOND_UUID, second.uuid))
            # After a crash between the two writes they differ, and only the lower one goes up.
            number = max(first.number, second.number) + (first.number == second.number)
            for each in (in_second, in_first):
                each.execute(SQL["put_meta"].text, (NUMBER, str(number)))

    def migrate(self) -> list[int]:
        if not self.has_outbox:
            return []
        with self._behind_writer_lock(self._path), self._opened(self._path) as cursor:
            return migrate.migrate(cursor, str(self._path), migrations())

    def start_over(self) -> None:
        with self._behind_writer_lock(self._first), self._opened(self._first) as first:
            for ending in ("", "-wal", "-shm"):
                file = self._path.with_name(self._path.name + ending)
                if file.exists():
                    file.rename(file.with_name(f"{file.name}.{SET_ASIDE}"))
            for key in (SECOND_UUID, NUMBER):
                first.execute(SQL["remove_meta"].text, (key,))
        self._is_checked = False
        logger.warning("%s: started over", self._path, extra={"event": "second-file-started-over"})


def second_of(first: Path) -> Path:
    return first.with_name(first.name + SUFFIX)


def meta_of(cursor: sqlite3.Cursor, other: str) -> FileMeta:
    """Read the facts of one file. ``other`` is the key under which it names the other one."""
    found = {key: cursor.execute(SQL["find_meta"].text, (key,)).fetchone() for key in ("uuid", other, NUMBER)}
    texts = {key: None if row is None else str(row[0]) for key, row in found.items()}
    return FileMeta(str(texts["uuid"]), texts[other], int(texts[NUMBER] or 0))


def trouble_of(path: Path, first: FileMeta, second: FileMeta | None) -> str | None:
    """Return why the second file is not the one of the first file at ``path``; None if it is, or if there is none."""
    if second is None:
        if first.other is None:
            return None
        return (
            f"{second_of(path)} is missing, and {path} has a record of it. It tells which calls to the outside were "
            "made, and which flows were started independently."
        )
    if second.other != first.uuid or first.other not in (None, second.uuid):
        return f"{second_of(path)} does not belong to {path}: one of the two was restored or copied without the other."
    if abs(first.number - second.number) > 1:
        older, newer = (path, second_of(path)) if first.number < second.number else (second_of(path), path)
        return (
            f"{older} was restored without {newer}, which is newer. Calls to the outside and flows would be repeated "
            "or forgotten."
        )
    return None


class SecondFileSession(SqliteSession):
    """Implements ``ports.session.Session``, as far as ``ports.store.Apart`` needs it."""

    def __init__(self, path: Path, first: Callable[[], AbstractContextManager[sqlite3.Cursor]]) -> None:
        super().__init__(path, is_pinned=False)
        self.accepted: Any = AcceptedApart(self, first)


class AcceptedApart(SqlPart):
    """Implements ``ports.accepted.Accepted``: the ids of the first file, and of the flows that wait in the second one.

    The second file is read first. A flow leaves it after the first file has accepted it, so one of the two has it.
    """

    def __init__(self, session: SecondFileSession, first: Callable[[], AbstractContextManager[sqlite3.Cursor]]) -> None:
        super().__init__(session)
        self._first = first

    def accept(self, acceptances: Sequence[Acceptance], *, is_patient: bool = True) -> list[Verdict]:
        verdicts: dict[tuple[str, str], Verdict] = {}
        return [self._judge(each, verdicts) for each in acceptances]

    def _judge(self, acceptance: Acceptance, earlier: dict[tuple[str, str], Verdict]) -> Verdict:
        """``earlier`` has the verdicts of this call, whose flows are not held yet."""
        key = acceptance.scope, acceptance.key
        found = earlier.get(key) or self._find(key)
        if found is None:
            earlier[key] = Verdict("started", acceptance.digest, acceptance.run_id)
            return earlier[key]
        return replace(found, outcome="repeated" if found.digest == acceptance.digest else "conflict")

    def _find(self, key: tuple[str, str]) -> Verdict | None:
        found = self._run("find_held", key).fetchone()
        if found is None:
            with self._first() as cursor:
                found = cursor.execute(SQL["find_accepted"].text, key).fetchone()
        if found is None:
            return None
        digest, run_id = found
        return Verdict("repeated", text_of(digest), None if run_id is None else text_of(run_id))


def migrations() -> list[Migration]:
    return migrations_of("sqlite", "apart")
