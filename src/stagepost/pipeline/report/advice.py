"""Advice that follows from the figures of an audit: poison or outage, retention of ids, and growth."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stagepost.flow.clock import to_datetime
from stagepost.ports.dead_letters import LetterGroup

Rows = list[dict[str, Any]]

DAY_SECONDS = 86_400
HOUR_SECONDS = 3_600
# Fewer ended messages than this do not tell a bad message from a bad day.
ENDED_MIN = 5
# Copies came three times as late as almost all of them did, in the worst case that is still planned for.
DUPLICATE_FACTOR = 3
# An inbox row with its two ids and its digest, and its place in the index.
INBOX_ROW_BYTES = 250


@dataclass(frozen=True, slots=True)
class LetterFacts:
    """A group of dead letters, with the first cause of its latest letter as a text."""

    group: LetterGroup
    cause: str


def letter_rows(letters: Iterable[LetterFacts], stages: Rows) -> Rows:
    """Return a row per group of dead letters, the largest first, each with its verdict.

    The verdict compares the dead messages of a stage with those that committed in the same windows:

    ``poison``   most of them end well, so the dead messages are at fault
    ``outage``   most of them die, so the stage or a service that it calls is at fault
    ``unclear``  too few messages ended to tell
    """
    verdicts = {row["stage"]: _verdict(row["beside_dead"], row["dead"]) for row in stages}
    return [
        {
            "fingerprint": each.group.fingerprint,
            "stage": each.group.stage,
            "reason": each.group.reason,
            "letters": each.group.count,
            "first_at": to_datetime(each.group.first_at).isoformat(),
            "last_at": to_datetime(each.group.last_at).isoformat(),
            "sample_id": each.group.latest_id,
            "cause": each.cause,
            "verdict": verdicts.get(each.group.stage, "unclear"),
        }
        for each in sorted(letters, key=lambda each: (-each.group.count, each.group.fingerprint, each.group.stage))
    ]


def retention_rows(stages: Rows, *, outage_seconds: int, days: float) -> Rows:
    """Return per stage how long the ids of its messages should be kept, and what that costs.

    It is the longest of three times: three times the lag that 99.99 % of the late copies had, the slowest delivery, and
    the longest outage that is planned for. ``stages`` are the audit's facts per stage, over ``days``.
    """
    found = []
    for row in stages:
        lag = row["duplicate_p9999"]
        seconds = max(DUPLICATE_FACTOR * (lag or 0) / 1000, (row["delivery_max"] or 0) / 1000, outage_seconds)
        hours = math.ceil(seconds / HOUR_SECONDS)
        per_day = row["sent"] / days
        found.append(
            {
                "stage": row["stage"],
                "duplicates": row["duplicate_count"],
                "lag_p50": row["duplicate_p50"],
                "lag_p99": row["duplicate_p99"],
                "lag_p9999": lag,
                "lag_max": row["duplicate_max"],
                "slowest_delivery": row["delivery_max"],
                "keep_hours": hours,
                "bytes": round(per_day * hours / 24 * INBOX_ROW_BYTES),
            }
        )
    return found


def growth_of(waypoints: int, messages: int, envelope_bytes: int, days: float) -> dict[str, float]:
    """Return the growth per day, averaged over ``days``."""
    return {
        "days": days,
        "waypoints_per_day": waypoints / days,
        "messages_per_day": messages / days,
        "envelope_bytes_per_day": envelope_bytes / days,
    }


def _verdict(committed: int, dead: int) -> str:
    if committed + dead < ENDED_MIN:
        return "unclear"
    return "outage" if dead > committed else "poison"
