"""Scales of the report's plots: from values to pixels, and to readable ticks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

# The ticks of a scale of durations, in milliseconds: powers of ten to 10 s, then minutes, hours and days.
ROUND_MILLISECONDS = (0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 6e4, 6e5, 3.6e6, 3.6e7, 8.64e7, 8.64e8, 8.64e9)
MILLISECONDS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))


@dataclass(frozen=True, slots=True)
class Linear:
    """A scale from ``low`` to ``high`` onto pixels from ``begin`` to ``end``."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.begin + min(max(share, 0), 1) * (self.end - self.begin), 2)

    def ticks(self, about: int) -> list[float]:
        """Return about that many round values within the scale."""
        step = _round_step((self.high - self.low) / about)
        first = math.ceil(self.low / step)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """A logarithmic scale; values below ``low`` are drawn at it."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        span = math.log10(self.high / self.low) or 1.0
        share = math.log10(max(value, self.low) / self.low) / span
        return round(self.begin + min(max(share, 0), 1) * (self.end - self.begin), 2)

    def ticks(self) -> list[float]:
        """Return the round durations within the scale."""
        return [each for each in ROUND_MILLISECONDS if self.low <= each <= self.high]


def logarithmic(values: Sequence[float], begin: float, end: float) -> Logarithmic:
    """Return a scale of milliseconds, between two round durations that hold the values."""
    positive = [value for value in values if value > 0] or [1.0]
    first = max(bisect_right(ROUND_MILLISECONDS, min(positive)) - 1, 0)
    low = ROUND_MILLISECONDS[min(first, len(ROUND_MILLISECONDS) - 2)]
    high = next((each for each in ROUND_MILLISECONDS if each > low and each >= max(positive)), max(positive))
    return Logarithmic(low, high, begin, end)


def count(value: float) -> str:
    """Return a number as people read it: 1,234 or 0.52."""
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"  # noqa: PLR2004 - digits that matter


def short(value: float) -> str:
    """Return a number for a tick: 1.5k or 2M."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def milliseconds(value: float | None) -> str:
    """Return a duration with one unit: 850 ms, 2.4 s, 3 d."""
    if value is None:
        return "·"
    for size, unit in MILLISECONDS:
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.2g} ms"


def size(value: float) -> str:
    """Return a number of bytes with one unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:  # noqa: PLR2004 - the step between two units
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def moment(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def tick_time(at: float, span: float) -> str:
    """Return the label of a moment, in seconds since 1970, on an axis of ``span`` seconds."""
    form = "%H:%M:%S" if span < 600 else "%H:%M" if span < 86_400 else "%b %d %H:%M" if span < 604_800 else "%Y-%m-%d"  # noqa: PLR2004
    return f"{datetime.fromtimestamp(at, UTC):{form}}"


def _round_step(step: float) -> float:
    """Return the next greater of 1, 2 or 5 times a power of ten."""
    if step <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
