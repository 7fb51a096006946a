"""Rows against the messages that a stage committed, by value."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from stagepost.pipeline.transforms.row_verdicts import (
    AMOUNT,
    MISSING,
    RowTerms,
    bucket_digests,
    explained,
    flow_ends,
    per_flow,
    row_events,
    row_verdicts,
    stage_events,
)
from tests.pipeline.journal import at, journal, line

WHOLE = RowTerms(None, None, None)
Lines = list[dict[str, Any]]


def rows_of(spark: SparkSession, rows: Sequence[tuple[str, str | None]]) -> DataFrame:
    found = [
        (flow, None if amount is None else Decimal(amount), f"orders.csv:{n}")
        for n, (flow, amount) in enumerate(rows, 1)
    ]
    return row_events(spark.createDataFrame(found, f"flow_id string, amount {AMOUNT}, place string"))


def done(flow: str, amount: str | None = "1", message: str | None = None, **more: Any) -> Lines:
    detail = None if amount is None else f"amount {amount}"
    about = {"message": message or flow, "stage": "pay", "flow_id": flow, **more}
    return [line("accepted", **about), line("committed", detail=detail, seconds=1, **about)]


def judged(
    spark: SparkSession,
    rows: Sequence[tuple[str, str | None]],
    lines: Lines,
    terms: RowTerms = WHOLE,
    head: Sequence[dict[str, Any]] = (),
) -> dict[str, str]:
    whole = journal(spark, lines)
    events = rows_of(spark, rows).unionByName(stage_events(whole, "pay", by_amount=True))
    found = row_verdicts(per_flow(events), terms)
    ends = flow_ends(whole, journal(spark, head).select("flow_id"))
    return {row.flow_id: row.verdict for row in explained(found, ends, terms).collect()}


def test_each_flow_has_one_verdict(spark: SparkSession) -> None:
    def about(waypoint: str, flow: str, stage: str = "pay") -> dict[str, Any]:
        return line(waypoint, flow, stage, flow_id=flow)

    lines = [
        *done("ok"),
        *done("unexpected"),
        *done("twice in the file"),
        *done("two messages"),
        *done("two messages", message="another"),
        *done("each twice"),
        *done("each twice", message="another"),
        *done("other amount", "1.01"),
        *done("no amount", None),
        *done("recovered")[1:],
        *done("doubted"),
        about("doubted", "doubted"),
        about("committed", "doubted") | {"detail": "amount 0"},
        *done("edited"),
        about("edited", "edited"),
        about("sent", "edited"),
        about("accepted", "waits"),
        about("accepted", "dead"),
        about("dead", "dead"),
        about("accepted", "replayed"),
        about("dead", "replayed"),
        about("replayed", "replayed"),
        about("accepted", "before", "order"),
        about("accepted", "died before", "order"),
        about("dead", "died before", "order"),
        about("accepted", "elsewhere", "order"),
        about("committed", "elsewhere", "order"),
        about("accepted", "not asked for"),
    ]
    rows = [(flow, "1") for flow in (
        "ok", "twice in the file", "twice in the file", "two messages", "each twice", "each twice", "other amount",
        "no amount", "recovered", "doubted", "edited", "waits", "dead", "replayed", "before", "died before",
        "elsewhere", "never started", "moved",
    )]  # fmt: skip
    assert judged(spark, rows, lines, head=[about("accepted", "moved", "order")]) == {
        "ok": "ok",
        "unexpected": "unexpected",
        "twice in the file": "duplicated",
        "two messages": "duplicated",
        "each twice": "ok",
        "other amount": "unequal",
        "no amount": "unequal",
        "recovered": "recovered",
        "doubted": "ok",
        "edited": "ok",
        "waits": "in_flight",
        "dead": "dead",
        "replayed": "in_flight",
        "before": "in_flight",
        "died before": "dead",
        "elsewhere": "lost",
        "never started": "lost",
        "moved": "in_flight",
    }


def test_a_flow_that_may_have_been_purged_is_not_lost(spark: SparkSession) -> None:
    rows = [("gone", "1")]
    assert judged(spark, rows, [], RowTerms(None, None, at(100))) == {"gone": "unprovable"}
    assert judged(spark, rows, [], RowTerms(at(99), None, at(100))) == {"gone": "unprovable"}
    assert judged(spark, rows, [], RowTerms(at(100), None, at(100))) == {"gone": "lost"}


def test_only_flows_of_the_time_are_expected_in_the_file(spark: SparkSession) -> None:
    lines = [*done("before", origin_at=at(-1)), *done("within"), *done("after", origin_at=at(60))]
    assert judged(spark, [("before", "1")], lines, RowTerms(at(0), at(60), None)) == {
        "before": "ok",
        "within": "unexpected",
    }


@pytest.mark.parametrize(
    ("rows", "lines", "is_equal"),
    [
        ([("a", "1.50")], done("a", "1.5"), True),
        ([("a", "1.50")], done("a", "1.51"), False),
        ([("a", "1")], done("a", "1")[1:], False),
        ([("a", "1")], done("a", "1")[:1], False),
        ([("a", "1"), ("a", "1")], done("a", "1"), False),
        # As many rows as commits, and two equal flows, which XOR would cancel.
        ([("a", "1"), ("a", "1")], [*done("b", "1"), *done("b", "1")], False),
    ],
    ids=["same", "other amount", "no start", "no commit", "twice", "other flows"],
)
def test_a_bucket_is_equal_only_if_flows_and_amounts_are_the_same(
    spark: SparkSession, rows: list[tuple[str, str]], lines: Lines, is_equal: bool
) -> None:
    events = rows_of(spark, rows).unionByName(stage_events(journal(spark, lines), "pay", by_amount=True))
    assert {row.is_equal for row in bucket_digests(events).collect()} == {is_equal}


def test_without_amounts_only_flows_are_compared(spark: SparkSession) -> None:
    events = rows_of(spark, [("a", None)]).unionByName(
        stage_events(journal(spark, done("a", "7")), "pay", by_amount=False)
    )
    assert [row.verdict for row in row_verdicts(per_flow(events), WHOLE).collect()] == ["ok"]
    assert MISSING not in {row.is_equal for row in bucket_digests(events).collect()}
