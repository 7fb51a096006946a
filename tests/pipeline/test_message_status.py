"""The journal folded into one row a message and stage: ``per_message``, by value."""

from __future__ import annotations

from random import Random
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from stagepost.pipeline.transforms.messages import merge_messages, per_message
from tests.pipeline.journal import at, journal, line, sent

# What can befall a message, in the order it was written, and where it stands then.
HISTORIES = {
    "waits": (["accepted"], "open"),
    "sent by a stage": (["sent"], "open"),
    "claimed": (["accepted", "received"], "open"),
    "returned": (["accepted", "received", "returned"], "open"),
    "returned and claimed": (["accepted", "received", "returned", "received"], "open"),
    "committed": (["accepted", "received", "committed"], "committed"),
    "returned and committed": (["accepted", "received", "returned", "received", "committed"], "committed"),
    "failed": (["accepted", "received", "failed", "delayed"], "open"),
    "redelivered": (["accepted", "received", "failed", "delayed", "received", "committed"], "committed"),
    "died": (["accepted", "received", "died", "delayed"], "open"),
    "died and committed": (["accepted", "received", "died", "delayed", "received", "committed"], "committed"),
    "buried": (["accepted", "received", "failed", "dead"], "dead"),
    "buried for its deaths": (["accepted", "received", "died", "delayed", "received", "died", "dead"], "dead"),
    "replayed": (["accepted", "received", "failed", "dead", "replayed"], "open"),
    "replayed and claimed": (["accepted", "received", "failed", "dead", "replayed", "received"], "open"),
    "replayed and committed": (
        ["accepted", "received", "failed", "dead", "replayed", "received", "committed"],
        "committed",
    ),
    "replayed and buried": (
        ["accepted", "received", "failed", "dead", "replayed", "received", "failed", "dead"],
        "dead",
    ),
    "replayed twice": (["accepted", "received", "dead", "replayed", "received", "dead", "replayed"], "open"),
    "edited": (["accepted", "received", "failed", "dead", "edited"], "edited"),
    "replayed, buried and edited": (["sent", "received", "dead", "replayed", "received", "dead", "edited"], "edited"),
    "edited and committed all the same": (["accepted", "received", "dead", "edited", "committed"], "committed"),
    "expired": (["sent", "received", "expired"], "expired"),
    "taken by one who died, and expired": (["sent", "received", "returned", "received", "expired"], "expired"),
    "left, and not confirmed yet": (["sent"], "open"),
    "left and confirmed": (["sent", "confirmed"], "confirmed"),
    "died at the edge, replayed and confirmed": (["sent", "dead", "replayed", "confirmed"], "confirmed"),
    "arrived from a broker": (["arrived"], "open"),
    "arrived and committed": (["arrived", "received", "committed", "duplicate"], "committed"),
    "replayed from an archive": (["replayed", "received"], "open"),
    "replayed from an archive and buried": (["replayed", "received", "dead"], "dead"),
    "replayed from an archive and from the store": (["replayed", "dead", "replayed"], "open"),
    "its beginning is purged": (["received", "committed"], "committed"),
    "only its commit is left": (["committed"], "committed"),
    "only its burial is left": (["dead"], "dead"),
    "only late copies are left": (["duplicate", "duplicate"], "copy"),
}


def test_where_a_message_stands_does_not_depend_on_the_order_in_which_its_lines_are_read(spark: SparkSession) -> None:
    random = Random(1)
    lines: list[dict[str, Any]] = []
    for name, (waypoints, _) in HISTORIES.items():
        for shuffle in range(5):
            written = [line(each, f"{name}/{shuffle}", seconds=number) for number, each in enumerate(waypoints)]
            lines += random.sample(written, len(written))
    random.shuffle(lines)
    folded = per_message(journal(spark, lines).repartition(7))
    expected = [(f"{name}/{shuffle}", standing) for name, (_, standing) in HISTORIES.items() for shuffle in range(5)]
    assertDataFrameEqual(
        folded.select("message_id", "standing"), spark.createDataFrame(expected, "message_id string, standing string")
    )


