"""Collect the evidence for the verdicts on dead letters, and keep it for the next audit of a series."""

from __future__ import annotations

from collections import defaultdict

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.pipeline.jobs.audit_state import SettledHour, Summary
from stagepost.pipeline.report.advice import LetterMinutes
from stagepost.pipeline.report.letter_verdicts import Evidence, Minutes, StageHour
from stagepost.pipeline.stores import read_table
from stagepost.pipeline.transforms.letters import LETTER_COLUMNS, hours_of_deaths, minutes_of_letters
from stagepost.pipeline.transforms.messages import with_standing

# The driver holds so many rows of each kind at most, the latest. Letters that are older have no verdict.
MINUTES_MAX = 100_000
HOURS_MAX = 2_000


def letter_minutes(spark: SparkSession, url: str) -> LetterMinutes:
    """Return when the flows of the store's dead letters began."""
    found: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    minutes = minutes_of_letters(read_table(spark, url, "dead_letters", LETTER_COLUMNS))
    for row in minutes.orderBy(F.desc("minute"), "stage", "fingerprint").limit(MINUTES_MAX).collect():
        found[row["stage"], row["fingerprint"]][row["minute"]] = row["letters"]
    return found


def evidence_of(messages: DataFrame, former: Summary | None) -> Evidence:
    """Return how the messages of each hour of deaths ended, with those that ``former`` has forgotten."""
    hours = _collected(hours_of_deaths(messages))
    if former is None:
        return Evidence(hours)
    settled = {
        (stage, hour): {minute: (well, died) for minute, well, died in minutes}
        for stage, hour, minutes in former.settled_hours
    }
    partial = {key for key in hours if key not in settled and _may_be_forgotten(key, former)}
    merged = {key: _sum(minutes, settled.get(key, {})) for key, minutes in hours.items()}
    return Evidence(merged, frozenset(partial))


def settled_hours(evidence: Evidence, rest: DataFrame) -> list[SettledHour]:
    """Return the part of the evidence that a state forgets with its settled flows.

    ``rest`` are the messages that it keeps. The next audit needs the hours in which some of them are still dead.
    """
    kept = _collected(hours_of_deaths(with_standing(rest)).where(F.col("dead") > 0))
    found = []
    for (stage, hour), minutes in kept.items():
        if (stage, hour) in evidence.partial or (stage, hour) not in evidence.hours:
            continue
        less = {minute: (-well, -died) for minute, (well, died) in minutes.items()}
        ended = _sum(evidence.hours[stage, hour], less)
        gone = [(minute, well, died) for minute, (well, died) in ended.items() if well or died]
        found.append((stage, hour, sorted(gone)))
    return sorted(found)


def settled_before(before: int, seen_until: int, former: Summary | None) -> int:
    """Return the moment since which each settled flow was quiet, if this audit settles those that are so ``before``."""
    if former is None:
        return before
    return max(before, seen_until if former.settled_before is None else former.settled_before)


def _may_be_forgotten(key: StageHour, former: Summary) -> bool:
    """Return whether flows that began in the hour may have been settled without a count of their messages.

    A settled flow was quiet since ``settled_before``, so it began before. An earlier version did not note that moment.
    """
    _, hour = key
    return former.settled_before is None or hour < former.settled_before


def _collected(hours: DataFrame) -> dict[StageHour, Minutes]:
    latest = hours.orderBy(F.desc("hour"), "stage").limit(HOURS_MAX)
    return {
        (row["stage"], row["hour"]): {each["minute"]: (each["well"], each["died"]) for each in row["minutes"]}
        for row in latest.collect()
    }


def _sum(minutes: Minutes, others: Minutes) -> Minutes:
    found = dict(minutes)
    for minute, (well, died) in others.items():
        known_well, known_died = found.get(minute, (0, 0))
        found[minute] = known_well + well, known_died + died
    return found
