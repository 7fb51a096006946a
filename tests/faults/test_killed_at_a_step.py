"""A worker process is killed with SIGKILL at each named step of a stage transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagepost.transaction.steps import STEPS, Step
from tests.faults import stores
from tests.faults.books import Books, chores
from tests.faults.crew import Crew
from tests.faults.scenarios import killed_at_a_step


@pytest.mark.parametrize(
    ("store", "occurrence"),
    [
        ("sqlite", 7),
        ("postgres", 7),
        *(
            pytest.param(store, number, marks=pytest.mark.soak)
            for store in ("sqlite", "postgres")
            for number in (1, 40)
        ),
    ],
)
@pytest.mark.parametrize("step", STEPS["single"])
def test_a_worker_killed_at_any_step_leaves_every_effect_exactly_once(
    step: Step, occurrence: int, books: Books, crew: Crew, tmp_path: Path
) -> None:
    assert killed_at_a_step(books, crew, tmp_path, step, occurrence) == []


@pytest.mark.parametrize(
    ("store", "step", "occurrence"),
    [
        *(("sqlite-outbox", step, 1) for step in STEPS["outbox"]),
        *(("postgres-two_phase", step, 7) for step in STEPS["two_phase"]),
        *(pytest.param("postgres-outbox", step, 7, marks=pytest.mark.soak) for step in STEPS["outbox"]),
        *(
            pytest.param(f"postgres-{mode}", step, 40, marks=pytest.mark.soak)
            for mode in ("outbox", "two_phase")
            for step in STEPS[mode]
        ),
    ],
)
def test_a_worker_killed_at_any_step_between_two_databases_leaves_every_effect_exactly_once(
    step: Step, occurrence: int, books: Books, crew: Crew, tmp_path: Path
) -> None:
    assert killed_at_a_step(books, crew, tmp_path, step, occurrence) == []


@stores.on_both_and_longer
@pytest.mark.parametrize("stage", ["bank.fraud", "bank.transfer.credit", "bank.transfer.confirm", "bank.done"])
def test_a_worker_killed_while_it_commits_a_reply_a_next_or_the_last_stage_leaves_every_effect_exactly_once(
    stage: str, books: Books, crew: Crew, tmp_path: Path
) -> None:
    assert killed_at_a_step(books, crew, tmp_path, "committing", 1, stage) == []


@stores.on_both
@pytest.mark.parametrize("step", ["committing", "committed"])
def test_a_worker_killed_while_it_settles_a_failure_counts_no_attempt_twice(
    step: str, store: str, books: Books, crew: Crew, tmp_path: Path
) -> None:
    flows = [each for number in range(4) for each in chores(1, f"fail-once={tmp_path}/failed{number}", f"c{number}.")]
    books.start(flows)
    worker = crew.command("--drain", "--threads", "1", kill=f"{step},bank.chore,2,{tmp_path}/killed", tune="death=0.1")
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
