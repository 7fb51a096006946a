"""What a handler leaves behind when its process is killed: forked children, and subprocesses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import stores
from tests.faults.books import Books, Flow, transfers
from tests.faults.crew import Crew
from tests.faults.scenarios import forked_and_killed, settle


@stores.on_both_and_longer
def test_a_forked_child_that_outlives_its_worker_does_not_make_it_look_alive_nor_hold_the_turnstile(
    books: Books, crew: Crew, tmp_path: Path
) -> None:
    assert forked_and_killed(books, crew, tmp_path) == []


@stores.on_both_and_longer
@pytest.mark.parametrize("moment", ["", "late-"], ids=["holding nothing", "holding the write lock"])
def test_a_subprocess_that_outlives_its_worker_does_not_make_it_look_alive_nor_hold_the_turnstile(
    moment: str, books: Books, crew: Crew, tmp_path: Path
) -> None:
    flows = [Flow("deadly", "chore", f"{moment}spawn-and-die-once={tmp_path}/died"), *transfers(10)]
    books.start(flows)
    crew.command("--threads", "2", tune="death=0.1")
    settle(books)
    assert books.problems(flows) == []
    assert len(crew.pids("import time")) == 1
