"""Virtual time for the threads of a process: timed waits end when the test says so, and always in the same order."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

from tests.waiting import PATIENCE_SECONDS

LOOK_SECONDS = 0.05

WAIT = threading.Condition.wait
NOTIFY = threading.Condition.notify


@dataclass(eq=False)
class Waiting:
    """A thread in ``Condition.wait``. ``result`` is what the wait returns; None as long as the thread must wait."""

    thread: threading.Thread
    condition: threading.Condition
    due: float
    result: bool | None = None


class StillTime:
    """Keep the timed waits of all threads from ending by themselves, except in the thread that makes it.

    ``Event``, ``Queue`` and ``Semaphore`` wait by ``Condition.wait``, so they stand still too. Make one in a process of
    its own: the methods of ``Condition`` stay patched.
    """

    def __init__(self) -> None:
        self._owner = threading.current_thread()
        self._now = 0.0
        self._waiting: list[Waiting] = []
        self._changed = threading.Condition()
        self._has_ended = False
        patch.multiple(
            threading.Condition,
            wait=lambda condition, timeout=None: self._wait(condition, timeout),
            notify=lambda condition, n=1: self._notify(condition, n),
        ).start()

    def end(self) -> None:
        """Let all threads wait by the real time from now on."""
        with self._changed:
            self._has_ended = True
        for each in self._timed():
            self._expire(each)

    def pass_until(self, is_done: Callable[[], bool]) -> None:
        """End one timed wait after the other, the earliest first, until all threads wait and ``is_done``.

        Each wait ends only after all other threads wait again. Raises ``TimeoutError``.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._await_others(deadline)
            if is_done():
                return
            timed = self._timed()
            if not timed or time.monotonic() > deadline:
                raise TimeoutError("all threads wait, and the expected event has not happened")
            self._expire(min(timed, key=lambda each: each.due))

    def _await_others(self, deadline: float) -> None:
        with self._changed:
            while busy := self._busy():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"these threads do not wait: {', '.join(busy)}")
                # A thread that ends notifies nobody.
                self._changed.wait(LOOK_SECONDS)

    def _busy(self) -> list[str]:
        waiting = {self._owner, *(each.thread for each in self._waiting)}
        return [thread.name for thread in threading.enumerate() if thread not in waiting]

    def _timed(self) -> list[Waiting]:
        with self._changed:
            return [each for each in self._waiting if each.due < math.inf]

    def _expire(self, expired: Waiting) -> None:
        with expired.condition, self._changed:
            if expired.result is not None:
                return
            expired.result = False
            self._waiting.remove(expired)
            self._now = expired.due
            # The other threads at this condition have no result yet, and wait again.
            NOTIFY(expired.condition, threading.active_count())

    def _wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        thread = threading.current_thread()
        if thread is self._owner:
            return WAIT(condition, timeout)
        with self._changed:
            has_ended = self._has_ended
            if not has_ended:
                mine = Waiting(thread, condition, math.inf if timeout is None else self._now + timeout)
                self._waiting.append(mine)
                NOTIFY(self._changed)
        if has_ended:
            return WAIT(condition, timeout)
        while mine.result is None:
            WAIT(condition)
        return mine.result

    def _notify(self, condition: threading.Condition, n: int) -> None:
        NOTIFY(condition, n)
        with self._changed:
            for each in [each for each in self._waiting if each.condition is condition][:n]:
                each.result = True
                self._waiting.remove(each)
