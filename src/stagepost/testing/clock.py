"""A clock that only moves when a test moves it."""

from __future__ import annotations

from stagepost.flow.clock import SECOND, microseconds


class ManualClock:
    """A clock that starts at ``start`` (microseconds since the epoch) and moves by ``advance`` and ``advance_to``."""

    def __init__(self, start: int = 1_700_000_000 * SECOND) -> None:
        self._now = start
        self._start = start

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start) / SECOND

    def advance(self, seconds: float) -> None:
        self._now += microseconds(seconds)

    def advance_to(self, moment: int) -> None:
        """Set the clock to ``moment``, unless it is later already."""
        self._now = max(self._now, moment)
