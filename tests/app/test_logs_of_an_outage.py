"""How worker processes log."""

from __future__ import annotations

import logging

from stagepost.app.logs import OUTAGE_SECONDS, OncePerOutage


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def said(place: str, event: str = "database-unavailable", logger: str = "x") -> logging.LogRecord:
    record = logging.LogRecord(
        logger, logging.WARNING, "", 0, "database unavailable, retrying in %g s: %s", (1.0, f"{place}: gone"), None
    )
    record.event = event
    return record


def test_an_outage_is_told_of_once_a_minute_for_each_database_with_how_often_it_was_met() -> None:
    clock = Clock()
    once = OncePerOutage(clock)
    assert once.filter(said("postgresql://a/b"))
    assert [once.filter(said("postgresql://a/b")) for _ in range(3)] == [False] * 3
    assert once.filter(said("postgresql://c/d"))
    clock.now = OUTAGE_SECONDS
    record = said("postgresql://a/b")
    assert once.filter(record)
    assert record.getMessage() == (
        "database unavailable, retrying in 1 s: postgresql://a/b: gone (and 3 more times since the last such line)"
    )
    assert not once.filter(said("postgresql://a/b"))


def test_a_part_of_the_process_that_waits_is_told_of_although_another_part_has_said_so_before() -> None:
    once = OncePerOutage(Clock())
    assert once.filter(said("postgresql://a/b", logger="relay"))
    assert once.filter(said("postgresql://a/b", logger="stage"))
    assert not once.filter(said("postgresql://a/b", logger="relay"))


def test_whatever_else_is_said_is_said_each_time() -> None:
    once = OncePerOutage(Clock())
    assert all(once.filter(said("postgresql://a/b", event="attempt-failed")) for _ in range(3))


def test_neither_more_lines_nor_more_memory_are_taken_for_more_messages() -> None:
    once = OncePerOutage(Clock())
    lines = [once.filter(said(f"the commit of message-{number} at pay did not take effect")) for number in range(1_000)]
    assert lines == [True] + [False] * 999
    assert len(once._said) == 1
