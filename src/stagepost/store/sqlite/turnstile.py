"""One writer at a time, in turn.

SQLite's busy handler sleeps and tries again: a writer that commits back to back starves all others. So every write
transaction of ours passes this turnstile: a thread lock within the process and a blocking file lock between processes.

The file lock is POSIX (``lockf``), not ``flock``: a forked child does not inherit it, so a subprocess that outlives its
killed parent holds up nobody. POSIX locks belong to the process and are dropped when *any* descriptor of the file is
closed in it, so a process opens each turnstile once and keeps it open for as long as anybody in it uses it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

from stagepost.flow.errors import StoreError

# The kernel sees one owner per process, and may take two stores used crosswise by threads for a deadlock.
DEADLOCK_PAUSE_SECONDS = 0.001


class Turnstile:
    """``users`` is the registry's: how many were given it and are not done with it."""

    def __init__(self, path: Path) -> None:
        self.users = 0
        self.path = path
        self._lock = threading.Lock()
        self._inside: int | None = None
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def enter(self) -> None:
        """Raises ``StoreError`` where this thread is inside already: it would wait for itself."""
        if self._inside == threading.get_ident():
            raise StoreError(
                "this thread has a transaction open on the same database already, in a stage or in a block of "
                "initiate(). Start flows with ctx.initiate() there, or with app.initiate(connection=ctx.connection)."
            )
        self._lock.acquire()
        self._inside = threading.get_ident()
        try:
            while True:
                try:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
                    return
                except OSError as error:
                    if error.errno != errno.EDEADLK:
                        raise
                    time.sleep(DEADLOCK_PAUSE_SECONDS)
        except BaseException:
            self._inside = None
            self._lock.release()
            raise

    def leave(self) -> None:
        self._inside = None
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        self._lock.release()

    def close(self) -> None:
        os.close(self._descriptor)


class Registry:
    """A process opens each turnstile once. After a fork the child starts with none: it must not use its parent's."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._turnstiles: dict[Path, Turnstile] = {}

    def of(self, database: Path) -> Turnstile:
        """Give it back when done, with ``done``."""
        path = database.with_name(database.name + "-turnstile").resolve()
        with self._lock:
            turnstile = self._turnstiles.get(path) or self._turnstiles.setdefault(path, Turnstile(path))
            turnstile.users += 1
            return turnstile

    def done(self, turnstile: Turnstile) -> None:
        with self._lock:
            turnstile.users -= 1
            # Not its parent's in a forked child, which may have one of its own by now.
            if not turnstile.users and self._turnstiles.get(turnstile.path) is turnstile:
                del self._turnstiles[turnstile.path]
                turnstile.close()


turnstiles = Registry()
