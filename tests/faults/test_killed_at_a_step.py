"""A worker process is killed with SIGKILL at each named step of a stage transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import STEPS, Step
from tests.faults import stores
from tests.faults.books import Books, chores
from tests.faults.scenarios import killed_at_a_step, killed_at_each_step
from tests.faults.worker_fleet import WorkerFleet

MODES: dict[str, Mode] = {
    "sqlite": "single",
    "postgres": "single",
    "sqlite-outbox": "outbox",
    "postgres-outbox": "outbox",
    "postgres-two_phase": "two_phase",
}


@pytest.mark.parametrize(
    "store",
    [
        pytest.param(each, marks=pytest.mark.more if each in ("postgres", "sqlite-outbox", "postgres-outbox") else [])
        for each in MODES
    ],
)
def test_workers_killed_at_each_step_one_after_the_other_leave_every_effect_exactly_once(
    store: str, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert killed_at_each_step(books, fleet, tmp_path, STEPS[MODES[store]]) == []


@pytest.mark.parametrize(
    ("store", "clearing"),
    [
        pytest.param("sqlite-outbox", "message", marks=pytest.mark.more),
        pytest.param("sqlite-outbox", "sweep", marks=pytest.mark.soak),
        pytest.param("postgres-outbox", "message", marks=pytest.mark.soak),
        pytest.param("postgres-outbox", "sweep", marks=pytest.mark.soak),
    ],
)
def test_workers_killed_around_their_sends_leave_no_stored_bytes(
    clearing: str, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    steps = [Step.COMMITTED, Step.DISPATCHED, Step.CONFIRMED]
    problems = killed_at_each_step(books, fleet, tmp_path, steps, 3, clearing=clearing)
    # No handler sends the messages that mark, so their ids follow another rule.
    assert [each for each in problems if "sent to bank.stagepost.dispatched" not in each] == []


@pytest.mark.soak
@pytest.mark.parametrize("occurrence", [1, 7, 40])
@pytest.mark.parametrize(("store", "step"), [(store, step) for store, mode in MODES.items() for step in STEPS[mode]])
def test_a_worker_killed_at_any_step_leaves_every_effect_exactly_once(
    step: Step, occurrence: int, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert killed_at_a_step(books, fleet, tmp_path, step, occurrence) == []


@stores.on_both_and_longer
@pytest.mark.parametrize("stage", ["bank.fraud", "bank.transfer.credit", "bank.transfer.confirm", "bank.done"])
def test_a_worker_killed_while_it_commits_a_reply_a_next_or_the_last_stage_leaves_every_effect_exactly_once(
    stage: str, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert killed_at_a_step(books, fleet, tmp_path, "committing", 1, stage) == []


@stores.on_both
@pytest.mark.parametrize("step", ["committing", "committed"])
def test_a_worker_killed_while_it_settles_a_failure_counts_no_attempt_twice(
    step: str, store: str, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    flows = [each for number in range(4) for each in chores(1, f"fail-once={tmp_path}/failed{number}", f"c{number}.")]
    books.start(flows)
    worker = fleet.command("--drain", "--threads", "1", kill=f"{step},bank.chore,2,{tmp_path}/killed", tune="death=0.1")
    assert worker.wait() == 0
    assert (tmp_path / "killed").exists()
    assert books.problems(flows) == []
    # Killed before that commit: the failure is not on record, the death is. After it: the failure is, and nothing else.
    assert len(books.blamed("failed")) == (3 if step == "committing" else 4)
    died = [each.split()[1] for each in books.blamed("died")]
    if step == "committing" or store == "sqlite":
        assert died == (["c1.0"] if step == "committing" else [])
    else:
        # What runs is told by the queue there, and between two messages that is the next one.
        assert died in ([], ["c2.0"])
