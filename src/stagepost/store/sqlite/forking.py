"""Refuse SQLite in a child that was forked while its parent had a connection open.

The child inherits the library's memory of locks that only its parent holds. It would write without a lock, and could
lose its commits when another process is the last to close the file. Connections that start flows are closed before a
fork (``runtime.pool``).
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
        """Check that this process may open a connection. Raises ``StoreUnavailable``."""
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
            # It must never be closed here, not even by the garbage collector: the last close deletes the file's log.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


forking = Forking()
