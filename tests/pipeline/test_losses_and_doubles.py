"""What is missing and what is there twice, by value."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from stagepost.pipeline.transforms.losses import (
    doubled,
    executed_twice,
    has_left_by_age,
    is_in_doubt,
    is_unaccounted,
    latest_first,
    located,
    lost,
    sent_twice,
    stuck,
)
from stagepost.pipeline.transforms.messages import per_message
from tests.pipeline.journal import at, journal, line, sent, table


def place(message: str, stage: str = "s", where: str = "ready") -> dict[str, Any]:
    return {"stage": stage, "message_id": message, "place": where, "due_at": None}


def letter(message: str, stage: str = "s") -> dict[str, Any]:
    return place(message, stage, "dead letter")


def missing(
    spark: SparkSession,
    lines: list[dict[str, Any]],
    queue: list[dict[str, Any]],
    letters: list[dict[str, Any]],
    head: list[dict[str, Any]],
) -> list[str]:
    whereabouts = located(per_message(journal(spark, lines)), table(spark, "places", [*queue, *letters]))
    found = whereabouts.where(is_unaccounted(None))
    return sorted(row.message_id for row in lost(found, journal(spark, head)).collect())


def test_only_what_is_nowhere_is_lost(spark: SparkSession) -> None:
    places = ("ready", "claimed", "delayed", "suspect")
    lines = [line("accepted", name) for name in (*places, "letter", "moved on", "lost", "claimed and lost")]
    lines += [line("received", "claimed and lost")]
    assert missing(
        spark,
        lines,
        queue=[place(name, where=name) for name in places],
        letters=[letter("letter")],
        head=[line("committed", "moved on")],
    ) == ["claimed and lost", "lost"]


def test_a_dead_message_whose_letter_left_the_store_by_age_is_not_lost(spark: SparkSession) -> None:
    lines = [line("accepted", "old"), line("dead", "old", seconds=5), line("accepted", "waits", seconds=5)]
    lines += [line("accepted", "young"), line("dead", "young", seconds=6)]
    lines += [line("accepted", "kept"), line("dead", "kept"), line("dead", "forgotten"), line("dead", "new", seconds=6)]
    whereabouts = located(per_message(journal(spark, lines)), table(spark, "places", [letter("kept")]))

    def names(condition: Column) -> list[str]:
        return sorted(row.message_id for row in whereabouts.where(condition).collect())

    assert names(is_unaccounted(at(5))) == ["waits", "young"]
    assert names(has_left_by_age(at(5))) == ["forgotten", "old"]
    assert names(has_left_by_age(None)) == []


def test_what_was_committed_is_looked_for_nowhere_and_what_is_dead_among_the_letters(spark: SparkSession) -> None:
    lines = [line("accepted", "committed"), line("committed", "committed"), line("sent", "dead"), line("dead", "dead")]
    lines += [line("sent", "expired"), line("expired", "expired")]
    assert missing(spark, lines, queue=[], letters=[letter("dead")], head=[]) == []
    assert missing(spark, lines, queue=[], letters=[], head=[]) == ["dead"]


def test_what_was_replayed_is_looked_for_again(spark: SparkSession) -> None:
    lines = [line("accepted"), line("dead"), line("replayed")]
    assert missing(spark, lines, queue=[place("m")], letters=[], head=[]) == []
    assert missing(spark, lines, queue=[], letters=[], head=[]) == ["m"]


EDITED = [line("accepted", "old"), line("dead", "old"), line("edited", "old"), sent("new", cause_id="old", detail="s")]


def test_what_was_edited_is_looked_for_under_its_new_id_alone(spark: SparkSession) -> None:
    assert missing(spark, EDITED, queue=[place("new")], letters=[], head=[]) == []
    assert missing(spark, EDITED, queue=[], letters=[letter("new")], head=[]) == []
    assert missing(spark, EDITED, queue=[], letters=[], head=[]) == ["new"]
    assert missing(spark, [*EDITED, line("committed", "new")], queue=[], letters=[], head=[]) == []


def test_what_is_edited_between_two_looks_is_not_lost(spark: SparkSession) -> None:
    lines = [line("accepted", "old"), line("dead", "old")]
    assert missing(spark, lines, queue=[], letters=[], head=[line("edited", "old"), sent("new")]) == []


def test_what_the_journal_does_not_know_to_have_been_sent_is_not_called_lost(spark: SparkSession) -> None:
    """Its beginning was purged, or its claim's line is all that a power failure left of it."""
    assert missing(spark, [line("received")], queue=[], letters=[], head=[]) == []


