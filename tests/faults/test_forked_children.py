"""What a handler leaves behind when its process is killed: forked children, and subprocesses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import stores
from tests.faults.books import Books, Flow, chores, transfers
from tests.faults.scenarios import forked_and_killed, settle
from tests.faults.worker_fleet import WorkerFleet


@stores.on_both_and_longer
def test_a_forked_child_that_outlives_its_worker_does_not_make_it_look_alive_nor_hold_the_writer_lock(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert forked_and_killed(books, fleet, tmp_path) == []


@stores.on_both_and_longer
@pytest.mark.parametrize("moment", ["", "late-"], ids=["holding nothing", "holding the write lock"])
def test_a_subprocess_that_outlives_its_worker_does_not_make_it_look_alive_nor_hold_the_writer_lock(
    moment: str, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    flows = [Flow("deadly", "chore", f"{moment}spawn-and-die-once={tmp_path}/died"), *transfers(10)]
    books.start(flows)
    fleet.command("--threads", "2", tune="death=0.1")
    settle(books)
    assert books.problems(flows) == []
    assert len(fleet.pids("import time")) == 1


@stores.on_both
@pytest.mark.parametrize("moment", ["", "late-"], ids=["before it wrote", "after it wrote"])
def test_a_forked_child_that_comes_back_from_its_handler_is_ended_and_settles_nothing(
    moment: str, books: Books, fleet: WorkerFleet
) -> None:
    """It would commit, or roll back, what its parent works on."""
    flows = [*chores(10, f"{moment}fork-and-return"), *chores(10, name="d")]
    books.start(flows)
    worker = fleet.command("--drain", "--threads", "2")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []
    assert len(worker.logged("forked-child")) == 10
