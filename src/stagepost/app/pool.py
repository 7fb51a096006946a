"""Connections for whoever starts flows from outside, kept between calls, and closed before the process forks.

A web server that forks its workers after it imported the app would otherwise hand each of them the parent's open
connection.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        self._holders: list[Holder] = []
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        _pools.add(self)
        # Nobody is asked to close an app before it is forgotten, or its process ends.
        weakref.finalize(self, _close, self._idle)

    @contextmanager
    def taken(self) -> Iterator[C]:
        """A connection for the block. Raises what opening one raises, and ``StoreContention`` where none came free."""
        holder = self._enter()
        try:
            connection = self._kept() or self._make()
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            finally:
                with self._lock:
                    self._idle.append(connection)
        finally:
            self._leave(holder)

    def figures(self) -> Connections:
        with self._lock:
            now = self._clock.monotonic()
            return Connections(
                size=len(self._idle) + len(self._holders),
                most=self._most,
                waiting=len(self._waiting),
                longest_wait_ms=(now - self._waiting[0].since) * 1000 if self._waiting else 0.0,
                holders=longest_first(self._holders),
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
        self._holders.clear()
        self._waiting.clear()

    def _kept(self) -> C | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _enter(self) -> Holder:
        """Wait until a connection may be had."""
        with self._lock:
            if self._most is None or len(self._holders) < self._most:
                return self._let_in(threading.current_thread().name)
            waiting = _Waiting(threading.current_thread().name, self._clock.monotonic())
            self._waiting.append(waiting)
        try:
            if not waiting.turn.wait(min(SCARCE_SECONDS, self._patience_seconds)):
                self._tell(waiting)
                waiting.turn.wait(self._patience_seconds - SCARCE_SECONDS)
        except BaseException:
            self._give_up(waiting)
            raise
        with self._lock:
            if waiting.holder is not None:
                return waiting.holder
            self._waiting.remove(waiting)
            longest = longest_first(self._holders)[0]
            seconds = (self._clock.now() - longest.since) / SECOND
        raise StoreContention(
            f"all {self._most} connections for starting flows were in use for {self._patience_seconds:g} s; for "
            f"longest, {seconds:.1f} s, by {longest}. Hold none while you wait for something else, or raise "
            "connections_max."
        )

    def _give_up(self, waiting: _Waiting) -> None:
        with self._lock:
            if waiting.holder is None:
                self._waiting.remove(waiting)
                return
        self._leave(waiting.holder)

    def _let_in(self, who: str) -> Holder:
        holder = Holder(who=who, since=self._clock.now())
        self._holders.append(holder)
        return holder

    def _leave(self, holder: Holder) -> None:
        with self._lock:
            # By identity: in a forked child there is none.
            self._holders[:] = [each for each in self._holders if each is not holder]
            if self._waiting and (self._most is None or len(self._holders) < self._most):
                first = self._waiting.popleft()
                first.holder = self._let_in(first.who)
                first.turn.set()

    def _tell(self, waiting: _Waiting) -> None:
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


class _Waiting:
    """``holder`` is there once it is this one's turn."""

    def __init__(self, who: str, since: float) -> None:
        self.who = who
        self.since = since
        self.turn = threading.Event()
        self.holder: Holder | None = None


def _close(idle: list[C]) -> None:
    for connection in idle:
        connection.close()


_pools: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()


def _before_fork() -> None:
    for pool in list(_pools):
        pool.close()


def _in_child() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
