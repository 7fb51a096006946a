"""The books by window of origin, and how long hops take, by value."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from stagepost.flow.clock import SECOND, to_microseconds
from stagepost.pipeline.jobs.audit_search import by_window
from stagepost.pipeline.report.balance import LATENCIES, balance_rows
from stagepost.pipeline.transforms.facts import totals, window_facts
from stagepost.pipeline.transforms.flows import flow_facts
from stagepost.pipeline.transforms.losses import located, lost_facts
from stagepost.pipeline.transforms.messages import per_message
from stagepost.pipeline.transforms.windows import WINDOWS_MAX, WindowGrid
from tests.pipeline.journal import BEGIN, at, journal, line, sent, table


def windows(
    spark: SparkSession,
    lines: list[dict[str, Any]],
    *,
    lost: Collection[str] = (),
    width: int = 60,
    horizon: datetime = BEGIN,
    late: int = 0,
) -> list[dict[str, Any]]:
    """The balance of each window, with these messages lost."""
    messages = per_message(journal(spark, lines))
    grid = WindowGrid.until(to_microseconds(horizon), width)
    gone = located(messages, table(spark, "places", [])).where(F.col("message_id").isin(*lost, ""))
    return balance_rows(
        by_window(totals(window_facts(messages, grid))),
        by_window(flow_facts(messages, grid)),
        by_window(lost_facts(gone, grid)),
        width_at=grid.width_at,
        final_before=to_microseconds(horizon) - late * SECOND,
    )


COUNTED = ("flows", "sent", "committed", "expired", "dead", "edited", "open", "lost", "doubled")


def counted(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names or COUNTED) for row in rows]


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
    lines += [sent("twin1", flow_id="m6", origin_at=at(63)), sent("twin2", flow_id="m6", origin_at=at(63))]
    found = windows(spark, lines, lost=["m4", "m3"])
    assert counted(found) == [(2, 3, 1, 0, 0, 0, 2, 0, 0), (4, 6, 1, 1, 1, 0, 3, 2, 2)]
    assert counted(found, "window", "until") == [
        (at(0).isoformat(), at(60).isoformat()), (at(60).isoformat(), at(120).isoformat())
    ]  # fmt: skip


def test_late_copies_alone_are_no_message_and_keep_no_window_open(spark: SparkSession) -> None:
    """A state that has forgotten their message must not count it again, and a publication's own copy is none."""
    lines = flow(1, 0, "accepted", "committed")
    (alone,) = windows(spark, lines, horizon=at(600))
    (found,) = windows(spark, [*lines, *flow(2, 1, "duplicate", "duplicate")], horizon=at(600))
    assert found == alone
    assert (found["sent"], found["flows"], found["state"]) == (1, 1, "final")


def test_what_was_edited_is_balanced_under_both_its_ids_in_the_window_of_its_flow(spark: SparkSession) -> None:
    lines = flow(1, 0, "accepted", "dead", "edited")
    lines += [sent("new", seconds=3600, flow_id="m1", origin_at=at(0), cause_id="m1", detail="s")]
    assert counted(windows(spark, lines)) == [(1, 2, 0, 0, 0, 1, 1, 0, 0)]
    lines += [line("committed", "new", seconds=3601, flow_id="m1", origin_at=at(0))]
    assert counted(windows(spark, lines)) == [(1, 2, 1, 0, 0, 1, 0, 0, 0)]


def test_windows_are_as_wide_as_they_were_asked_for_and_come_in_order(spark: SparkSession) -> None:
    lines = [each for number in range(7) for each in flow(number, number * 10, "accepted")]
    expected = [(at(begin).isoformat(), sent) for begin, sent in ((0, 2), (20, 2), (40, 2), (60, 1))]
    assert counted(windows(spark, lines, width=20), "window", "sent") == expected


@pytest.mark.parametrize(
    ("horizon", "late", "state"),
    [(59, 0, "provisional"), (60, 0, "final"), (61, 0, "final"), (359, 300, "provisional"), (360, 300, "final")],
)
def test_a_window_is_final_when_the_horizon_has_passed_its_end_by_the_lateness(
    spark: SparkSession, horizon: int, late: int, state: str
) -> None:
    found = windows(spark, flow(1, 5, "accepted", "committed"), horizon=at(horizon), late=late)
    assert counted(found, "state") == [(state,)]


def test_a_window_is_not_final_while_one_of_its_messages_waits(spark: SparkSession) -> None:
    lines = [*flow(1, 5, "accepted", "committed"), *flow(2, 6, "accepted"), *flow(3, 7, "accepted", "dead")]
    assert counted(windows(spark, lines, horizon=at(999)), "state") == [("provisional",)]
    # A lost message no longer waits.
    assert counted(windows(spark, lines, horizon=at(999), lost=["m2", "m3"]), "state") == [("final",)]


def digest(spark: SparkSession, *messages: str) -> int:
    lines = [each for name in messages for each in (line("accepted", name), line("committed", name, seconds=1))]
    (row,) = windows(spark, lines)
    return int(row["digest"])


def test_the_digest_is_of_the_ids_whatever_their_order_and_the_lines_about_them(spark: SparkSession) -> None:
    assert digest(spark, "a", "b", "c") == digest(spark, "c", "a", "b") == digest(spark, "a", "b", "c", "a")
    assert digest(spark, "a", "b", "c") != digest(spark, "a", "b")
    assert digest(spark, "a", "b", "c") != digest(spark, "a", "b", "d")


