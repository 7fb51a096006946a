"""A rate is kept evenly, without drift, and does not make up for an outage."""

from __future__ import annotations

import pytest

from stagepost.recovery.rate_limiter import CHUNK_MAX, RateLimiter
from stagepost.testing import ManualClock


def moments(pace: RateLimiter, clock: ManualClock, chunks: int, *, work_seconds: float = 0.0) -> list[float]:
    """When each chunk begins, in seconds from the first, where each takes that long."""
    found = []
    for _ in range(chunks):
        while (seconds := pace.seconds_to_wait()) > 0:
            clock.advance(seconds)
        found.append(round(clock.monotonic(), 6))
        clock.advance(work_seconds)
        pace.did(pace.chunk)
    return found


def test_without_a_rate_nobody_waits() -> None:
    pace = RateLimiter(None, ManualClock())
    pace.did(1_000_000)
    assert (pace.chunk, pace.seconds_to_wait()) == (CHUNK_MAX, 0.0)


@pytest.mark.parametrize(
    ("rate", "chunk", "apart"), [(5, 1, 0.2), (0.25, 1, 4.0), (19, 1, 1 / 19), (100, 10, 0.1), (10_000, 100, 0.01)]
)
def test_a_rate_is_many_small_steps_of_equal_distance(rate: float, chunk: int, apart: float) -> None:
    clock = ManualClock()
    pace = RateLimiter(rate, clock)
    assert pace.chunk == chunk
    assert moments(pace, clock, 5) == [round(n * apart, 6) for n in range(5)]


def test_what_the_work_takes_is_no_part_of_the_distance() -> None:
    clock = ManualClock()
    assert moments(RateLimiter(5, clock), clock, 5, work_seconds=0.15) == [0.0, 0.2, 0.4, 0.6, 0.8]


def test_a_million_steps_later_it_has_not_drifted() -> None:
    clock = ManualClock()
    pace = RateLimiter(3, clock)
    pace.did(1_000_000)
    assert pace.seconds_to_wait() == pytest.approx(1_000_000 / 3, abs=1e-6)


def test_a_slow_moment_is_made_up_for() -> None:
    clock = ManualClock()
    pace = RateLimiter(5, clock)
    assert moments(pace, clock, 1) == [0.0]
    clock.advance(0.5)
    assert moments(pace, clock, 3) == [0.5, 0.5, 0.6]


def test_an_outage_is_not_followed_by_all_that_was_missed() -> None:
    clock = ManualClock()
    pace = RateLimiter(5, clock)
    assert moments(pace, clock, 1) == [0.0]
    clock.advance(60)
    # What was missed in the last second comes at once.
    assert moments(pace, clock, 8) == [60.0] * 6 + [60.2, 60.4]


def test_what_was_not_done_costs_no_time() -> None:
    clock = ManualClock()
    pace = RateLimiter(5, clock)
    pace.did(0)
    assert pace.seconds_to_wait() == 0.0
