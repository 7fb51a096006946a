"""The windows of an audit. Recent windows have the width that was asked for, and older ones are merged."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from stagepost.flow.clock import SECOND

WINDOWS_MAX = 1_000
# So many windows keep the width that was asked for. Behind them, each step doubles the width.
RECENT = 500
MERGED = 32
PER_STEP = 10
STEPS = 25
# A host whose clock is ahead starts flows in the future. So many windows after the horizon keep their width too.
AHEAD = 50
AHEAD_PER_STEP = 3
# The year 9999, in microseconds. Python has no later moment.
LAST = 253_402_300_800 * SECOND


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """Windows of origin: at most ``WINDOWS_MAX``, for any history and any clock.

    Each merged window covers whole narrower ones, so facts of narrow windows merge into those of wide ones. Far in the
    future windows are merged too. When their time has come, their facts belong to the first narrow one.

    ``steps``  pairs of a moment and a width, both in microseconds, the latest first. A width holds from its moment on
    """

    steps: tuple[tuple[int, int], ...]

    @classmethod
    def until(cls, horizon: int, width_seconds: int) -> WindowGrid:
        """Return the grid whose newest windows of the past end at ``horizon``, in microseconds."""
        width = width_seconds * SECOND
        steps = _steps_ahead(horizon, width)
        windows = RECENT
        begin, next_width = horizon, width * MERGED
        for _ in range(STEPS):
            begin = _floor(begin - windows * width, next_width)
            steps.append((begin, width))
            if begin < 0:
                # No flow began before 1970, and wider windows would not fit into 64 bits.
                break
            width, next_width, windows = next_width, next_width * 2, PER_STEP
        # All that is older, before the year 1000.
        return cls((*steps, (-(2**62), width)))

    def begin_of(self, origin: Column) -> Column:
        """Return the begin of the window that holds ``origin``."""
        at = F.unix_micros(origin)
        return F.timestamp_micros(at - F.pmod(at, self._width(at)))

    def width_at(self, begin: int) -> int:
        """Return the width of the window that begins at ``begin``, both in microseconds."""
        return next(width for since, width in self.steps if begin >= since)

    def _width(self, at: Column) -> Column:
        (first, width), *others = self.steps
        found = F.when(at >= first, F.lit(width).cast("bigint"))
        for begin, other in others:
            found = found.when(at >= begin, F.lit(other).cast("bigint"))
        return found


def _steps_ahead(horizon: int, width: int) -> list[tuple[int, int]]:
    """Return the steps of the future, the latest first."""
    steps: list[tuple[int, int]] = []
    begin, next_width = horizon + AHEAD * width, width * MERGED
    while begin < LAST:
        begin = -_floor(-begin, next_width)
        steps.append((begin, next_width))
        begin, next_width = begin + AHEAD_PER_STEP * next_width, next_width * 2
    return steps[::-1]


def _floor(at: int, width: int) -> int:
    return at - at % width
