"""Poison or outage, by value: each group of dead letters is judged by the messages that began when its own did."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from stagepost.flow.clock import SECOND, to_microseconds
from stagepost.pipeline.jobs.audit_letters import evidence_of, settled_before, settled_hours
from stagepost.pipeline.jobs.audit_state import FORMAT, Summary
from stagepost.pipeline.report.letter_verdicts import Evidence, verdict_on
from stagepost.pipeline.transforms.letters import HOUR, MINUTE, minutes_of_letters
from stagepost.pipeline.transforms.messages import per_message, with_standing
from tests.pipeline.journal import at, journal, line, table

DAY = 24 * HOUR
BEGIN = to_microseconds(at(0))
# Midnight, in UTC.
NIGHT = BEGIN - BEGIN % DAY


class Ended(NamedTuple):
    at: int
    fingerprint: str | None = None


def traffic(begin: int, until: int, every: int, fingerprint: str | None = None) -> list[Ended]:
    return [Ended(moment, fingerprint) for moment in range(begin, until, every)]


def evidence(ended: Sequence[Ended]) -> Evidence:
    hours: dict[tuple[str, int], dict[int, tuple[int, int]]] = defaultdict(dict)
    for each in ended:
        minutes, minute = hours["s", each.at - each.at % HOUR], each.at - each.at % MINUTE
        well, died = minutes.get(minute, (0, 0))
        minutes[minute] = (well, died + 1) if each.fingerprint else (well + 1, died)
    return Evidence({hour: minutes for hour, minutes in hours.items() if any(died for _, died in minutes.values())})


def verdicts(ended: Sequence[Ended]) -> dict[str, str]:
    found = {}
    for name in sorted({each.fingerprint for each in ended if each.fingerprint}):
        letters = Counter(each.at - each.at % MINUTE for each in ended if each.fingerprint == name)
        found[name] = verdict_on("s", letters.total(), letters, evidence(ended))
    return found


def days_with_an_outage(number: int, *, every: int = 6 * SECOND, begin: int = 30 * HOUR) -> list[Ended]:
    """Good traffic, and an hour in which all messages die."""
    last = BEGIN + begin + HOUR
    return [
        *traffic(BEGIN, BEGIN + begin, every),
        *traffic(BEGIN + begin, last, every, "down"),
        *traffic(last, BEGIN + number * DAY, every),
    ]


@pytest.mark.parametrize("begin", [30 * HOUR, 30 * HOUR + 25 * MINUTE + 7])
@pytest.mark.parametrize("every", [SECOND, 6 * SECOND, 30 * SECOND, 2 * MINUTE])
def test_an_hour_of_outage_is_one_beside_many_good_hours(begin: int, every: int) -> None:
    assert verdicts(days_with_an_outage(3, begin=begin, every=every)) == {"down": "outage"}


def test_an_outage_in_the_quiet_hours_of_a_busy_day_is_one() -> None:
    begin, end = NIGHT + 3 * HOUR + 20 * MINUTE, NIGHT + 3 * HOUR + 45 * MINUTE
    day = [
        *traffic(NIGHT, begin, MINUTE),
        *traffic(begin, end, MINUTE, "down"),
        *traffic(end, NIGHT + 9 * HOUR, MINUTE),
        *traffic(NIGHT + 9 * HOUR, NIGHT + 17 * HOUR, SECOND),
    ]
    assert verdicts(day) == {"down": "outage"}


def test_bad_messages_among_the_only_busy_minutes_of_a_day_are_poison() -> None:
    busy = NIGHT + 9 * HOUR
    day = [
        *traffic(NIGHT, NIGHT + DAY, 10 * MINUTE),
        *traffic(busy, busy + 10 * MINUTE, SECOND // 2),
        *traffic(busy + MINUTE, busy + 2 * MINUTE, 2 * SECOND, "bad"),
    ]
    assert verdicts(day) == {"bad": "poison"}


def test_a_message_that_dies_in_a_good_hour_is_poison() -> None:
    bad = Ended(BEGIN + 90 * MINUTE + 1, "bad")
    assert verdicts([*traffic(BEGIN, BEGIN + 3 * HOUR, 2 * SECOND), bad]) == {"bad": "poison"}
    # The others came at another time of its hour.
    assert verdicts([*traffic(BEGIN + 80 * MINUTE, BEGIN + 82 * MINUTE, SECOND // 10), bad]) == {"bad": "poison"}


def test_some_bad_messages_at_once_are_poison() -> None:
    batch = traffic(BEGIN + 90 * MINUTE, BEGIN + 90 * MINUTE + 5, 1, "bad")
    assert verdicts([*traffic(BEGIN, BEGIN + 3 * HOUR, 2 * SECOND), *batch]) == {"bad": "poison"}


@pytest.mark.parametrize("hours", [[2], [2, 26, 40, 60], [33]], ids=["another day", "around it", "soon after"])
def test_poison_and_an_outage_at_one_stage_are_told_apart(hours: list[int]) -> None:
    bad = [Ended(BEGIN + hour * HOUR + 1, "bad") for hour in hours]
    assert verdicts([*days_with_an_outage(3), *bad]) == {"bad": "poison", "down": "outage"}


def test_two_outages_are_no_poison_if_more_messages_were_poison_between_them() -> None:
    first = days_with_an_outage(2, every=30 * SECOND)
    second = [each._replace(at=each.at + 3 * DAY) for each in first]
    bad = traffic(BEGIN + 2 * DAY, BEGIN + 3 * DAY, 10 * SECOND, "bad")
    good = traffic(BEGIN + 2 * DAY, BEGIN + 3 * DAY, 2 * SECOND)
    assert verdicts([*first, *second, *bad, *good]) == {"bad": "poison", "down": "outage"}


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


def test_letters_in_good_and_in_bad_times_alike_are_unclear() -> None:
    good = [*traffic(BEGIN, BEGIN + MINUTE, SECOND), *traffic(BEGIN, BEGIN + 5, 1, "each")]
    bad = traffic(BEGIN + HOUR, BEGIN + HOUR + 5, 1, "each")
    assert verdicts([*good, *bad]) == {"each": "unclear"}


def test_letters_of_which_the_journal_knows_less_than_half_are_unclear() -> None:
    known = evidence(days_with_an_outage(2))
    minute = BEGIN + 30 * HOUR
    assert verdict_on("s", 9, {minute: 4, BEGIN - 2 * DAY: 5}, known) == "unclear"
    assert verdict_on("s", 9, {minute: 5, BEGIN - 2 * DAY: 4}, known) == "outage"
    assert verdict_on("t", 9, {minute: 9}, known) == "unclear"
    assert verdict_on("s", 9, {}, known) == "unclear"


def test_what_an_audit_has_forgotten_in_part_may_have_ended_well() -> None:
    """So it proves poison, and no outage."""
    hour = ("s", BEGIN - BEGIN % HOUR)
    bad, good = traffic(BEGIN, BEGIN + 9, 1, "x"), traffic(BEGIN, BEGIN + 9, 1)
    for ended, verdict in ((bad, "unclear"), ([*bad, *good], "poison")):
        partial = Evidence(evidence(ended).hours, frozenset([hour]))
        assert verdict_on("s", 9, {BEGIN: 9}, partial) == verdict


# The evidence, from a journal


def of_minute(minute: float, *names: str, ends: Sequence[str]) -> list[dict[str, Any]]:
    """Messages that began in that minute."""
    return [
        line(each, name, flow_id=name, seconds=minute * 60, origin_at=at(minute * 60))
        for name in names
        for each in ("accepted", *ends)
    ]


def names(prefix: str, number: int) -> list[str]:
    return [f"{prefix}{n}" for n in range(number)]


OF_HOUR = [
    *of_minute(0, *names("well", 20), ends=["committed"]),
    *of_minute(0.99, "poison", ends=["dead"]),
    *of_minute(1, *names("down", 5), ends=["dead"]),
    *of_minute(1, "confirmed", ends=["confirmed"]),
    # They died, whatever came of them later.
    *of_minute(1, "replayed", ends=["dead", "replayed", "committed"]),
    *of_minute(1, "edited", ends=["dead", "edited"]),
    *of_minute(1, "open", ends=["received"]),
    # Nothing died in the next hour.
    *of_minute(60, *names("late", 5), ends=["committed"]),
]
IN_MINUTES = {BEGIN: (20, 1), BEGIN + MINUTE: (1, 7)}


def test_the_evidence_is_the_ended_messages_of_each_minute_in_the_hours_of_deaths(spark: SparkSession) -> None:
    found = evidence_of(per_message(journal(spark, OF_HOUR)), None)
    assert (found.hours, found.partial) == ({("s", BEGIN): IN_MINUTES}, frozenset())


def summary(**more: Any) -> Summary:
    known = {"until": "7", "window_seconds": 60, "messages": 0, "nodes": {}, "work": {}, "final": {}}
    return Summary(format=FORMAT, **{**known, **more})


def test_a_state_keeps_how_its_settled_messages_ended_while_others_of_their_hour_are_dead(spark: SparkSession) -> None:
    messages = per_message(journal(spark, OF_HOUR))
    whole = evidence_of(messages, None)
    rest = messages.where("message_id LIKE 'down%' OR message_id IN ('well0', 'open')").drop("standing")
    kept = settled_hours(whole, rest)
    assert kept == [("s", BEGIN, [(BEGIN, 19, 1), (BEGIN + MINUTE, 1, 2)])]
    assert settled_hours(whole, messages.where("message_id = 'replayed'").drop("standing")) == []
    again = evidence_of(with_standing(rest), summary(settled_hours=kept, settled_before=BEGIN + DAY))
    assert again == whole
    assert settled_hours(again, rest) == kept


@pytest.mark.parametrize(
    ("settled", "is_partial"), [(None, True), (BEGIN, False), (BEGIN + 1, True)], ids=["old state", "later", "before"]
)
def test_an_hour_is_known_in_part_if_a_state_forgot_messages_before_the_first_of_the_hour_died(
    spark: SparkSession, settled: int | None, is_partial: bool
) -> None:
    messages = per_message(journal(spark, OF_HOUR))
    found = evidence_of(messages, summary(settled_before=settled))
    assert found.partial == (frozenset([("s", BEGIN)]) if is_partial else frozenset())
    assert settled_hours(found, messages.drop("standing")) == ([] if is_partial else [("s", BEGIN, [])])


def test_a_series_settles_no_less_than_before() -> None:
    assert settled_before(5, 9, None) == 5
    assert settled_before(5, 9, summary(settled_before=7)) == 7
    assert settled_before(8, 9, summary(settled_before=7)) == 8
    # A state of an earlier version may have settled all flows up to now.
    assert settled_before(5, 9, summary()) == 9


def test_letters_are_counted_by_group_and_minute_of_origin(spark: SparkSession) -> None:
    letters = [
        {"stage": stage, "fingerprint": fingerprint, "origin_at": at(seconds)}
        for stage, fingerprint, seconds in [
            ("s", "a", 0),
            ("s", "a", 59),
            ("s", "a", 60),
            ("s", "b", 1),
            ("t", "a", -1),
        ]
    ]
    found = minutes_of_letters(table(spark, "dead_letters", letters)).collect()
    assert sorted((*row,) for row in found) == [
        ("s", "a", BEGIN, 2), ("s", "a", BEGIN + MINUTE, 1), ("s", "b", BEGIN, 1), ("t", "a", BEGIN - MINUTE, 1)
    ]  # fmt: skip
