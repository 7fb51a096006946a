"""The audit's advice, by value: retention, guards, growth, and the days until the disk is full."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from stagepost.flow.clock import SECOND
from stagepost.pipeline.report.advice import StageTerms, retention_rows, type_rows
from stagepost.pipeline.report.growth import Size, StoreSize, growth_of, remembered
from stagepost.ports.export import DiskUsage

HOUR = 3_600 * SECOND
GIB = 2**30


def facts(stage: str, **more: Any) -> dict[str, Any]:
    known = dict.fromkeys(("duplicate_p50", "duplicate_p99", "duplicate_p9999", "duplicate_max", "delivery_max"))
    return {"stage": stage, "sent": 1_000, "duplicate_count": 0, "run_p50": 1.0, **known, **more}


def test_the_retention_is_the_longest_of_three_and_the_guard_follows_from_copies_and_runs() -> None:
    stages = [
        facts("cheap"),
        facts("copied", duplicate_count=10, duplicate_p9999=100 * 3_600_000.0),
        facts("dear", run_p50=20.0, delivery_max=90 * 3_600_000.0),
        facts("unknown"),
    ]
    terms = {"cheap": StageTerms("Order", 168), "copied": StageTerms("Order,Refund", 168), "dear": StageTerms("Refund")}
    rows = retention_rows(stages, terms, outage_seconds=72 * 3_600, days=1.0)
    names = ("stage", "keep_hours", "kept_hours", "is_too_short", "guard")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("cheap", 72, 168, False, "reactive"),
        ("copied", 300, 168, True, "proactive"),
        ("dear", 90, None, False, "proactive"),
        ("unknown", 72, None, False, "reactive"),
    ]
    assert [row["guard_reason"] for row in rows[1:3]] == [
        "1.0% of the messages came again",
        "half of the runs take 20 ms or more",
    ]
    assert type_rows(rows) == [
        {"type": "Order", "stages": 2, "keep_hours": 300, "guard": "proactive"},
        {"type": "Refund", "stages": 2, "keep_hours": 300, "guard": "proactive"},
    ]


def grown(usage: DiskUsage, *sizes: Size, days: float = 2.0, is_purged: bool = False) -> dict[str, Any]:
    return growth_of(100, 50, 1_000, days, store=StoreSize(usage, is_purged), sizes=sizes)


def test_a_whole_journal_tells_the_days_until_the_disk_is_full() -> None:
    found = grown(DiskUsage(2 * GIB, 10 * GIB), (0, 2 * GIB))
    assert (found["waypoints_per_day"], found["store_bytes_per_day"], found["days_to_full"]) == (50, GIB, 10)
    assert (found["measured_days"], found["unknown"]) == (None, [])


def test_the_growth_between_two_audits_is_measured_also_if_lines_are_purged() -> None:
    found = grown(DiskUsage(3 * GIB, 10 * GIB), (0, 2 * GIB), (48 * HOUR, 3 * GIB), is_purged=True)
    assert (found["store_bytes_per_day"], found["measured_days"], found["days_to_full"]) == (GIB / 2, 2, 20)
    steady = grown(DiskUsage(2 * GIB, 10 * GIB), (0, 2 * GIB), (48 * HOUR, 2 * GIB), is_purged=True)
    assert (steady["store_bytes_per_day"], steady["days_to_full"], steady["unknown"]) == (0, None, [])


@pytest.mark.parametrize(
    ("usage", "more", "reason"),
    [
        (DiskUsage(GIB, None, "it is elsewhere"), {}, "the free space: it is elsewhere"),
        (DiskUsage(GIB, GIB), {"is_purged": True}, "the growth in bytes: lines were purged while others came."),
        (DiskUsage(GIB, GIB), {"days": 0.04}, "the growth in bytes: the journal is younger than an hour."),
    ],
)
def test_what_cannot_be_known_is_said_and_not_guessed(usage: DiskUsage, more: dict[str, Any], reason: str) -> None:
    found = grown(usage, (0, GIB), (HOUR - 1, GIB), **more)
    assert found["days_to_full"] is None
    assert [each.startswith(reason) for each in found["unknown"]] == [True]


def test_a_series_remembers_a_size_of_each_hour_of_the_last_days() -> None:
    sizes: list[Size] = []
    for quarter in range(4 * 24 * 20):
        sizes = remembered(sizes, (quarter * HOUR // 4, quarter))
    assert 24 * 8 <= len(sizes) <= 24 * 8 + 1
    assert {(after - before) for (before, _), (after, _) in pairwise(sizes)} == {HOUR}
