"""Handlers that end the stage's transaction behind Stagepost's back, or try to, under a real worker."""

from __future__ import annotations

import pytest

from tests.faults import stores
from tests.faults.books import Books, Flow, chores
from tests.faults.scenarios import behind_our_back
from tests.faults.worker_fleet import WorkerFleet

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


@stores.on_both
def test_a_message_that_cannot_be_settled_is_counted_and_takes_no_neighbour_along(
    books: Books, fleet: WorkerFleet
) -> None:
    """Not even by a failure of its own: its process ends by it, and then the one that runs it alone."""
    broken = Flow("broken", "chore", "break-settling", dies_at="bank.chore")
    flows = [*chores(5), broken, *chores(5, name="d")]
    books.start(flows)
    worker = fleet.command("--drain", "--threads", "2", tune="death=0.1,retry=0.1")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    ((flow, _, reason, failures, deaths),) = books.letters()
    assert (flow, reason, failures, deaths) == ("broken", "exhausted", 3, 1)
    assert len(worker.logged("worker-ended")) == 1


def test_a_connection_that_a_handler_kept_and_closed_is_made_again(books: Books, fleet: WorkerFleet) -> None:
    flows = chores(10, "close-what-was-kept")
    books.start(flows)
    worker = fleet.command("--drain", "--threads", "1")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert worker.logged("worker-ended") == []


@pytest.mark.parametrize("trick", TRICKS)
def test_a_handler_that_ends_its_transaction_itself_leaves_nothing_behind_and_disturbs_nobody(
    trick: str, books: Books, fleet: WorkerFleet
) -> None:
    assert behind_our_back(books, fleet, trick) == []


def test_a_handler_that_forks_a_child_that_closes_what_it_inherited_keeps_its_transaction(
    books: Books, fleet: WorkerFleet
) -> None:
    flows = [*chores(5, "late-fork-and-go-on"), *chores(5, name="d")]
    books.start(flows)
    assert fleet.command("--drain", "--threads", "2").wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("died") == []
    assert books.blamed("failed") == []
