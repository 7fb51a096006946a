"""Sessions for whoever starts flows from outside, kept between calls, and closed before the process forks.

A web server that forks its workers after it imported the app would otherwise hand each of them the parent's open
connection.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stagepost.app.stores import Access


class AccessPool:
    """One access for each call that is under way; they are handed on from thread to thread."""

    def __init__(self, make: Callable[[], Access]) -> None:
        self._make = make
        self._idle: list[Access] = []
        self._lock = threading.Lock()
        _pools.add(self)
        # Nobody is asked to close an app before it is forgotten, or its process ends.
        weakref.finalize(self, _close, self._idle)

    @contextmanager
    def taken(self) -> Iterator[Access]:
        """An access for the block. Raises what opening one raises."""
        with self._lock:
            access = self._idle.pop() if self._idle else None
        if access is None:
            access = self._make()
        try:
            yield access
        except BaseException:
            access.session.rollback()
            raise
        finally:
            with self._lock:
                self._idle.append(access)

    def close(self) -> None:
        """Those that nobody uses at the moment."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        _close(idle)

    def forget(self) -> None:
        """In a forked child: what is left is its parent's."""
        self._lock = threading.Lock()
        self._idle.clear()


def _close(idle: list[Access]) -> None:
    for access in idle:
        access.session.close()


_pools: weakref.WeakSet[AccessPool] = weakref.WeakSet()


def _before_fork() -> None:
    for pool in list(_pools):
        pool.close()


def _in_child() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
