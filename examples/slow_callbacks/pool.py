"""A pool of connections that knows which code holds each of them, and for how long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

import psycopg

# By which the server shows the pool's connections.
APPLICATION = "slow_callbacks"


class Pool:
    def __init__(self, url: str, size: int) -> None:
        self.size = size
        self._free: SimpleQueue[psycopg.Connection] = SimpleQueue()
        self._holders: dict[int, float] = {}
        for _ in range(size):
            self._free.put(psycopg.connect(url, application_name=APPLICATION))

    @contextmanager
    def connection(self, ended: threading.Event) -> Iterator[psycopg.Connection | None]:
        """Lend a connection; None if ``ended`` is set before one is free."""
        found = self._take(ended)
        if found is None:
            yield None
            return
        self._holders[threading.get_ident()] = time.monotonic()
        try:
            yield found
        finally:
            del self._holders[threading.get_ident()]
            self._free.put(found)

    def _take(self, ended: threading.Event) -> psycopg.Connection | None:
        while not ended.is_set():
            try:
                return self._free.get(timeout=0.2)
            except Empty:
                continue
        return None

    @property
    def in_use(self) -> int:
        return len(self._holders)

    def culprits(self, seconds: float) -> list[str]:
        """Name the functions in which threads have held a connection for longer than that: the innermost of ours."""
        now, frames = time.monotonic(), sys._current_frames()  # noqa: SLF001 - the documented way to see other threads
        names: list[str] = []
        for thread, since in list(self._holders.items()):
            frame = frames.get(thread)
            while frame is not None and not frame.f_globals.get("__name__", "").startswith("examples.slow_callbacks"):
                frame = frame.f_back
            if frame is not None and now - since > seconds:
                names.append(frame.f_code.co_name)
        return names

    def close(self) -> None:
        while True:
            try:
                self._free.get_nowait().close()
            except Empty:
                return
