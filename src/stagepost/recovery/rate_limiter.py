"""Limit a rate evenly, without drift."""

from __future__ import annotations

from stagepost.flow.clock import SECOND, Clock, microseconds

CHUNK_MAX = 100
# Chunks per second, if the rate allows it. So five a second are one every 200 ms, and not five at once and a pause.
STEPS_A_SECOND = 10
# A delay beyond this, as in an outage, is not caught up, because the rate protects another system.
LAG_MAX = 1 * SECOND


class RateLimiter:
    """A limit of ``rate`` items per second since the construction; None for no limit.

    ``chunk``  the number of items to do at a time
    """

    def __init__(self, rate: float | None, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._begin = self._now()
        self._done = 0
        self.chunk = CHUNK_MAX if rate is None else min(max(int(rate / STEPS_A_SECOND), 1), CHUNK_MAX)

    def seconds_to_wait(self) -> float:
        """Return the seconds until the next chunk is due, 0 if it is due now."""
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