@pytest.mark.parametrize(
    ("queue", "letters", "head"),
    [
        ([place("m", stage="t")], [], []),
        ([], [letter("m", stage="t")], []),
        ([], [], [line("committed", "m", "t")]),
        ([place("n")], [letter("n")], [line("committed", "n")]),
    ],
    ids=["queue", "letters", "head", "another message"],
)
def test_the_same_id_at_another_stage_accounts_for_nothing(
    spark: SparkSession, queue: list[dict[str, Any]], letters: list[dict[str, Any]], head: list[dict[str, Any]]
) -> None:
    assert missing(spark, [line("accepted")], queue, letters, head) == ["m"]


def findings(found: DataFrame) -> list[tuple[str, str, str]]:
    return sorted((row.stage, row.message_id, row.how) for row in found.collect())


def test_two_commits_of_one_message_are_found(spark: SparkSession) -> None:
    lines = [line("accepted", "once"), line("committed", "once")]
    lines += [line("accepted", "twice"), line("committed", "twice"), line("committed", "twice", seconds=9)]
    lines += [line("committed", "at two stages", "s"), line("committed", "at two stages", "t")]
    assert findings(executed_twice(per_message(journal(spark, lines)))) == [
        ("s", "twice", "two commits of one message")
    ]


def test_attempts_are_no_executions(spark: SparkSession) -> None:
    tries = [line(each, seconds=number) for number, each in enumerate(["received", "failed"] * 6)]
    lines = [line("accepted"), *tries, line("dead"), line("replayed"), line("received"), line("committed")]
    assert findings(executed_twice(per_message(journal(spark, lines)))) == []


def test_two_messages_for_one_send_are_found(spark: SparkSession) -> None:
    lines = [sent("a"), sent("b", seconds=9)]
    assert findings(sent_twice(per_message(journal(spark, lines)))) == [("s", "b", "two messages from one send")]


@pytest.mark.parametrize(
    "other",
    [{"ordinal": 1}, {"kind": "reply"}, {"cause_id": "d"}, {"stage": "t"}, {"flow_id": "g"}],
    ids=lambda other: next(iter(other)),
)
def test_two_sends_that_differ_in_anything_are_two_sends(spark: SparkSession, other: dict[str, Any]) -> None:
    assert findings(sent_twice(per_message(journal(spark, [sent("a"), sent("b", **other)])))) == []


def test_initiations_of_one_flow_are_not_one_send(spark: SparkSession) -> None:
    lines = [line("accepted", "a", kind="send", ordinal=0), line("accepted", "b", kind="send", ordinal=0)]
    assert findings(sent_twice(per_message(journal(spark, lines)))) == []


def test_what_was_edited_and_committed_once_is_no_double(spark: SparkSession) -> None:
    lines = [*EDITED, line("received", "new"), line("committed", "new")]
    assert findings(doubled(per_message(journal(spark, lines)))) == []


def test_what_was_edited_and_committed_under_its_own_id_too_is_a_double(spark: SparkSession) -> None:
    lines = [*EDITED, line("committed", "new"), line("committed", "old")]
    assert findings(doubled(per_message(journal(spark, lines)))) == [
        ("s", "old", "committed, and edited into another message")
    ]


def test_what_was_edited_twice_is_a_double(spark: SparkSession) -> None:
    lines = [*EDITED, line("edited", "old"), sent("newer", cause_id="old", detail="s")]
    assert findings(doubled(per_message(journal(spark, lines)))) == [("s", "newer", "two messages from one send")]


def test_what_an_edited_message_sends_is_not_what_was_edited(spark: SparkSession) -> None:
    """The same kind, to the same stage: but its cause is the new message."""
    lines = [*EDITED, line("committed", "new"), sent("on", cause_id="new", detail="s")]
    assert findings(doubled(per_message(journal(spark, lines)))) == []


