"""Decide on outbound messages: when a destination pauses, and when a message is not published again. Pure functions.

An answer of the broker counts against the destination, not against a message. Only a connection that the broker or the
network ended counts against a message, and only if the message was alone on it.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from stagepost.flow.clock import SECOND, microseconds
from stagepost.ports.circuits import CircuitBreaker
from stagepost.recovery.pausing import opened, with_failed_probe

# A receiver may have purged its record of a copy that is older than this. Receivers keep ids for longer.
COPY_HORIZON = 3 * 24 * 3600 * SECOND
# So many connections may be lost with one message alone on them.
LOSSES_MAX = 10
PAUSE_SECONDS_FIRST = 1.0
PAUSE_SECONDS_MAX = 60.0
JITTER = 0.15


def is_too_old(left_at: int, now: int) -> bool:
    """Say whether a message that first left then is not published again."""
    return now - left_at > COPY_HORIZON


def pause_after_loss(losses: int, random: Random) -> int:
    """Return the microseconds until the next copy, after the ``losses``-th connection was lost."""
    seconds = min(PAUSE_SECONDS_FIRST * 2.0 ** min(losses - 1, 16), PAUSE_SECONDS_MAX)
    return microseconds(seconds * (1 + JITTER * random.random()))


def with_refusal(breaker: CircuitBreaker, error: str, now: int) -> CircuitBreaker:
    """Pause a destination, or count its failed probe."""
    if breaker.pause is None:
        return replace(opened(breaker, now), error=error)
    return with_failed_probe(breaker, breaker.pause, error, now)
