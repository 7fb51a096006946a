"""Where flows, stages and dead letters stand, what is stuck, and who did the work: by value."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from stagepost.pipeline.transforms.message_status import flows, letter_groups, stages, stuck, work
from stagepost.pipeline.transforms.messages import per_message
from tests.pipeline.journal import at, journal, line, table


def message(name: str, flow: str, *waypoints: str, stage: str = "s", node: str = "n") -> list[dict[str, Any]]:
    return [line(each, name, stage, flow_id=flow, node=node) for each in waypoints]


def test_a_flow_is_under_way_while_one_of_its_messages_is_open_and_dead_when_one_is_and_none_is_open(
    spark: SparkSession,
) -> None:
    lines = [
        *message("a1", "completed", "accepted", "committed"),
        *message("a2", "completed", "sent", "committed", stage="t"),
        *message("a3", "completed", "sent", "expired", stage="t"),
        *message("b1", "dead", "accepted", "committed"),
        *message("b2", "dead", "sent", "dead", stage="t"),
        *message("c1", "under way", "accepted", "committed"),
        *message("c2", "under way", "sent", stage="t"),
        *message("d1", "dead and under way", "accepted", "dead"),
        *message("d2", "dead and under way", "sent"),
        *message("e1", "replayed", "accepted", "dead", "replayed"),
        *message("f1", "edited", "accepted", "dead", "edited"),
        *message("f2", "edited", "sent", "committed"),
    ]
    found = flows(per_message(journal(spark, lines)))
    assertDataFrameEqual(found, spark.createDataFrame([(6, 2, 1, 3)], found.schema))


def test_an_empty_journal_has_no_flows(spark: SparkSession) -> None:
    found = flows(per_message(journal(spark, [])))
    assertDataFrameEqual(found, spark.createDataFrame([(0, 0, 0, 0)], found.schema))


def test_a_stage_is_told_by_what_became_of_what_was_sent_to_it(spark: SparkSession) -> None:
    lines = [
        *message("a", "f", "accepted", "received", "failed", "received", "failed", "received", "committed"),
        *message("b", "g", "accepted", "received", "died", "received", "dead"),
        *message("c", "h", "accepted"),
        *message("d", "i", "accepted", "received", "dead", "edited"),
        *message("a", "f", "sent", "committed", stage="b.first"),
        *message("r", "f", "sent", "received", "expired"),
    ]
    found = stages(per_message(journal(spark, lines)))
    expected = [("b.first", 1, 1, 0, 0, 0, 0, 0, 0), ("s", 5, 1, 1, 1, 1, 1, 2, 1)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema), checkRowOrder=True)


def test_the_replies_to_processes_that_asked_are_told_together(spark: SparkSession) -> None:
    lines = [
        *message("a", "f", "sent", "committed", stage="shop.reply.01a2005e-b3b2-7b01-8174-af2c5a974ad4"),
        *message("b", "g", "sent", "expired", stage="shop.reply.01a2005e-ba67-7031-b0d0-91b9df52f0b7"),
        *message("c", "g", "sent", "committed", stage="shop.reply.later"),
    ]
    found = stages(per_message(journal(spark, lines)))
    expected = [("shop.reply", 2, 1, 1, 0, 0, 0, 0, 0), ("shop.reply.later", 1, 1, 0, 0, 0, 0, 0, 0)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema), checkRowOrder=True)


def place(name: str, where: str, **more: Any) -> dict[str, Any]:
    return {"message_id": name, "stage": "s", "place": where, "due_at": None, **more}


def test_what_waits_for_longer_than_that_is_stuck_the_oldest_first(spark: SparkSession) -> None:
    lines = [
        line("accepted", "young", seconds=91),
        line("accepted", "at the limit", seconds=90),
        line("accepted", "old", seconds=89),
        line("failed", "old", seconds=99),
        line("accepted", "older", seconds=10),
        line("died", "older", seconds=20),
        line("accepted", "done", seconds=0),
        line("committed", "done", seconds=1),
        line("accepted", "nowhere", seconds=0),
    ]
    queue = [
        place("young", "ready"),
        place("at the limit", "ready"),
        place("old", "delayed", due_at=at(200)),
        place("older", "suspect", due_at=at(300)),
        place("done", "ready"),
    ]
    found = stuck(per_message(journal(spark, lines)), table(spark, "queue", queue), now=at(100), after_seconds=10).drop(
        "flow_id"
    )
    expected = [
        ("s", "older", at(10), "suspect", at(300), 0, 1),
        ("s", "old", at(89), "delayed", at(200), 1, 0),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema), checkRowOrder=True)


def letter(
    number: int, fingerprint: str, seconds: float, stage: str = "s", reason: str = "exhausted"
) -> dict[str, Any]:
    return {
        "id": number,
        "fingerprint": fingerprint,
        "stage": stage,
        "reason": reason,
        "dead_at": at(seconds),
        "causes": f"cause of {number}",
    }


def test_letters_are_grouped_by_what_failed_where_the_greatest_group_first_with_the_latest_as_a_sample(
    spark: SparkSession,
) -> None:
    letters = [
        letter(1, "aaa", 5),
        letter(2, "aaa", 9),
        letter(3, "aaa", 7),
        letter(4, "bbb", 1),
        letter(5, "bbb", 2),
        letter(6, "bbb", 3, stage="t"),
        letter(7, "aaa", 3, reason="refused"),
    ]
    found = letter_groups(table(spark, "dead_letters", letters))
    expected = [
        ("aaa", "s", "exhausted", 3, at(5), at(9), 2, "cause of 2"),
        ("bbb", "s", "exhausted", 2, at(1), at(2), 5, "cause of 5"),
        ("aaa", "s", "refused", 1, at(3), at(3), 7, "cause of 7"),
        ("bbb", "t", "exhausted", 1, at(3), at(3), 6, "cause of 6"),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema), checkRowOrder=True)


def test_work_is_told_by_who_committed_how_many(spark: SparkSession) -> None:
    lines = [
        *message("a", "f", "accepted", "received", node="cli@here:1"),
        *message("a", "f", "committed", node="worker@here:2"),
        *message("b", "f", "committed", node="worker@here:2"),
        *message("c", "f", "committed", node="spark@here:3"),
        *message("d", "f", "failed", "dead", node="spark@here:4"),
    ]
    found = work(per_message(journal(spark, lines)))
    expected = [("spark@here:3", 1), ("worker@here:2", 2)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema), checkRowOrder=True)