def test_all_kinds_of_doubles_are_listed_with_the_moment_their_flow_began(spark: SparkSession) -> None:
    lines = [sent("a"), sent("b"), line("accepted", "c", "t"), line("committed", "c", "t"), line("committed", "c", "t")]
    found = doubled(per_message(journal(spark, lines)))
    expected = [
        ("t", "c", "f", at(0), "two commits of one message"),
        ("s", "b", "f", at(0), "two messages from one send"),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema))


def test_two_stages_that_handle_the_same_id_may_send_to_the_same_target(spark: SparkSession) -> None:
    lines = [line(each, "c", stage) for stage in ("left", "right") for each in ("accepted", "committed")]
    lines += [sent("a", detail="left"), sent("b", detail="right")]
    assert findings(doubled(per_message(journal(spark, lines)))) == []


def test_a_repeated_run_of_best_effort_is_doubted_and_not_doubled(spark: SparkSession) -> None:
    lines = [line("arrived"), line("committed"), line("doubted"), line("committed")]
    messages = per_message(journal(spark, lines))
    assert findings(executed_twice(messages)) == []
    assert [row.doubts for row in messages.collect()] == [1]
    assert len(findings(executed_twice(per_message(journal(spark, [*lines, line("committed")]))))) == 1


def test_a_run_with_a_guard_that_was_in_doubt_is_executed_once(spark: SparkSession) -> None:
    lines = [line(each) for each in ("arrived", "committed", "doubted", "received", "duplicate")]
    messages = per_message(journal(spark, lines))
    assert findings(executed_twice(messages)) == []
    assert [(row.standing, row.commits, row.doubts) for row in messages.collect()] == [("committed", 1, 1)]


def test_a_message_that_left_without_a_row_is_in_doubt_and_not_lost(spark: SparkSession) -> None:
    """With a row, a dispatcher keeps it until the broker has confirmed it. Its loss is one."""
    lines = [sent("direct", "@out/s", attempt=1), sent("row", "@out/s"), sent("both", "@out/s", attempt=1)]
    lines += [line("confirmed", "both", "@out/s")]
    whereabouts = located(per_message(journal(spark, lines)), table(spark, "places", []))
    gone = lost(whereabouts.where(is_unaccounted(None)), journal(spark, []))
    assert {row.message_id: row.in_doubt for row in gone.withColumn("in_doubt", is_in_doubt()).collect()} == {
        "direct": True,
        "row": False,
    }


def listed(found: DataFrame) -> list[tuple[str, str]]:
    """The first of them, by a plan that sorts no more than it lists."""
    few = found.limit(5)
    assert "TakeOrderedAndProject" in few._jdf.queryExecution().executedPlan().toString()
    return [(row.stage, row.message_id) for row in few.collect()]


def test_the_listed_findings_are_the_latest_by_stage_and_id(spark: SparkSession) -> None:
    names = [("t", "b"), ("s", "c"), ("t", "a"), ("s", "a"), ("s", "b")]
    later = [("s", "z"), ("u", "0")]
    lines = [
        line(each, name, stage, seconds=seconds, origin_at=at(seconds))
        for seconds, keys in ((5.0, names), (9.0, later))
        for stage, name in keys
        for each in ("accepted", "committed", "committed")
    ]
    expected = [*later, ("s", "a"), ("s", "b"), ("s", "c")]
    assert listed(latest_first(doubled(per_message(journal(spark, lines))), "origin_at")) == expected
    sent_only = [each for each in lines if each["waypoint"] == "accepted"]
    for parts in (1, 3):
        whereabouts = located(per_message(journal(spark, sent_only)).repartition(parts), table(spark, "places", []))
        found = whereabouts.where(is_unaccounted(None)).select("stage", "message_id", "flow_id", "sent_at")
        assert listed(latest_first(found, "sent_at")) == expected


def test_the_listed_stuck_messages_are_the_oldest_by_stage_and_id(spark: SparkSession) -> None:
    names = [("t", "b"), ("s", "c"), ("t", "a"), ("s", "a"), ("s", "b")]
    lines = [line("accepted", "0", "s", seconds=9), *(line("accepted", name, stage) for stage, name in names)]
    queue = [place(each["message_id"], each["stage"]) for each in lines]
    for parts in (1, 3):
        messages = per_message(journal(spark, lines)).repartition(parts)
        found = stuck(located(messages, table(spark, "places", queue)), now=at(99), after_seconds=10)
        assert listed(found) == sorted(names)
