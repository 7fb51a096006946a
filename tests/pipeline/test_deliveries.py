"""What left one service and arrived at another, by value."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from stagepost.pipeline.transforms.deliveries import (
    DeliveryTerms,
    delivery_lines,
    in_windows,
    overtaken_until,
    per_message,
    verdicts,
    window_digests,
)
from tests.pipeline.journal import at, journal, line

STORE = "0a0a0a0a-0000-4000-8000-000000000001"
PROCESS = "0b0b0b0b-0000-4000-8000-000000000002"


def left(message: str, seconds: float = 0, stage: str = "@out/book", **more: Any) -> list[dict[str, Any]]:
    """It was sent, and the broker confirmed it a second later."""
    return [line("sent", message, stage, seconds, **more), line("confirmed", message, stage, seconds + 1, **more)]


def arrived(message: str, seconds: float = 2, stage: str = "book", **more: Any) -> dict[str, Any]:
    return line("arrived", message, stage, seconds, kind=more.pop("kind", "send"), **more)


def judged(
    spark: SparkSession, lines: list[dict[str, Any]], *, seen: float = 1_000, proved: float | None = None
) -> dict[str, str]:
    terms = DeliveryTerms(at(seen), None if proved is None else at(proved), late_seconds=60, overdue_seconds=600)
    found = delivery_lines(journal(spark, lines))
    messages = per_message(in_windows(found, 60))
    overtaken = overtaken_until(window_digests(found, 60), messages)
    return {row.message_id: row.verdict for row in verdicts(messages, overtaken, terms).collect()}


def test_each_message_has_one_of_jepsens_verdicts(spark: SparkSession) -> None:
    lines = [
        *left("ok"),
        arrived("ok"),
        *left("lost"),
        *left("twice"),
        arrived("twice"),
        arrived("twice", 50),
        line("sent", "recovered", "@out/book"),
        arrived("recovered"),
        line("sent", "not confirmed", "@out/book"),
        *left("young", 900),
        arrived("unexpected"),
        arrived("just now", 1_001),
        line("sent", "dead", "@out/book"),
        line("dead", "dead", "@out/book"),
        line("sent", "replayed", "@out/book"),
        line("dead", "replayed", "@out/book"),
        line("replayed", "replayed", "@out/book"),
    ]
    assert judged(spark, lines) == {
        "ok": "ok",
        "lost": "lost",
        "twice": "duplicated",
        "recovered": "recovered",
        "not confirmed": "in_flight",
        "young": "in_flight",
        "unexpected": "unexpected",
        "just now": "in_flight",
        "dead": "dead",
        "replayed": "in_flight",
    }


def test_a_message_is_lost_when_a_later_one_has_overtaken_it_or_it_is_overdue(spark: SparkSession) -> None:
    """A receiver that is down has lost nothing: all that was sent since waits at the broker."""
    missing = left("m", 100)
    assert judged(spark, missing, seen=650) == {"m": "in_flight"}
    assert judged(spark, missing, seen=702) == {"m": "lost"}
    later = [*left("later", 200), arrived("later", 201)]
    assert judged(spark, missing + later, seen=650)["m"] == "lost"
    soon = [*left("later", 150), arrived("later", 151)]
    assert judged(spark, missing + soon, seen=650)["m"] == "in_flight"
    elsewhere = [*left("later", 200, "@out/other"), arrived("later", 201, "other")]
    assert judged(spark, missing + elsewhere, seen=650)["m"] == "in_flight"
    # What arrived behind an open transaction was not read.
    assert judged(spark, missing + later, seen=150)["m"] == "in_flight"


def test_a_line_that_may_have_been_purged_proves_nothing(spark: SparkSession) -> None:
    new: dict[str, Any] = {"origin_at": at(500)}
    lines = [*left("gone"), arrived("nobody's"), *left("lost", 200, **new), arrived("unexpected", **new)]
    assert judged(spark, lines, proved=400) == {
        "gone": "unprovable",
        "nobody's": "unprovable",
        "lost": "lost",
        "unexpected": "unexpected",
    }


def test_replies_of_one_store_have_one_address_and_copies_of_publications_are_left_out(spark: SparkSession) -> None:
    lines = [
        *left("reply", stage=f"@out/_replies.{STORE}"),
        arrived("reply", stage=f"shop.reply.{PROCESS}@{STORE}"),
        *left("published", stage="@out/@news"),
        arrived("copy", kind="publish"),
        line("accepted", "inside", "book"),
        line("confirmed", "inside", "book"),
    ]
    found = delivery_lines(journal(spark, lines))
    assert {(row.address, row.event, row.message_id) for row in found.collect()} == {
        *((f"_replies.{STORE}", event, "reply") for event in ("sent", "confirmed", "arrived")),
        *(("@news", event, "published") for event in ("sent", "confirmed")),
    }


@pytest.mark.parametrize(
    ("change", "is_equal"),
    [
        (lambda lines: lines, True),
        (lambda lines: lines[::-1], True),
        (lambda lines: lines[1:], False),
        (lambda lines: [*lines, arrived("a")], False),
        # As many as were sent, and two equal ids, which XOR would cancel.
        (lambda lines: [each for each in lines if each["waypoint"] != "arrived"] + [arrived("a")] * 2, False),
        (lambda lines: [each for each in lines if each["waypoint"] != "confirmed"], False),
    ],
    ids=["same", "order", "not sent", "twice", "other ids", "not confirmed"],
)
def test_a_window_is_equal_only_if_the_same_ids_left_and_arrived(
    spark: SparkSession, change: Any, is_equal: bool
) -> None:
    lines = [*left("a"), *left("b"), arrived("a"), arrived("b")]
    (row,) = window_digests(delivery_lines(journal(spark, change(lines))), 60).collect()
    assert row.is_equal is is_equal
