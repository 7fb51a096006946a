"""Benchmarks judge durations by the goal, and refuse a report that misses the planted differences."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks import growth_jobs
from benchmarks.machine import BUSY_MAX
from benchmarks.result import Durations
from stagepost.store.sqlite.store import migrate_file


def durations(*, others: float = 0.0, **goal: float) -> Durations:
    return Durations(
        name="audit", ours=[21.0, 19.0, 20.0], other=[10.0, 10.0, 11.0], other_name="bare", others=others, **goal
    )


@pytest.mark.parametrize(
    ("goal", "is_reached"),
    [({"factor_max": 1.9}, True), ({"factor_max": 1.8}, False), ({"more_max": 9.0}, True), ({"more_max": 8.9}, False)],
    ids=str,
)
def test_durations_are_judged_by_the_median_of_neighbouring_runs(goal: dict[str, float], *, is_reached: bool) -> None:
    found = durations(**goal)
    assert found.is_reached is is_reached
    assert any(("reached" if is_reached else "MISSED") in line for line in found.lines())
    busy = durations(others=2 * BUSY_MAX, **goal)
    assert not busy.is_valid
    assert [line for line in busy.lines() if " s" in line] == []


def test_a_report_without_a_planted_difference_is_refused(tmp_path: Path) -> None:
    """The verdicts are those of the journals, which this test counts itself."""

    def new(name: str) -> str:
        migrate_file(tmp_path / f"{name}.db")
        return f"sqlite:///{tmp_path / name}.db"

    _, check = growth_jobs.reconcile(growth_jobs.Site(tmp_path, new), 100)
    sent, arrived = ids(tmp_path / "payments100.db", "confirmed"), ids(tmp_path / "ledger100.db", "arrived")
    answer: dict[str, Any] = {
        "lost": [{"message_id": each} for each in sent if arrived[each] == 0],
        "duplicated": [{"message_id": each} for each in sent if arrived[each] == 2],
        "unexpected": [],
        "addresses": [
            {"address": "ledger.book", "sent": 20, "ok": 15},
            {"address": "payments.book", "sent": 20, "ok": 20},
        ],
    }
    check(answer)
    for name in ("lost", "duplicated"):
        with pytest.raises(AssertionError, match="in place of"):
            check({**answer, name: answer[name][1:]})


def ids(file: Path, waypoint: str) -> Counter[str]:
    """Return how many lines of that waypoint each message has, in the order of the journal."""
    statement = "SELECT message_id FROM stagepost_journal WHERE waypoint = ? ORDER BY id"
    with closing(sqlite3.connect(file)) as connection:
        return Counter(each for (each,) in connection.execute(statement, [waypoint]))
