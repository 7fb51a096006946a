"""How many messages a worker claims ahead."""

from __future__ import annotations

import pytest

from stagepost.runtime.prefetch import AHEAD_SECONDS, WINDOW_MAX, PrefetchWindow


def after(*seconds: float, slots: int = 4) -> int:
    window = PrefetchWindow(slots)
    for each in seconds:
        window.observe(each)
    return window.size


def test_it_begins_with_one_message_for_each_slot() -> None:
    assert after(slots=4) == 4
    assert after(slots=1) == 1


def test_quick_messages_are_claimed_for_a_while_ahead() -> None:
    assert after(*[0.01] * 20) == pytest.approx(4 * AHEAD_SECONDS / 0.01, abs=1)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-4])
def test_however_quick_they_are_there_is_a_limit(seconds: float) -> None:
    assert after(*[seconds] * 100) == WINDOW_MAX


@pytest.mark.parametrize("seconds", [1.0, 60.0, 100_000.0])
def test_however_slow_they_are_each_slot_gets_one(seconds: float) -> None:
    assert after(*[seconds] * 100) == 4


def test_more_slots_than_the_limit_get_one_each_all_the_same() -> None:
    assert after(*[10.0] * 10, slots=200) == 200


def test_one_slow_message_shrinks_it_at_once() -> None:
    assert after(*[0.001] * 100) == WINDOW_MAX
    assert after(*[0.001] * 100, 2.0) == 4


def test_it_grows_again_when_they_are_quick_again_and_takes_longer_for_that() -> None:
    slow = [0.001] * 100 + [2.0]
    assert after(*slow, 0.001) == 4
    assert after(*slow, *[0.001] * 100) == WINDOW_MAX


def test_what_varies_a_little_moves_it_a_little() -> None:
    steady = after(*[0.01] * 50)
    assert abs(after(*[0.01] * 50, 0.012) - steady) <= 2
