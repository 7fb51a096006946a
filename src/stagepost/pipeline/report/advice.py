"""Advice that follows from the figures of an audit: poison or outage, retention of ids, and guards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stagepost.flow.clock import to_datetime
from stagepost.pipeline.report.letter_verdicts import Evidence, verdict_on
from stagepost.ports.dead_letters import LetterGroup

Rows = list[dict[str, Any]]

DAY_SECONDS = 86_400
HOUR_SECONDS = 3_600
# Copies came three times as late as almost all of them did, in the worst case that is still planned for.
DUPLICATE_FACTOR = 3
# An inbox row with its two ids and its digest, and its place in the index.
INBOX_ROW_BYTES = 250
# From these on, a copy is likely, or a run is dear: a guard that looks first is cheaper than one that looks after.
LIKELY_SHARE = 0.01
DEAR_MS = 20


@dataclass(frozen=True, slots=True)
class LetterFacts:
    """A group of dead letters, with the first cause of its latest letter as a text."""

    group: LetterGroup
    cause: str


# The number of letters by minute of origin, of each group: a stage and a fingerprint.
LetterMinutes = Mapping[tuple[str, str], Mapping[int, int]]
NO_LETTERS: LetterMinutes = {}


def letter_rows(letters: Iterable[LetterFacts], minutes: LetterMinutes, evidence: Evidence) -> Rows:
    """Return a row per group of dead letters, the largest first, each with its verdict.

    The verdict compares the messages of the stage that began in the same minutes as those of the letters:

    ``poison``   most of them ended well, so the dead messages are at fault
    ``outage``   most of them died, so the stage or a service that it calls is at fault
    ``unclear``  too few messages ended to tell, or the audit no longer knows how they ended
    """
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
            "verdict": verdict_on(
                each.group.stage,
                each.group.count,
                minutes.get((each.group.stage, each.group.fingerprint), {}),
                evidence,
            ),
        }
        for each in sorted(letters, key=lambda each: (-each.group.count, each.group.fingerprint, each.group.stage))
    ]


@dataclass(frozen=True, slots=True)
class StageTerms:
    """The store's present terms of a stage.

    ``types``       the names of its message types, with commas
    ``kept_hours``  how long the ids of its messages are kept now; None without end, or without ids
    """

    types: str = ""
    kept_hours: int | None = None


def retention_rows(stages: Rows, terms: Mapping[str, StageTerms], *, outage_seconds: int, days: float) -> Rows:
    """Return per stage how long the ids of its messages should be kept, what that costs, and its cheaper guard.

    It is the longest of these times: three times the lag that 99.99 % of the late copies had, the longest lag, the
    slowest delivery, and the longest outage that is planned for. ``stages`` are the audit's facts per stage, over
    ``days``.
    """
    found = []
    for row in stages:
        lag = row["duplicate_p9999"]
        # A sketch errs by a per cent of rank, so it may miss the latest copies of many.
        longest = max(DUPLICATE_FACTOR * (lag or 0), row["duplicate_max"] or 0, row["delivery_max"] or 0)
        seconds = max(longest / 1000, outage_seconds)
        hours = math.ceil(seconds / HOUR_SECONDS)
        per_day = row["sent"] / days
        known = terms.get(row["stage"], StageTerms())
        guard, reason = _guard(row)
        found.append(
            {
                "stage": row["stage"],
                "types": known.types,
                "duplicates": row["duplicate_count"],
                "lag_p50": row["duplicate_p50"],
                "lag_p99": row["duplicate_p99"],
                "lag_p9999": lag,
                "lag_max": row["duplicate_max"],
                "slowest_delivery": row["delivery_max"],
                "keep_hours": hours,
                "kept_hours": known.kept_hours,
                "is_too_short": known.kept_hours is not None and known.kept_hours < hours,
                "bytes": round(per_day * hours / 24 * INBOX_ROW_BYTES),
                "guard": guard,
                "guard_reason": reason,
            }
        )
    return found


def type_rows(retention: Rows) -> Rows:
    """Return per message type the longest retention and the strictest guard of the stages that take it."""
    found: dict[str, dict[str, Any]] = {}
    for row in retention:
        for name in filter(None, row["types"].split(",")):
            known = found.setdefault(name, {"type": name, "stages": 0, "keep_hours": 0, "guard": "reactive"})
            known["stages"] += 1
            known["keep_hours"] = max(known["keep_hours"], row["keep_hours"])
            if row["guard"] == "proactive":
                known["guard"] = "proactive"
    return sorted(found.values(), key=lambda row: row["type"])


def _guard(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the guard for a stage, and the reason. Only its author knows whether it needs none."""
    share = row["duplicate_count"] / row["sent"] if row["sent"] else 0.0
    ms = row["run_p50"] or 0.0
    if share >= LIKELY_SHARE:
        return "proactive", f"{share:.1%} of the messages came again"
    if ms >= DEAR_MS:
        return "proactive", f"half of the runs take {ms:.0f} ms or more"
    return "reactive", "copies are rare, and runs are cheap"
