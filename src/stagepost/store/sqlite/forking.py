"""SQLite and ``fork`` do not mix: a child inherits the library's memory of locks that only its parent holds.

The child then believes that the file is locked by itself, writes without a lock, and may lose what it committed when
somebody else is the last to close the file. So a child that was forked while a connection of ours was open is refused,
and told why; those who can, close theirs before a fork (``runtime.pool``).
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref

from stagepost.flow.errors import StoreUnavailable


class Forking:
    def __init__(self) -> None:
        self._open: weakref.WeakSet[sqlite3.Connection] = weakref.WeakSet()
        self._is_tainted = False
        os.register_at_fork(after_in_child=self._in_child)

    def check(self) -> None:
        """Before a connection is opened. Raises ``StoreUnavailable``."""
        if self._is_tainted:
            raise StoreUnavailable(
                "this process was forked while its parent had a database open, and SQLite cannot be used in such a "
                "child. Fork before the app is used, or start the process with the method 'spawn' or as a subprocess."
            )

    def opened(self, connection: sqlite3.Connection) -> None:
        self._open.add(connection)

    def closed(self, connection: sqlite3.Connection) -> None:
        self._open.discard(connection)

    def _in_child(self) -> None:
        for connection in list(self._open):
            self._is_tainted = True
            # Never to be closed here, not even by the garbage collector: the last to close a file deletes its journal.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


forking = Forking()