def test_a_message_is_told_by_its_first_moments_its_commit_and_its_counts(spark: SparkSession) -> None:
    lines = [
        sent("m", seconds=1, node="a", cause_id="c", kind="next", ordinal=3, detail="t", bytes=70),
        line("received", seconds=2, node="b"),
        line("failed", seconds=3, node="b", ms=99.0),
        line("delayed", seconds=3, node="b"),
        line("received", seconds=4, node="c"),
        line("died", seconds=5, node="c"),
        line("received", seconds=6, node="d"),
        line("dead", seconds=7, node="d"),
        line("replayed", seconds=8, node="cli"),
        line("received", seconds=9, node="e"),
        line("committed", seconds=10, node="e", ms=1.5),
        line("duplicate", seconds=11, node="e"),
    ]
    expected = {
        "flow_id": "f",
        "stage": "s",
        "message_id": "m",
        "origin_at": at(0),
        "sent_at": at(1),
        "received_at": at(2),
        "committed_at": at(10),
        "duplicate_at": at(11),
        "last_at": at(11),
        "ms": 1.5,
        "bytes": 70,
        "waypoints": 12,
        "commits": 1,
        "failures": 1,
        "deaths": 1,
        "buried": 1,
        "replays": 1,
        "edits": 0,
        "expiries": 0,
        "duplicates": 1,
        "confirms": 0,
        "doubts": 0,
        "direct": 0,
        "standing": "committed",
    }
    folded = per_message(journal(spark, lines))
    assert set(folded.columns) == {*expected, "send", "node_key"}
    folded = folded.select(*expected)
    assertDataFrameEqual(folded, spark.createDataFrame([tuple(expected.values())], folded.schema))


def test_what_was_never_committed_has_no_node_and_no_duration(spark: SparkSession) -> None:
    lines = [line("accepted", node="a"), line("received", node="b"), line("failed", node="b", ms=5.0)]
    folded = per_message(journal(spark, lines)).select("committed_at", "node_key", "ms", "commits")
    assertDataFrameEqual(folded, spark.createDataFrame([(None, None, None, 0)], folded.schema))


def test_what_the_journal_no_longer_knows_the_beginning_of_has_no_moment_of_sending(spark: SparkSession) -> None:
    folded = per_message(journal(spark, [line("received", seconds=2), line("committed", seconds=3)]))
    assert folded.where(F.col("sent_at").isNull() & (F.col("received_at") == F.lit(at(2)))).count() == 1


def test_one_id_at_two_stages_is_two_messages(spark: SparkSession) -> None:
    """A caller may give the same message id to two endpoints."""
    lines = [line("accepted", stage="s"), line("committed", stage="s"), line("accepted", stage="t")]
    folded = per_message(journal(spark, lines)).select("stage", "standing", "waypoints")
    expected = [("s", "committed", 2), ("t", "open", 1)]
    assertDataFrameEqual(folded, spark.createDataFrame(expected, folded.schema))


def test_an_empty_journal_tells_of_no_message(spark: SparkSession) -> None:
    assert per_message(journal(spark, [])).count() == 0


def test_the_folds_of_two_parts_of_a_journal_merge_into_that_of_the_whole(spark: SparkSession) -> None:
    """However the lines are divided, and whatever became of the messages."""
    random = Random(2)
    lines: list[dict[str, Any]] = []
    for name, (waypoints, _) in HISTORIES.items():
        more: dict[str, Any] = {"cause_id": "c", "kind": "send", "ordinal": 1, "detail": "t", "bytes": 9, "ms": 2.0}
        lines += [line(each, name, seconds=number, **more) for number, each in enumerate(waypoints)]
    random.shuffle(lines)
    cut = len(lines) // 3
    parts = [per_message(journal(spark, each)).drop("standing") for each in (lines[:cut], lines[cut:])]
    assertDataFrameEqual(merge_messages(parts[0].unionByName(parts[1])), per_message(journal(spark, lines)))
