"""The books by window of origin, and how long hops take, by value."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from stagepost.pipeline.transforms.balance import balance
from stagepost.pipeline.transforms.latency import hop_latency
from stagepost.pipeline.transforms.losses import KEY
from stagepost.pipeline.transforms.messages import per_message
from tests.pipeline.journal import BEGIN, at, journal, line, sent


def windows(
    spark: SparkSession,
    lines: list[dict[str, Any]],
    *,
    lost: list[tuple[str, str]] | None = None,
    doubled: list[tuple[str, str]] | None = None,
    width: int = 60,
    horizon: datetime = BEGIN,
    late: int = 0,
) -> DataFrame:
    keys = "stage string, message_id string"
    return balance(
        per_message(journal(spark, lines)),
        spark.createDataFrame(lost or [], keys),
        spark.createDataFrame(doubled or [], keys),
        window_seconds=width,
        horizon=horizon,
        late_seconds=late,
    )


def flow(number: int, seconds: float, *waypoints: str) -> list[dict[str, Any]]:
    """A message that began at that moment."""
    name = f"m{number}"
    return [line(each, name, seconds=seconds, flow_id=name, origin_at=at(seconds)) for each in waypoints]


def test_what_was_sent_is_balanced_in_the_window_in_which_its_flow_began(spark: SparkSession) -> None:
    lines = [*flow(1, 0, "accepted", "committed"), *flow(2, 59.999999, "accepted"), *flow(3, 60, "accepted", "dead")]
    lines += [*flow(4, 61, "accepted"), *flow(5, 62, "accepted", "committed", "committed")]
    lines += [*flow(6, 63, "accepted", "expired")]
    # A hop an hour later still belongs to where its flow began.
    lines += [sent("m7", "t", seconds=3600, flow_id="m1", origin_at=at(0))]
    found = windows(spark, lines, lost=[("s", "m4")], doubled=[("s", "m5"), ("s", "m5")]).drop("digest", "state")
    expected = [(at(0), 2, 3, 1, 0, 0, 0, 2, 0, 0), (at(60), 4, 4, 1, 1, 1, 0, 1, 1, 1)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema), checkRowOrder=True)


def test_what_was_edited_is_balanced_under_both_its_ids_in_the_window_of_its_flow(spark: SparkSession) -> None:
    lines = flow(1, 0, "accepted", "dead", "edited")
    lines += [sent("new", seconds=3600, flow_id="m1", origin_at=at(0), cause_id="m1", detail="s")]
    waits = windows(spark, lines).drop("digest", "state", "window")
    assertDataFrameEqual(waits, spark.createDataFrame([(1, 2, 0, 0, 0, 1, 1, 0, 0)], waits.schema))
    lines += [line("committed", "new", seconds=3601, flow_id="m1", origin_at=at(0))]
    done = windows(spark, lines).drop("digest", "state", "window")
    assertDataFrameEqual(done, spark.createDataFrame([(1, 2, 1, 0, 0, 1, 0, 0, 0)], done.schema))


def test_windows_are_as_wide_as_they_were_asked_for_and_come_in_order(spark: SparkSession) -> None:
    lines = [each for number in range(7) for each in flow(number, number * 10, "accepted")]
    found = windows(spark, lines, width=20).select("window", "sent")
    expected = [(at(0), 2), (at(20), 2), (at(40), 2), (at(60), 1)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema), checkRowOrder=True)


@pytest.mark.parametrize(
    ("horizon", "late", "state"),
    [(59, 0, "provisional"), (60, 0, "final"), (61, 0, "final"), (359, 300, "provisional"), (360, 300, "final")],
)
def test_a_window_is_final_when_the_horizon_has_passed_its_end_by_the_lateness(
    spark: SparkSession, horizon: int, late: int, state: str
) -> None:
    found = windows(spark, flow(1, 5, "accepted"), horizon=at(horizon), late=late)
    assert [row.state for row in found.collect()] == [state]


def digest(spark: SparkSession, *messages: str) -> int:
    lines = [each for name in messages for each in (line("accepted", name), line("committed", name, seconds=1))]
    (row,) = windows(spark, lines).collect()
    return int(row.digest)


def test_the_digest_is_of_the_ids_whatever_their_order_and_the_lines_about_them(spark: SparkSession) -> None:
    assert digest(spark, "a", "b", "c") == digest(spark, "c", "a", "b") == digest(spark, "a", "b", "c", "a")
    assert digest(spark, "a", "b", "c") != digest(spark, "a", "b")
    assert digest(spark, "a", "b", "c") != digest(spark, "a", "b", "d")


def test_an_id_at_two_stages_does_not_cancel_itself_out_of_the_digest(spark: SparkSession) -> None:
    twice = [line("accepted", "a", "s"), line("accepted", "a", "t"), line("accepted", "b", "s")]
    other = [line("accepted", "c", "s"), line("accepted", "c", "t"), line("accepted", "b", "s")]
    (first,), (second,) = windows(spark, twice).collect(), windows(spark, other).collect()
    assert first.digest != second.digest


def test_two_initiations_of_one_flow_are_one_flow(spark: SparkSession) -> None:
    lines = [line("accepted", "a", "s"), line("accepted", "b", "t")]
    assert [row.flows for row in windows(spark, lines).collect()] == [1]


def test_a_journal_without_messages_has_no_windows(spark: SparkSession) -> None:
    assert windows(spark, []).collect() == []


# Latency


def hop(number: int, sent_at: float, received_at: float, ms: float, stage: str = "s") -> list[dict[str, Any]]:
    name = f"m{number}"
    return [
        sent(name, stage, sent_at),
        line("received", name, stage, received_at),
        line("received", name, stage, received_at + 500),
        line("committed", name, stage, received_at + 501, ms=ms),
    ]


def test_a_hop_is_told_by_its_wait_until_first_claimed_and_its_handlers_time(spark: SparkSession) -> None:
    lines = [each for number in range(1, 101) for each in hop(number, 0, number / 1000, number * 10.0)]
    lines += hop(999, 10, 10.25, 7.0, "t")
    found = hop_latency(per_message(journal(spark, lines)))
    expected = [
        ("s", 100, 0, 50.0, 95.0, 99.0, 100.0, 500.0, 950.0, 990.0, 1000.0),
        ("t", 1, 0, 250.0, 250.0, 250.0, 250.0, 7.0, 7.0, 7.0, 7.0),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema), checkRowOrder=True)


def test_clocks_that_disagree_are_counted_and_not_dropped(spark: SparkSession) -> None:
    lines = [*hop(1, 10, 9.5, 1.0), *hop(2, 10, 10, 1.0), *hop(3, 10, 10.5, 1.0)]
    found = hop_latency(per_message(journal(spark, lines))).select("messages", "backwards", "wait_p50", "wait_max")
    assertDataFrameEqual(found, spark.createDataFrame([(3, 1, 0.0, 500.0)], found.schema))


def test_what_was_not_committed_has_no_latency_and_what_was_not_seen_received_has_no_wait(spark: SparkSession) -> None:
    lines = [line("accepted", "open"), line("received", "open", seconds=1)]
    lines += [line("accepted", "unseen", seconds=0), line("committed", "unseen", seconds=2, ms=3.0)]
    found = hop_latency(per_message(journal(spark, lines))).select("messages", "backwards", "wait_max", "run_max")
    assertDataFrameEqual(found, spark.createDataFrame([(1, 0, None, 3.0)], found.schema))


def test_a_message_in_no_list_counts_as_neither_lost_nor_doubled(spark: SparkSession) -> None:
    lines = flow(1, 0, "accepted")
    found = windows(spark, lines, lost=[("other", "m1")], doubled=[("s", "other")]).select("lost", "doubled")
    assertDataFrameEqual(found, spark.createDataFrame([(0, 0)], found.schema))
    assert KEY == ["stage", "message_id"]
    assert found.where(F.col("lost").isNull()).count() == 0
