"""The clock. No other module of Stagepost reads the time.

A moment is a whole number of microseconds since 1970-01-01T00:00Z. Moments are exact and comparable, and have the same
form in SQLite, JSON and Arrow.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

SECOND = 1_000_000
MILLISECOND = 1_000
HOUR = 3_600 * SECOND


class Clock(Protocol):
    def now(self) -> int:
        """Return the microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start; the value never decreases."""


class SystemClock:
    monotonic = staticmethod(time.monotonic)

    def now(self) -> int:
        return time.time_ns() // 1_000


def microseconds(seconds: float) -> int:
    return round(seconds * SECOND)


# The limit of every delay, pause and time limit: it keeps all moments within 64 bits.
SECONDS_MAX = 10 * 365 * 86_400.0


def is_span(seconds: object) -> bool:
    """Say whether ``seconds`` is a number from 0 to ``SECONDS_MAX``."""
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds <= SECONDS_MAX


def to_microseconds(at: datetime) -> int:
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def to_datetime(moment: int) -> datetime:
    seconds, rest = divmod(moment, SECOND)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
