"""Time as a dependency. Nothing else in Stagepost reads a clock.

Moments are whole microseconds since 1970-01-01T00:00Z: exact, comparable, and the same in SQLite, JSON and Arrow.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

SECOND = 1_000_000
MILLISECOND = 1_000


class Clock(Protocol):
    def now(self) -> int:
        """Microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""


class SystemClock:
    monotonic = staticmethod(time.monotonic)

    def now(self) -> int:
        return time.time_ns() // 1_000


def microseconds(seconds: float) -> int:
    return round(seconds * SECOND)


# What no delay, no pause and no limit may exceed: all moments stay far from the end of 64 bits.
SECONDS_MAX = 10 * 365 * 86_400.0


def is_span(seconds: object) -> bool:
    """A number of seconds that can be waited for."""
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds <= SECONDS_MAX


def to_microseconds(at: datetime) -> int:
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def to_datetime(moment: int) -> datetime:
    seconds, rest = divmod(moment, SECOND)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
