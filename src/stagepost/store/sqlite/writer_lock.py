"""The writer lock: one writer at a time, in turn.

SQLite's busy handler sleeps and tries again, so a writer that commits back to back starves all others. Therefore each
of Stagepost's write transactions takes this lock: a thread lock within the process, a file lock between processes.

The file lock has two bytes. A process locks ``NEXT``, then ``WRITER``, and unlocks ``NEXT``. So a writer that has just
left cannot overtake the process that is next. All of them poll, because a ``lockf`` that blocks has no deadline.

The lock is POSIX (``lockf``), not ``flock``. A forked child does not inherit it, so a subprocess that outlives its
killed parent blocks no writer. A process loses its POSIX locks when it closes *any* descriptor of the file. So a
process opens each writer lock once, and keeps it open while any session uses it.

Python delivers Ctrl-C after a call. So ``leave`` looks up the held locks, and may be called again. An ``RLock`` knows
its owner from the moment at which it is taken.
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from stagepost.flow.errors import StoreContention, StoreError
from stagepost.store.sqlite.disk import lock_holder, refused, share

SUFFIX = "-writer-lock"
WRITER, NEXT = 0, 1
# The limit of a wait, the wait after which it is logged, and the pause between two such log lines of a process.
WAIT_SECONDS_MAX = 30.0
TELL_SECONDS = 1.0
TELL_AGAIN_SECONDS = 60.0
PAUSE_SECONDS_MIN = 0.0001
PAUSE_SECONDS_MAX = 0.01
# The pause between two attempts is this share of the time waited so far.
PAUSE_SHARE = 0.05

logger = logging.getLogger(__name__)


class User(Protocol):
    """A session."""

    @property
    def is_open(self) -> bool: ...

    @property
    def doing(self) -> str:
        """Its activity, for the error of a writer that waits for it."""


class WriterLock:
    """The lock of one database. ``users`` is the registry's count of sessions that use it."""

    def __init__(self, database: Path, path: Path) -> None:
        self.users = 0
        self.path = path
        self._database = database
        self._lock = threading.RLock()
        self._inside: User | None = None
        self._told_at = -TELL_AGAIN_SECONDS
        self._file: io.FileIO | None = None

    def open(self) -> None:
        """Open the file once, from the registry: closing a second descriptor would drop the locks of the first.

        Raises ``StoreUnavailable``.
        """
        if self._file is not None:
            return
        try:
            with suppress(FileExistsError), io.FileIO(self.path, "x"):
                share(self.path, self._database)
            # A bare descriptor would stay open if Ctrl-C came before its assignment.
            self._file = io.FileIO(self.path, "a")
        except OSError as error:
            raise refused(self.path, error) from error

    def enter(self, user: User, begin: float) -> None:
        """Take the lock. The wait counts from ``begin``.

        Raises as ``check`` does, and ``StoreError`` if this thread has the lock already and would wait for itself.
        """
        if self._is_mine:
            if self._inside is not None and self._inside.is_open:
                raise StoreError(
                    "this thread has a transaction open on the same database already, in a stage or in a block of "
                    "initiate(). Start flows with ctx.initiate() there, or with "
                    "app.initiate(connection=ctx.connection)."
                )
            # An interrupt kept the last user from leaving.
            self._release()
        try:
            while not self._lock.acquire(timeout=TELL_SECONDS):
                self.check(begin, self._holder)
            self._inside = user
            for byte in (NEXT, WRITER):
                while not self._has_locked(byte):
                    self.check(begin, self._holder)
                    time.sleep(min(max((time.monotonic() - begin) * PAUSE_SHARE, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX))
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, NEXT)
        except BaseException:
            self.leave(user)
            raise

    def leave(self, user: User) -> None:
        """Free the lock, if ``user`` has it."""
        if self._is_mine and self._inside in (user, None):
            self._release()

    def has_inside(self, user: User) -> bool:
        return self._inside is user

    def check(self, begin: float, holder: Callable[[], str]) -> None:
        """Log the holder after a while, and raise ``StoreContention`` after ``WAIT_SECONDS_MAX``."""
        now = time.monotonic()
        if now - begin >= WAIT_SECONDS_MAX:
            raise StoreContention(
                f"{self._database}: database is locked: waited {WAIT_SECONDS_MAX:g} s to write, because {holder()} "
                "writes. Continue or end a process that is stopped or hangs. A handler must not wait for a thread that "
                "starts flows: use ctx.initiate() in the handler itself."
            )
        if now - begin >= TELL_SECONDS and now - self._told_at >= TELL_AGAIN_SECONDS:
            self._told_at = now
            logger.warning(
                "%s: waiting to write, because %s writes", self._database, holder(), extra={"event": "writer-waits"}
            )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def _descriptor(self) -> int:
        assert self._file is not None, "the registry opens it"
        return self._file.fileno()

    @property
    def _is_mine(self) -> bool:
        """Say whether this thread has the thread lock."""
        # threading.Condition calls this method of its lock too.
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001

    def _release(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        self._inside = None
        self._lock.release()

    def _has_locked(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _holder(self) -> str:
        inside = self._inside
        if inside is not None and not self._is_mine:
            return inside.doing
        return str(lock_holder(self.path, WRITER) or lock_holder(self.path, NEXT) or "another process")


class Registry:
    """The writer locks of this process, each opened once. A forked child starts with none, not with its parent's."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._writer_locks: dict[Path, WriterLock] = {}

    def of(self, database: Path) -> WriterLock:
        """Return the database's writer lock. Return it with ``done`` after use. Raises ``StoreUnavailable``."""
        path = database.with_name(database.name + SUFFIX).resolve()
        with self._lock:
            writer_lock = self._writer_locks.get(path)
            if writer_lock is None:
                writer_lock = self._writer_locks[path] = WriterLock(database, path)
            writer_lock.open()
            writer_lock.users += 1
            return writer_lock

    def done(self, writer_lock: WriterLock) -> None:
        with self._lock:
            writer_lock.users -= 1
            # In a forked child, the registry may have another lock than its parent's by now.
            if not writer_lock.users and self._writer_locks.get(writer_lock.path) is writer_lock:
                del self._writer_locks[writer_lock.path]
                writer_lock.close()


writer_locks = Registry()
