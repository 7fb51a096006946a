"""Connections for whoever starts flows from outside, kept between calls, and closed before the process forks.

A web server that forks its workers after it imported the app would otherwise hand each of them the parent's open
connection.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from stagepost.app.connections import Connections, Holder, longest_first
from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.errors import StoreContention

# How long a caller waits for a connection before it is told that there is none.
PATIENCE_SECONDS = 30.0
# And before somebody else is told.
SCARCE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Pooled(Protocol):
    def rollback(self) -> None: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Pooled)


class _Place(Generic[C]):
    """One call's: it waits for its turn, then has a connection."""

    def __init__(self, who: str, now: int, waits_since: float) -> None:
        self.holder = Holder(who=who, since=now)
        self.waits_since = waits_since
        self.turn = threading.Event()
        self.connection: C | None = None


class Pool(Generic[C]):
    """One connection for each call that is under way; they are handed on from thread to thread.

    Where there may be no more than ``most`` of them, callers wait in order.
    """

    def __init__(
        self, make: Callable[[], C], clock: Clock, most: int | None = None, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._make = make
        self._clock = clock
        self._most = most
        self._patience_seconds = patience_seconds
        self._idle: list[C] = []
        self._taken: list[_Place[C]] = []
        self._waiting: deque[_Place[C]] = deque()
        self._lock = threading.Lock()
        _pools.add(self)
        # Nobody is asked to close an app before it is forgotten. A finalizer may run within any call of its thread, so
        # it must not close: that takes locks.
        weakref.finalize(self, _forgotten.append, self._idle).atexit = False

    @contextmanager
    def taken(self) -> Iterator[C]:
        """A connection for the block. Raises what opening one raises, and ``StoreContention`` where none came free.

        Python delivers Ctrl-C after a call. So ``_leave`` looks at what there is to undo, and may be called again.
        """
        _close_forgotten()
        place: _Place[C] = _Place(threading.current_thread().name, self._clock.now(), self._clock.monotonic())
        try:
            self._enter(place)
            place.connection = place.connection or self._make()
            yield place.connection
        finally:
            try:
                self._leave(place)
            except BaseException:
                # Once more, and a third time where another Ctrl-C comes in the midst of that.
                try:
                    self._leave(place)
                finally:
                    self._leave(place)
                raise

    def figures(self) -> Connections:
        with self._lock:
            now = self._clock.monotonic()
            return Connections(
                size=len(self._idle) + len(self._taken),
                most=self._most,
                waiting=len(self._waiting),
                longest_wait_ms=(now - self._waiting[0].waits_since) * 1000 if self._waiting else 0.0,
                holders=longest_first([each.holder for each in self._taken]),
            )

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
        self._taken.clear()
        self._waiting.clear()

    def _enter(self, place: _Place[C]) -> None:
        """Wait until a connection may be had; it has one then, where one is kept."""
        with self._lock:
            self._waiting.append(place)
            self._admit()
        if not place.turn.wait(min(SCARCE_SECONDS, self._patience_seconds)):
            self._tell(place)
            place.turn.wait(self._patience_seconds - SCARCE_SECONDS)
        with self._lock:
            if place in self._taken:
                return
            longest = longest_first([each.holder for each in self._taken])[0]
            seconds = (self._clock.now() - longest.since) / SECOND
        raise StoreContention(
            f"all {self._most} connections for starting flows were in use for {self._patience_seconds:g} s; for "
            f"longest, {seconds:.1f} s, by {longest}. Hold none while you wait for something else, or raise "
            "connections_max."
        )

    def _admit(self) -> None:
        while self._waiting and (self._most is None or len(self._taken) < self._most):
            first = self._waiting[0]
            first.holder = replace(first.holder, since=self._clock.now())
            # No call, and so no interrupt, comes between these lines.
            del self._waiting[0]
            self._taken += [first]
            if self._idle:
                first.connection = self._idle[-1]
                del self._idle[-1]
            first.turn.set()

    def _leave(self, place: _Place[C]) -> None:
        if place.connection is not None:
            place.connection.rollback()
        with self._lock:
            if place.connection is not None:
                # As above.
                self._idle += [place.connection]
                place.connection = None
            for places in (self._taken, self._waiting):
                if place in places:
                    places.remove(place)
            self._admit()

    def _tell(self, waiting: _Place[C]) -> None:
        """Once for those who wait, by the first of them."""
        figures = self.figures()
        with self._lock:
            is_first = bool(self._waiting) and self._waiting[0] is waiting
        if not is_first or not figures.holders:
            return
        longest = figures.holders[0]
        logger.warning(
            "%d wait for a connection, the first for %.0f ms: all %s are in use; for longest, %.1f s, by %s",
            figures.waiting,
            figures.longest_wait_ms,
            figures.most,
            (self._clock.now() - longest.since) / SECOND,
            longest,
            extra={"event": "connections-scarce"},
        )


def _close(idle: list[C]) -> None:
    for connection in idle:
        connection.close()


_pools: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()
# What pools had that are gone: closed when another one is used.
_forgotten: list[list[Any]] = []
_closing = threading.RLock()


def _close_forgotten() -> None:
    with _closing:
        while _forgotten:
            try:
                _close(_forgotten[0])
            except Exception:
                # It concerns the app that is gone, and not the one that starts flows now.
                logger.exception("a connection of a forgotten app could not be closed")
            del _forgotten[0]


def _close_all() -> None:
    _close_forgotten()
    for pool in list(_pools):
        pool.close()


def _in_child() -> None:
    global _closing  # noqa: PLW0603 - another thread of the parent may hold it
    _closing = threading.RLock()
    _forgotten.clear()
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(before=_close_all, after_in_child=_in_child)
atexit.register(_close_all)
