"""A pool of connections for callers that start flows from outside. It closes them before the process forks.

A web server may import the app and then fork its workers, and would otherwise share the parent's connection with them.
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

from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.errors import StoreContention
from stagepost.runtime.connections import Connections, ConnectionUsage, longest_first

# How long a caller waits for a connection before it gets an error.
PATIENCE_SECONDS = 30.0
# How long a caller waits before a log line reports it.
SCARCE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Pooled(Protocol):
    def rollback(self) -> None: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Pooled)


class _Place(Generic[C]):
    """The place of one call in the pool: it waits for its turn, and then has a connection."""

    def __init__(self, who: str, now: int, waits_since: float) -> None:
        self.holder = ConnectionUsage(who=who, since=now)
        self.waits_since = waits_since
        self.turn = threading.Event()
        self.connection: C | None = None


class Pool(Generic[C]):
    """A pool with a connection for each running call. Threads share the connections, one after the other.

    At most ``most`` are in use, or any number with None. Further callers wait in order. ``purpose`` is for errors.
    """

    def __init__(
        self,
        make: Callable[[], C],
        clock: Clock,
        most: int | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
        *,
        purpose: str = "starting flows",
    ) -> None:
        self._make = make
        self._clock = clock
        self._most = most
        self._patience_seconds = patience_seconds
        self._purpose = purpose
        self._idle: list[C] = []
        self._taken: list[_Place[C]] = []
        self._waiting: deque[_Place[C]] = deque()
        self._lock = threading.Lock()
        _pools.add(self)
        # An app may be dropped without being closed. A finalizer may run within any call of its thread, so it must not
        # close connections, which takes locks.
        weakref.finalize(self, _forgotten.append, self._idle).atexit = False

    @contextmanager
    def taken(self) -> Iterator[C]:
        """Lend a connection to the block.

        Raises the error of opening one, and ``StoreContention`` if no connection became free in time. Ctrl-C may
        interrupt it after any call (docs/decisions/028). So ``_leave`` undoes what it finds, and can be repeated.
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
                # Repeat it, and once more in case another Ctrl-C interrupts the repetition.
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
        """Close the connections that are not in use."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        _close(idle)

    def forget(self) -> None:
        """Drop all connections without closing them: in a forked child they belong to the parent."""
        self._lock = threading.Lock()
        self._idle.clear()
        self._taken.clear()
        self._waiting.clear()

    def _enter(self, place: _Place[C]) -> None:
        """Wait for a turn, which brings an idle connection if there is one. Raises ``StoreContention``."""
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
            f"all {self._most} connections for {self._purpose} were in use for {self._patience_seconds:g} s; the "
            f"longest use, for {seconds:.1f} s, is by {longest}. Hold none while you wait for something else, or raise "
            "connections_max."
        )

    def _admit(self) -> None:
        while self._waiting and (self._most is None or len(self._taken) < self._most):
            first = self._waiting[0]
            first.holder = replace(first.holder, since=self._clock.now())
            # Ctrl-C is delivered only after a call, and these lines make none.
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
                # These lines make no call either.
                self._idle += [place.connection]
                place.connection = None
            for places in (self._taken, self._waiting):
                if place in places:
                    places.remove(place)
            self._admit()

    def _tell(self, waiting: _Place[C]) -> None:
        """Log that callers wait for a connection. Only the first of them logs it."""
        figures = self.figures()
        with self._lock:
            is_first = bool(self._waiting) and self._waiting[0] is waiting
        if not is_first or not figures.holders:
            return
        longest = figures.holders[0]
        logger.warning(
            "%d callers wait for a connection, the first for %.0f ms: all %s are in use, the longest for %.1f s by %s",
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
# The idle connections of pools that are gone. The next use of any pool closes them.
_forgotten: list[list[Any]] = []
_closing = threading.RLock()


def _close_forgotten() -> None:
    with _closing:
        while _forgotten:
            try:
                _close(_forgotten[0])
            except Exception:
                # The error concerns the dropped app, and not the caller, which starts flows of another one.
                logger.exception(
                    "connection of a dropped app cannot be closed", extra={"event": "connection-not-closed"}
                )
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
