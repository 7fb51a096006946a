"""How long what died must wait, and when it has died often enough."""

from __future__ import annotations

from itertools import pairwise

from stagepost.recovery.suspicion import is_deadly, pause_after_death


def test_the_pause_after_a_death_grows_up_to_a_minute() -> None:
    pauses = [pause_after_death(deaths) / 1_000_000 for deaths in range(1, 10)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_the_pause_after_very_many_deaths_is_a_minute_still() -> None:
    assert pause_after_death(10_000) == 60_000_000
    assert all(before <= after for before, after in pairwise(map(pause_after_death, range(1, 100))))


def test_nobody_is_blamed_for_the_first_death_and_three_alone_are_enough() -> None:
    assert [is_deadly(deaths) for deaths in range(1, 6)] == [False, False, False, True, True]
