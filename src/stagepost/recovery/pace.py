"""How many, and when: a rate that is kept evenly and does not drift."""

from __future__ import annotations

from stagepost.flow.clock import SECOND, Clock, microseconds

CHUNK_MAX = 100
# So often a second, where the rate allows: five a second are one each fifth of a second, not many at once and a pause.
STEPS_A_SECOND = 10
# What was missed for longer than that, in an outage, is not made up for: the rate is there to spare somebody.
LAG_MAX = 1 * SECOND


class Pace:
    """At most ``rate`` a second, reckoned from when this was made; None for as many as it goes.

    ``chunk``  how many to do at a time
    """

    def __init__(self, rate: float | None, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._begin = self._now()
        self._done = 0
        self.chunk = CHUNK_MAX if rate is None else min(max(int(rate / STEPS_A_SECOND), 1), CHUNK_MAX)

    def seconds_to_wait(self) -> float:
        """Until the next chunk is due; 0 when it is."""
        if self._rate is None:
            return 0.0
        ahead = self._begin + round(self._done * SECOND / self._rate) - self._now()
        if ahead < -LAG_MAX:
            self._begin -= ahead + LAG_MAX
        return max(ahead, 0) / SECOND

    def did(self, count: int) -> None:
        self._done += count

    def _now(self) -> int:
        return microseconds(self._clock.monotonic())
