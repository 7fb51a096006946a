"""Where flows, stages and dead letters stand, what is stuck, and who did the work: by value."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from stagepost.flow.clock import to_microseconds
from stagepost.pipeline.report.advice import LetterFacts, letter_rows, retention_rows
from stagepost.pipeline.report.letter_verdicts import Evidence
from stagepost.pipeline.transforms.facts import totals, window_facts
from stagepost.pipeline.transforms.flows import flow_facts, work
from stagepost.pipeline.transforms.losses import located
from stagepost.pipeline.transforms.losses import stuck as stuck_ones
from stagepost.pipeline.transforms.messages import node_entries, per_message
from stagepost.pipeline.transforms.windows import WindowGrid
from stagepost.ports.dead_letters import LetterGroup
from tests.pipeline.journal import at, journal, line, table

GRID = WindowGrid.until(to_microseconds(at(600)), 60)
STAGE = ("stage", "sent", "committed", "expired", "dead", "edited", "open", "failures", "deaths")


def flows(messages: DataFrame) -> DataFrame:
    return flow_facts(messages, GRID).select("flows", "completed", "dead_flows", "under_way")


def stages(messages: DataFrame) -> DataFrame:
    return totals(window_facts(messages, GRID)).where("window IS NULL").select(*STAGE).orderBy("stage")


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
    assert flows(per_message(journal(spark, []))).collect() == []


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
    whereabouts = located(per_message(journal(spark, lines)), table(spark, "places", queue))
    found = stuck_ones(whereabouts, now=at(100), after_seconds=10).drop("flow_id")
    expected = [
        ("s", "older", at(10), "suspect", at(300), 0, 1),
        ("s", "old", at(89), "delayed", at(200), 1, 0),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema), checkRowOrder=True)


def group(fingerprint: str, letters: int, stage: str = "s") -> LetterFacts:
    return LetterFacts(LetterGroup(fingerprint, stage, "exhausted", letters, 1, 2_000_000, 7), "E: it failed")


def test_letters_are_listed_by_their_number_and_judged_by_what_ended_beside_them() -> None:
    ended = {"good": (100, 2), "down": (3, 40), "few": (1, 2)}
    letters = [group("a", 1, "few"), group("c", 2, "good"), group("b", 2, "good"), group("d", 40, "down")]
    minutes = {(each.group.stage, each.group.fingerprint): {0: each.group.count} for each in letters}
    evidence = Evidence({(stage, 0): {0: counts} for stage, counts in ended.items()})
    rows = letter_rows([*letters, group("e", 1, "gone")], minutes, evidence)
    assert [(row["fingerprint"], row["verdict"]) for row in rows] == [
        ("d", "outage"), ("b", "poison"), ("c", "poison"), ("a", "unclear"), ("e", "unclear")
    ]  # fmt: skip
    assert rows[0] == {
        "fingerprint": "d", "stage": "down", "reason": "exhausted", "letters": 40,
        "first_at": "1970-01-01T00:00:00.000001+00:00", "last_at": "1970-01-01T00:00:02+00:00", "sample_id": 7,
        "cause": "E: it failed", "verdict": "outage",
    }  # fmt: skip


def durations(stage: str, **milliseconds: float | None) -> dict[str, Any]:
    none = dict.fromkeys(("duplicate_p50", "duplicate_p99", "duplicate_p9999", "duplicate_max", "delivery_max"))
    return {"stage": stage, "sent": 480, "duplicate_count": 3, "run_p50": None, **none, **milliseconds}


@pytest.mark.parametrize(
    ("row", "outage", "hours"),
    [
        (durations("s"), 3600, 1),
        (durations("s", duplicate_p9999=3_600_000.0), 3600, 3),
        (durations("s", duplicate_p9999=3_600_000.0, duplicate_max=14_400_000.0), 3600, 4),
        (durations("s", duplicate_p9999=3_600_000.0, delivery_max=18_000_001.0), 3600, 6),
    ],
    ids=["outage", "late copies", "latest copy", "slow delivery"],
)
def test_ids_are_kept_for_the_longest_of_these_times(row: dict[str, Any], outage: int, hours: int) -> None:
    (found,) = retention_rows([row], {}, outage_seconds=outage, days=2)
    assert (found["keep_hours"], found["bytes"]) == (hours, 240 * hours * 250 // 24)


def test_a_late_copy_is_told_by_its_lag_from_the_sending(spark: SparkSession) -> None:
    lines = [line("accepted", seconds=1), line("committed", seconds=2), line("duplicate", seconds=61)]
    (row,) = totals(window_facts(per_message(journal(spark, lines)), GRID)).where("window IS NULL").collect()
    assert (row.duplicate_count, row.duplicate_p9999, row.duplicate_max, row.delivery_max) == (1, 60e3, 60e3, 1e3)


def test_work_is_told_by_who_committed_how_many(spark: SparkSession) -> None:
    lines = [
        *message("a", "f", "accepted", "received", node="cli@here:1"),
        *message("a", "f", "committed", node="worker@here:2"),
        *message("b", "f", "committed", node="worker@here:2"),
        *message("c", "f", "committed", node="spark@here:3"),
        *message("d", "f", "failed", "dead", node="spark@here:4"),
    ]
    written = journal(spark, lines)
    names = {each.node_key: each.node for each in written.agg(node_entries()).collect()[0][0]}
    counted = {names[row.node_key]: row.committed for row in work(per_message(written)).collect()}
    assert counted == {"spark@here:3": 1, "worker@here:2": 2}
