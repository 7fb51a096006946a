"""A forked child has every socket that its parent has, and the server sees a connection end when the last copy is gone.

If a child kept the sockets and outlived its parent, the parent would look alive and keep its locks. So the child
replaces each socket by ``/dev/null``, to which the driver may write when it closes the connection.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import psycopg


class Forking:
    def __init__(self) -> None:
        self._open: weakref.WeakSet[psycopg.Connection[Any]] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._in_child)

    def opened(self, connection: psycopg.Connection[Any]) -> None:
        self._open.add(connection)

    def _in_child(self) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for connection in list(self._open):
            if not connection.closed:
                os.dup2(nowhere, connection.fileno(), inheritable=False)
        os.close(nowhere)


forking = Forking()
