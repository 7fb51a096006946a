"""A script that starts flows is killed while it does, and is run again with the same ids."""

from __future__ import annotations

import signal

import pytest

from tests.faults import stores
from tests.faults.books import Books, transfers
from tests.faults.initiator import POINTS
from tests.faults.scenarios import initiation_repeated
from tests.faults.worker_fleet import WorkerFleet

# The others run with make test-more.
IN_TEST = {"after-commit"}


@stores.on_both_and_longer
@pytest.mark.parametrize(
    "point", [pytest.param(each, marks=[] if each in IN_TEST else pytest.mark.more) for each in POINTS]
)
def test_flows_started_one_by_one_by_a_script_that_is_killed_and_run_again_start_once_each(
    point: str, books: Books, fleet: WorkerFleet
) -> None:
    assert initiation_repeated(books, fleet, "start", point, 3) == []


@stores.on_both_and_longer
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("after-accept", marks=pytest.mark.more),
        "before-commit",
        pytest.param("after-commit", marks=pytest.mark.more),
    ],
)
def test_flows_started_together_by_a_script_that_is_killed_start_all_or_none_and_once_each(
    point: str, books: Books, fleet: WorkerFleet
) -> None:
    flows = transfers(5)
    arguments = [books.url, "initiate", point, "1", str(len(flows))]
    assert fleet.module("tests.faults.initiator", *arguments).wait() == -signal.SIGKILL
    assert books.waiting() == (5 if point == "after-commit" else 0)
    arguments[2] = "none"
    assert fleet.module("tests.faults.initiator", *arguments).wait() == 0
    assert books.waiting() == 5
    assert fleet.command("--drain").wait() == 0
    assert books.problems(flows) == []


@stores.on_both
@pytest.mark.parametrize("point", ["before-own-commit", "after-own-commit"])
def test_flows_started_in_the_callers_transaction_share_its_fate_when_the_caller_is_killed(
    point: str, books: Books, fleet: WorkerFleet
) -> None:
    flows = transfers(3)
    script = fleet.module("tests.faults.initiator", books.url, "joined", point, "1", str(len(flows)))
    assert script.wait() == -signal.SIGKILL
    stood = point == "after-own-commit"
    assert books.number("SELECT count(*) FROM scratch") == (1 if stood else 0)
    assert books.waiting() == (3 if stood else 0)
    assert fleet.command("--drain").wait() == 0
    assert books.problems(flows if stood else []) == []
