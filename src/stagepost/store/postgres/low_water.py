"""Where to begin looking for messages while dead rows make every look from the start slow.

While an old snapshot is held somewhere, no vacuum removes the rows claimed before: they stay in the index, and whoever
begins at its start walks over all of them. Once that shows, looks and claims begin where the last claim ended, at the
*low-water mark* of each stage. What came in below it (a message of an older flow, or one given back) is found by the
next *sweep*, a look and a claim from the start, of which there are fewer the longer they take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stagepost.flow.claim import Claim

# A sweep that takes longer is slow.
SLOW_SECONDS = 0.02
# One may have waited for the processor.
SLOW_MIN = 3
# Between two sweeps, as a multiple of what the last one took, and at most.
PAUSE_FACTOR = 40.0
PAUSE_SECONDS_MAX = 5.0

Mark = tuple[int, int]
FROM_THE_START: Mark = (-1, -1)


class LowWater:
    """Of one session. ``monotonic`` tells how long a sweep takes."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._marks: dict[str, Mark] = {}
        self._slow = 0
        self._is_sweeping = True
        self._took = 0.0
        self._swept_at = 0.0

    def decide(self) -> None:
        """Before a look: whether it, and the claim that may follow it, are a sweep."""
        if self._is_sweeping:
            self._slow = self._slow + 1 if self._took > SLOW_SECONDS else 0
        pause = min(PAUSE_FACTOR * self._took, PAUSE_SECONDS_MAX)
        self._is_sweeping = self._slow < SLOW_MIN or self.monotonic() - self._swept_at >= pause
        if self._is_sweeping:
            self._took = 0.0

    def begin_at(self, stages: Sequence[str]) -> dict[str, list[Any]]:
        """The parameters of a statement that begins at the marks, or at the start."""
        begins = [FROM_THE_START if self._is_sweeping else self._marks.get(each, FROM_THE_START) for each in stages]
        return {
            "stages": list(stages),
            "origins": [origin_at for origin_at, _ in begins],
            "ids": [row for _, row in begins],
        }

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around a statement that was told where to begin."""
        if not self._is_sweeping:
            yield
            return
        begin = self.monotonic()
        yield
        self._swept_at = self.monotonic()
        self._took += self._swept_at - begin

    def saw(self, claims: Sequence[Claim]) -> None:
        for each in claims:
            self._marks[each.stage] = max(self._marks.get(each.stage, FROM_THE_START), (each.origin_at, each.row))
