"""Messages that share a transaction share no harm: one that fails, or kills its process, takes no neighbour along."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagepost.transaction.steps import STEPS, Step
from tests.faults import stores
from tests.faults.books import Books, Flow, chores, transfers
from tests.faults.scenarios import killed_at_a_step, killed_at_each_step, settle
from tests.faults.worker_fleet import PROCESS, WorkerFleet
from tests.processes import kill
from tests.waiting import wait_until

BATCH = "20"


@pytest.fixture
def fleet(fleet: WorkerFleet) -> WorkerFleet:
    fleet.settings["batch"] = BATCH
    return fleet


@stores.on_both
def test_workers_killed_at_each_step_of_a_batch_one_after_the_other_leave_every_effect_exactly_once(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert killed_at_each_step(books, fleet, tmp_path, STEPS["single"], 25) == []


@pytest.mark.soak
@pytest.mark.parametrize(("store", "occurrence"), [("postgres", 7), ("postgres", 25), ("sqlite", 25)])
@pytest.mark.parametrize("step", STEPS["single"])
def test_a_worker_killed_at_any_step_of_a_batch_leaves_every_effect_exactly_once(
    step: Step, occurrence: int, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert killed_at_a_step(books, fleet, tmp_path, step, occurrence) == []


@stores.on_both
@pytest.mark.more
def test_those_that_kill_their_process_become_dead_letters_and_their_neighbours_are_done_once(
    books: Books, fleet: WorkerFleet
) -> None:
    deadly = [
        Flow("early", "chore", "sigkill", dies_at="bank.chore"),
        Flow("late", "chore", "late-exit", dies_at="bank.chore"),
    ]
    flows = [*chores(60), *deadly, *chores(60, name="d"), *transfers(20)]
    books.start(flows)
    worker = fleet.command("--drain", "--threads", "2", tune="death=0.1")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert [(flow, reason, failures) for flow, _, reason, failures, _ in books.letters()] == [
        ("early", "worker-died", 0),
        ("late", "worker-died", 0),
    ]


@stores.on_both
def test_one_that_fails_is_redelivered_and_its_neighbours_are_done_once(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    failing = [chores(1, f"fail-once={tmp_path}/failed{number}", f"f{number}.")[0] for number in range(4)]
    flows = [flow for each in failing for flow in (*chores(20, name=each.flow_id), each)]
    books.start(flows)
    worker = fleet.command("--drain", "--threads", "1")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("died") == []


@pytest.mark.more
@stores.on_both_and_longer
def test_workers_that_are_killed_again_and_again_bury_nobody(books: Books, fleet: WorkerFleet) -> None:
    flows = transfers(200)
    books.start(flows)
    fleet.command("--processes", "2", "--threads", "2", tune="death=0.1")
    for _ in range(5):
        moves = books.moves()
        wait_until(lambda before=moves: books.moves() > before + 40 or books.is_drained(), "they work")  # type: ignore[misc]
        for pid in fleet.pids(PROCESS):
            kill(pid)
    settle(books)
    assert books.problems(flows) == []
    assert books.letters() == []