def test_an_id_at_two_stages_does_not_cancel_itself_out_of_the_digest(spark: SparkSession) -> None:
    twice = [line("accepted", "a", "s"), line("accepted", "a", "t"), line("accepted", "b", "s")]
    other = [line("accepted", "c", "s"), line("accepted", "c", "t"), line("accepted", "b", "s")]
    (first,), (second,) = windows(spark, twice), windows(spark, other)
    assert first["digest"] != second["digest"]


def test_two_initiations_of_one_flow_are_one_flow(spark: SparkSession) -> None:
    lines = [line("accepted", "a", "s"), line("accepted", "b", "t")]
    assert counted(windows(spark, lines), "flows") == [(1,)]


def test_a_journal_without_messages_has_no_windows(spark: SparkSession) -> None:
    assert windows(spark, []) == []


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
def test_windows_are_the_same_in_each_time_zone(spark: SparkSession) -> None:
    """In Berlin the clocks show 02:30 twice in that night."""
    night = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    moments = [night + timedelta(minutes=30 * n) for n in range(4)]
    lines = [
        each
        for n, moment in enumerate(moments)
        for each in flow(n, (moment - BEGIN).total_seconds(), "accepted", "committed")
    ]
    found = windows(spark, lines, width=1_800, horizon=moments[-1])
    assert counted(found, "window", "sent") == [(moment.isoformat(), 1) for moment in moments]


# Old windows are merged


@pytest.mark.parametrize("width", [1, 60, 3600, 1_000_000])
@pytest.mark.parametrize("span_seconds", [3600, 86_400, 400 * 86_400])
def test_a_history_of_any_length_has_at_most_a_thousand_windows(width: int, span_seconds: int) -> None:
    horizon = to_microseconds(BEGIN)
    grid = WindowGrid.until(horizon, width)
    begin, windows_seen, last = horizon - span_seconds * SECOND, 0, 0
    while begin <= horizon:
        step = grid.width_at(begin)
        # Each window begins where a window of every narrower width begins, so no narrow one is cut.
        assert step % (width * SECOND) == 0
        assert not last or step <= last
        begin, last = begin - begin % step + step, step
        windows_seen += 1
    assert windows_seen <= WINDOWS_MAX
    assert all(abs(each) < 2**63 for step in grid.steps for each in step)
    assert grid.width_at(horizon - 400 * width * SECOND) == width * SECOND


@pytest.mark.parametrize("width", [1, 60, 3600, 1_000_000])
@pytest.mark.parametrize("ahead_seconds", [86_400, 400 * 86_400, 7_000 * 366 * 86_400])
def test_clocks_that_are_ahead_do_not_make_more_windows_than_that(width: int, ahead_seconds: int) -> None:
    horizon = to_microseconds(BEGIN)
    grid = WindowGrid.until(horizon, width)
    begin, windows_seen, last = horizon - 400 * 86_400 * SECOND, 0, 0
    while begin <= horizon + ahead_seconds * SECOND:
        step = grid.width_at(begin)
        if begin > horizon:
            # No window of the future is cut by a wider one.
            assert step >= last
            assert begin % step == 0
        begin, last = begin - begin % step + step, step
        windows_seen += 1
    assert windows_seen <= WINDOWS_MAX
    assert all(abs(each) < 2**63 for step in grid.steps for each in step)
    assert grid.width_at(horizon + 40 * width * SECOND) == width * SECOND


def test_old_windows_are_merged_and_keep_their_sums(spark: SparkSession) -> None:
    lines = [each for number in range(64) for each in flow(number, number * 60, "accepted", "committed")]
    found = windows(spark, lines, horizon=at(600 * 60))
    # Windows of 32 minutes, which begin at multiples of 32 minutes since 1970.
    begins = [-960, 960, 2880, 4800]
    assert counted(found, "window", "until", "sent") == [
        (at(begin).isoformat(), at(end).isoformat(), sent)
        for begin, end, sent in zip(begins, begins[1:], (16, 32, 16), strict=False)
    ]


# Latency

LATENCY = ("stage", "committed", "backwards", *LATENCIES)


def hop_latency(messages: DataFrame) -> DataFrame:
    grid = WindowGrid.until(to_microseconds(at(600)), 60)
    return (
        totals(window_facts(messages, grid)).where("window IS NULL AND committed > 0").select(*LATENCY).orderBy("stage")
    )


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
    found = hop_latency(per_message(journal(spark, lines))).select("committed", "backwards", "wait_p50", "wait_max")
    assertDataFrameEqual(found, spark.createDataFrame([(3, 1, 0.0, 500.0)], found.schema))


def test_what_was_not_committed_has_no_latency_and_what_was_not_seen_received_has_no_wait(spark: SparkSession) -> None:
    lines = [line("accepted", "open"), line("received", "open", seconds=1)]
    lines += [line("accepted", "unseen", seconds=0), line("committed", "unseen", seconds=2, ms=3.0)]
    found = hop_latency(per_message(journal(spark, lines))).select("committed", "backwards", "wait_max", "run_max")
    assertDataFrameEqual(found, spark.createDataFrame([(1, 0, None, 3.0)], found.schema))
