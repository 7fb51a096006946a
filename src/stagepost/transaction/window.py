"""How many messages to claim ahead: enough that claiming costs little, few enough that none waits behind a slow one."""

from __future__ import annotations

# What is claimed ahead is about this much work, so that little is held back from idle neighbours.
AHEAD_SECONDS = 0.1
WINDOW_MAX = 100
# The weight of the newest observation. A slow one counts at once, in full: a window must shrink faster than it grows.
SMOOTHING = 0.2


class Window:
    """For ``slots`` handlers at a time. Starts with one message each."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._average: float | None = None

    def observe(self, seconds: float) -> None:
        """An attempt took this long, all in all."""
        if self._average is None or seconds > self._average * 10:
            self._average = seconds
        else:
            self._average += SMOOTHING * (seconds - self._average)

    @property
    def size(self) -> int:
        if self._average is None:
            return self._slots
        ahead = int(self._slots * AHEAD_SECONDS / max(self._average, 1e-6))
        return max(self._slots, min(ahead, WINDOW_MAX))
