"""Begin the search for messages beyond the dead rows, if these make it slow.

While a transaction holds an old snapshot, vacuum removes no claimed rows. They stay in the index, and each search from
the start of the index reads all of them. When searches become slow, looks and claims begin at the *low-water mark* of
each stage, where the last claim ended. A message below the mark, of an older flow or released, is found by the next
*sweep*: a look and a claim from the start. The longer a sweep takes, the rarer sweeps are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stagepost.flow.claim import Claim

# A sweep that takes longer is slow.
SLOW_SECONDS = 0.02
# A single slow sweep may only have waited for the processor.
SLOW_MIN = 3
# The pause between two sweeps: a multiple of the last one's time, up to a maximum.
PAUSE_FACTOR = 40.0
PAUSE_SECONDS_MAX = 5.0

Mark = tuple[int, int]
FROM_THE_START: Mark = (-1, -1)


class LowWater:
    """The low-water marks of one session. ``monotonic`` measures the sweeps."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._marks: dict[str, Mark] = {}
        self._slow = 0
        self._is_sweeping = True
        self._took = 0.0
        self._swept_at = 0.0

    def decide(self) -> None:
        """Decide whether the next look, and the claim that may follow it, are a sweep."""
        if self._is_sweeping:
            self._slow = self._slow + 1 if self._took > SLOW_SECONDS else 0
        pause = min(PAUSE_FACTOR * self._took, PAUSE_SECONDS_MAX)
        self._is_sweeping = self._slow < SLOW_MIN or self.monotonic() - self._swept_at >= pause
        if self._is_sweeping:
            self._took = 0.0

    def begin_at(self, stages: Sequence[str]) -> dict[str, list[Any]]:
        """Return the parameters of a statement that begins at the marks, or in a sweep at the start."""
        begins = [FROM_THE_START if self._is_sweeping else self._marks.get(each, FROM_THE_START) for each in stages]
        return {
            "stages": list(stages),
            "origins": [origin_at for origin_at, _ in begins],
            "ids": [row for _, row in begins],
        }

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the block, a statement with the parameters of ``begin_at``, if it is part of a sweep."""
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
