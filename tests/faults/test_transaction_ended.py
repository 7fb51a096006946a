"""Handlers that end the stage's transaction behind Stagepost's back, or try to, under a real worker."""

from __future__ import annotations

import pytest

from tests.faults.books import Books, chores
from tests.faults.crew import Crew
from tests.faults.scenarios import behind_our_back

TRICKS = [
    "late-commit-by-the-base-class",
    "late-commit-by-a-plain-cursor",
    "commit-by-a-plain-cursor",
    "late-hide-a-commit",
    "late-roll-back-by-conflict",
    "late-roll-back-by-conflict-and-write",
    "write-by-a-plain-cursor",
    "late-close-the-connection",
]


@pytest.mark.parametrize("trick", TRICKS)
def test_a_handler_that_ends_its_transaction_itself_leaves_nothing_behind_and_disturbs_nobody(
    trick: str, books: Books, crew: Crew
) -> None:
    assert behind_our_back(books, crew, trick) == []


def test_a_handler_that_forks_a_child_that_closes_what_it_inherited_keeps_its_transaction(
    books: Books, crew: Crew
) -> None:
    flows = [*chores(5, "late-fork-and-go-on"), *chores(5, name="d")]
    books.start(flows)
    assert crew.command("--drain", "--threads", "2").wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("died") == []
    assert books.blamed("failed") == []
