"""Knowing that there may be work, without asking too often.

SQLite has no NOTIFY. Its data version tells, at the price of one small read, whether anybody committed; it is asked
every 2 ms after work was seen, and ever less often, down to every 50 ms, while nothing comes.
"""

from __future__ import annotations

import threading

INTERVAL_SECONDS_MIN = 0.002
INTERVAL_SECONDS_MAX = 0.05
GROWTH = 1.5


class Wakeup:
    """``ring`` from any thread of this process; one thread waits."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._is_waiting = False
        self._interval = INTERVAL_SECONDS_MIN

    def ring(self) -> None:
        # One that begins to wait at this moment looks for itself, a few milliseconds later.
        if self._is_waiting:
            self._rung.set()

    def saw_work(self) -> None:
        self._interval = INTERVAL_SECONDS_MIN

    def wait(self) -> bool:
        """Until rung, or until it is time to look again. True when rung."""
        self._is_waiting = True
        rung = self._rung.wait(self._interval)
        self._is_waiting = False
        self._rung.clear()
        self._interval = min(self._interval * GROWTH, INTERVAL_SECONDS_MAX)
        return rung
