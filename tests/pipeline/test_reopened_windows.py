"""Windows that were final, and whose counts have changed since, are listed, also those that were merged meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stagepost.flow.clock import SECOND, to_datetime
from stagepost.pipeline.jobs.audit_state import (
    FINAL_COUNTS,
    Summary,
    final_windows,
    provisional_windows,
    reopened,
)
from stagepost.ports.journal import Waypoint
from tests.pipeline.audit_turns import NOW, Auditor
from tests.pipeline.test_audit_state import BEGAN, YEAR, auditor

__all__ = ["auditor"]

HOUR = 3_600 * SECOND


def a_window(minute: int, minutes: int = 1, *, state: str = "final", flows: int = 1) -> dict[str, Any]:
    """The balance of a window, whose flows all ended well."""
    begin, end = (to_datetime(BEGAN + each * 60 * SECOND).isoformat() for each in (minute, minute + minutes))
    counts = {**dict.fromkeys(FINAL_COUNTS, 0), **dict.fromkeys(("flows", "sent", "committed"), flows)}
    return {"window": begin, "until": end, "state": state, **counts}


def a_summary(windows: Sequence[dict[str, Any]], **more: Any) -> Summary:
    known: dict[str, Any] = {"final": final_windows([*windows]), "provisional": provisional_windows([*windows])}
    return Summary(format=1, until="7", window_seconds=60, messages=0, nodes={}, work={}, **{**known, **more})


def test_a_window_that_was_merged_meanwhile_is_compared_with_its_parts() -> None:
    """Else an audit a day would list no window of the day before, because all of them are merged by then."""
    parts = [a_window(0), a_window(3, flows=2), a_window(40)]
    before = a_summary(parts)
    assert reopened([a_window(0, 32, flows=3), a_window(32, 32)], before) == []
    late = a_window(0, 32, flows=4, state="provisional")
    assert reopened([late], before) == [{name: late[name] for name in ("window", "until", "state")}]


def test_a_merged_window_that_was_not_over_or_not_final_has_nothing_to_be_compared_with() -> None:
    parts = [a_window(0), a_window(3)]
    merged = [a_window(0, 32, flows=9)]
    # The last audit did not see the end of the merged window.
    assert reopened(merged, a_summary(parts)) == []
    parts.append(a_window(40))
    assert len(reopened(merged, a_summary(parts))) == 1
    assert reopened(merged, a_summary([*parts, a_window(5, state="provisional")])) == []
    assert reopened(merged, a_summary(parts, provisional=None)) == []


@pytest.mark.more
def test_a_line_that_comes_later_reopens_a_final_window_and_is_listed(auditor: Callable[[int], Auditor]) -> None:
    key = ("worker@here:1", "s", "m1", "f1", 1, BEGAN)
    going = auditor(10 * YEAR)
    going.write([Waypoint("accepted", BEGAN, *key), Waypoint("committed", BEGAN + 9, *key)])
    (window,) = going.go_on().windows
    assert window["state"] == "final"
    assert going.go_on().reopened == []
    going.write([Waypoint("committed", BEGAN + 99, *key)])
    report = going.go_on()
    assert report.reopened == [{name: window[name] for name in ("window", "until", "state")}]
    assert report.doubled_count == 1


@pytest.mark.more
def test_a_window_of_yesterday_is_reopened_though_it_has_another_width_today(
    auditor: Callable[[int], Auditor],
) -> None:
    key = ("worker@here:1", "s", "m1", "f1", 1, BEGAN)
    later = ("worker@here:1", "s", "m2", "f2", 1, BEGAN + 2 * HOUR)
    going = auditor(10 * YEAR)
    going.write([Waypoint(name, BEGAN, *key) for name in ("accepted", "committed")])
    going.write([Waypoint(name, BEGAN + 2 * HOUR, *later) for name in ("accepted", "committed")])
    before = going.go_on(at=BEGAN + 3 * HOUR).windows
    going.write([Waypoint("committed", BEGAN + 99, *key)])
    report = going.go_on(at=NOW)
    assert before[0]["until"] < report.windows[0]["until"]
    assert report.reopened == [{name: report.windows[0][name] for name in ("window", "until", "state")}]
