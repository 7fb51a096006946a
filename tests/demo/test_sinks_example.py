"""The example of a sink with a transaction of its own: real kills between the two commits, and what they leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.sinks.count import ORDERS, VICTIMS, Outcome, count
from tests.places import bare_environment

KILLED = len(VICTIMS)


@pytest.mark.more
@pytest.mark.parametrize(
    ("commits_in", "expected"),
    [
        ("success", Outcome(booked_once=ORDERS, archived_once=ORDERS - KILLED, lost=KILLED, repeated=0)),
        ("before_commit", Outcome(booked_once=ORDERS, archived_once=ORDERS - KILLED, lost=0, repeated=KILLED)),
    ],
)
def test_a_kill_between_the_commits_loses_a_line_in_success_and_repeats_it_in_before_commit(
    commits_in: str, expected: Outcome, tmp_path: Path
) -> None:
    assert count(commits_in, tmp_path, bare_environment()) == expected
