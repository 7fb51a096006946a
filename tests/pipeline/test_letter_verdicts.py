"""Poison or outage, by value: each group of dead letters is judged by the windows in which its messages died."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from stagepost.flow.clock import SECOND, to_microseconds
from stagepost.pipeline.report.advice import LetterFacts, letter_rows
from stagepost.pipeline.report.letter_verdicts import StageWindow, verdict_on
from stagepost.pipeline.transforms.facts import merge_facts, totals, window_facts
from stagepost.pipeline.transforms.messages import per_message
from stagepost.pipeline.transforms.windows import WindowGrid
from stagepost.ports.dead_letters import LetterGroup
from tests.pipeline.journal import at, journal, line

MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
BEGIN = to_microseconds(at(0))
# A message dies so long after its flow began.
RETRIED = 16 * SECOND


class Ended(NamedTuple):
    at: int
    fingerprint: str | None = None


def traffic(begin: int, until: int, every: int, fingerprint: str | None = None) -> list[Ended]:
    return [Ended(moment, fingerprint) for moment in range(begin, until, every)]


def windows(ended: Iterable[Ended], grid: WindowGrid) -> list[StageWindow]:
    found: dict[int, list[Ended]] = {}
    for each in ended:
        width = grid.width_at(each.at)
        found.setdefault(each.at - each.at % width, []).append(each)
    rows = []
    for begin, those in sorted(found.items()):
        died = [each.at + RETRIED for each in those if each.fingerprint]
        first, last = (min(died), max(died)) if died else (None, None)
        end = begin + grid.width_at(begin)
        rows.append(StageWindow(begin, end, len(those) - len(died), len(died), first, last))
    return rows


def verdicts(ended: Sequence[Ended], days_later: float = 0.0, width: int = 60) -> dict[str, str]:
    grid = WindowGrid.until(max(each.at for each in ended) + round(days_later * DAY), width)
    of_stage = windows(ended, grid)
    groups = {}
    for name in sorted({each.fingerprint for each in ended if each.fingerprint}):
        died = [each.at + RETRIED for each in ended if each.fingerprint == name]
        group = LetterGroup(name, "s", "exhausted", len(died), min(died), max(died), 1)
        groups[name] = verdict_on(group, of_stage)
    return groups


def days_with_an_outage(number: int, *, every: int = 6 * SECOND, begin: int = 30 * HOUR) -> list[Ended]:
    """Good traffic, and an hour in which all messages die."""
    last = BEGIN + begin + HOUR
    return [
        *traffic(BEGIN, BEGIN + begin, every),
        *traffic(BEGIN + begin, last, every, "down"),
        *traffic(last, BEGIN + number * DAY, every),
    ]


@pytest.mark.parametrize("width", [60, 600, 3_600])
@pytest.mark.parametrize("days_later", [0, 2, 10, 100])
def test_an_hour_of_outage_is_one_beside_many_good_hours(days_later: float, width: int) -> None:
    for begin in (30 * HOUR, 30 * HOUR + 25 * MINUTE):
        assert verdicts(days_with_an_outage(3, begin=begin), days_later, width) == {"down": "outage"}


@pytest.mark.parametrize("days_later", [0, 2, 10, 100])
def test_a_message_that_dies_in_a_good_hour_is_poison(days_later: float) -> None:
    bad = Ended(BEGIN + 90 * MINUTE + 1, "bad")
    assert verdicts([*traffic(BEGIN, BEGIN + 3 * HOUR, 2 * SECOND), bad], days_later) == {"bad": "poison"}
    # The others came at another time of its hour.
    assert verdicts([*traffic(BEGIN + 80 * MINUTE, BEGIN + 82 * MINUTE, SECOND // 10), bad]) == {"bad": "poison"}


@pytest.mark.parametrize("days_later", [0, 2, 10])
def test_some_bad_messages_at_once_are_poison(days_later: float) -> None:
    batch = traffic(BEGIN + 90 * MINUTE, BEGIN + 90 * MINUTE + 5, 1, "bad")
    assert verdicts([*traffic(BEGIN, BEGIN + 3 * HOUR, 2 * SECOND), *batch], days_later) == {"bad": "poison"}


@pytest.mark.parametrize("days_later", [0, 2, 10, 100])
@pytest.mark.parametrize("hours", [[2], [2, 26, 40, 60], [33]], ids=["another day", "around it", "the same window"])
def test_poison_and_an_outage_at_one_stage_are_told_apart(hours: list[int], days_later: float) -> None:
    bad = [Ended(BEGIN + hour * HOUR + 1, "bad") for hour in hours]
    assert verdicts([*days_with_an_outage(3), *bad], days_later) == {"bad": "poison", "down": "outage"}


def test_a_failure_of_an_outage_that_happens_once_more_elsewhere_is_one() -> None:
    assert verdicts([*days_with_an_outage(3), Ended(BEGIN + 1, "down")]) == {"down": "outage"}


def test_an_outage_with_several_failures_is_one_for_each() -> None:
    ended = [
        each._replace(fingerprint=["down", "slow", "shut"][n % 3]) if each.fingerprint else each
        for n, each in enumerate(days_with_an_outage(2))
    ]
    assert verdicts(ended) == dict.fromkeys(("down", "slow", "shut"), "outage")


def test_a_stage_with_few_messages_is_judged_by_the_hour_or_not_at_all() -> None:
    seldom = traffic(BEGIN, BEGIN + 10 * HOUR, 4 * MINUTE)
    bad = [Ended(BEGIN + hour * HOUR + MINUTE, "bad") for hour in range(1, 9)]
    assert verdicts([*seldom, *bad]) == {"bad": "poison"}
    assert verdicts([Ended(BEGIN, "bad"), Ended(BEGIN + 2 * DAY)]) == {"bad": "unclear"}
    rare = traffic(BEGIN, BEGIN + 6 * DAY, DAY, "down")
    assert verdicts(rare) == {"down": "outage"}


def test_a_group_whose_messages_the_journal_lacks_is_unclear() -> None:
    group = LetterGroup("old", "s", "exhausted", 9, BEGIN - 2 * DAY, BEGIN - DAY, 1)
    grid = WindowGrid.until(BEGIN + DAY, 60)
    assert verdict_on(group, windows(traffic(BEGIN, BEGIN + HOUR, SECOND, "down"), grid)) == "unclear"
    assert verdict_on(group, []) == "unclear"


def test_the_facts_of_windows_have_what_the_verdicts_need_and_merge(spark: SparkSession) -> None:
    """Parts of a journal have the facts of the whole, so a state keeps what the verdicts need."""

    def of_window(seconds: float, *names: str, end: str) -> list[dict[str, object]]:
        return [
            line(each, name, flow_id=name, seconds=seconds + later, origin_at=at(seconds))
            for name in names
            for each, later in (("accepted", 0), (end, 16))
        ]

    good = of_window(0, *(f"a{n}" for n in range(20)), end="committed")
    bad = of_window(90, *(f"b{n}" for n in range(5)), end="dead") + of_window(95, "c", end="committed")
    poison = of_window(5, "d", end="dead")
    grid = WindowGrid.until(to_microseconds(at(600)), 60)
    whole = window_facts(per_message(journal(spark, [*good, *bad, *poison])), grid)
    parts = [window_facts(per_message(journal(spark, each)), grid) for each in (good, bad, poison)]
    merged = merge_facts(parts[0].unionByName(parts[1]).unionByName(parts[2]), "window", "stage")
    for facts in (whole, merged):
        rows = totals(facts).collect()
        assert [row["ends"] for row in rows if row["window"] is not None] == [None, None]
        (stage,) = [row.asDict() for row in rows if row["window"] is None]
        at_16 = to_microseconds(at(16))
        assert sorted(tuple(each) for each in stage["ends"]) == [
            (1, 5, BEGIN + MINUTE, at_16 + 90 * SECOND, at_16 + 90 * SECOND),
            (20, 1, BEGIN, at_16 + 5 * SECOND, at_16 + 5 * SECOND),
        ]
        letters = [
            LetterFacts(LetterGroup(name, "s", "exhausted", count, died, died, 1), "E: it failed")
            for name, count, died in (("down", 5, at_16 + 90 * SECOND), ("bad", 1, at_16 + 5 * SECOND))
        ]
        found = letter_rows(letters, [stage], grid.width_at)
        assert [(row["fingerprint"], row["verdict"]) for row in found] == [("down", "outage"), ("bad", "poison")]
