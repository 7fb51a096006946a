"""A clock that stands still until it is moved."""

from __future__ import annotations

from stagepost.flow.clock import SECOND, microseconds


class ManualClock:
    """Starts at ``start`` (microseconds since the epoch). Nothing moves it but ``advance`` and ``advance_to``."""

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
        """Never back."""
        self._now = max(self._now, moment)
