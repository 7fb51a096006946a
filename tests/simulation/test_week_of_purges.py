"""A week of traffic, with an outage, a leap of the clock and killed purges: no promise of the retention is broken.

``make soak`` runs the week in its full size. One control purges a day early, and must be caught.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.campaigns import Tell
from tests.simulation.week import DAY, Plan, Week

# A part of the planned duplicates come before enough was sent, and some purges end before the step that kills them.
LEAST = 0.91
SAMPLE = Plan(messages=800, duplicates=400, purges=170, kills=4)
FULL = Plan(messages=100_000, duplicates=6_000, purges=1_100, kills=110)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/week.db"
    made: Callable[[], str] = request.getfixturevalue("new_postgres")
    return made()


@pytest.mark.parametrize(
    "plan", [SAMPLE, pytest.param(FULL, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])], ids=["sample", "full"]
)
def test_a_week_of_purges_breaks_no_promise(url: str, plan: Plan, tell: Tell) -> None:
    week = Week(url, plan, Random(19))
    week.run()
    tell("week of purges", week.violations)
    assert week.violations == []
    assert len(week.sent) == plan.messages
    assert week.recognised + week.executed_again >= plan.duplicates * LEAST
    assert week.executed_again > 0
    assert week.purged >= plan.purges
    assert week.killed >= plan.kills * LEAST - 1


@pytest.mark.more
def test_a_purge_that_comes_a_day_early_is_caught(url: str) -> None:
    week = Week(url, replace(SAMPLE, early_hours=DAY), Random(19))
    week.run()
    assert any("started again after" in each for each in week.violations)
