"""An owner that is stopped for so long that another one takes over, and then goes on as if nothing had happened."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults import stores
from tests.faults.books import Books, Flow, transfers
from tests.faults.pausing import pause
from tests.faults.scenarios import paused_in_its_handler, resumed, settle
from tests.faults.worker_fleet import PROCESS, WorkerFleet
from tests.waiting import wait_until


@stores.on_both
def test_an_owner_paused_in_its_handler_finds_the_fence_when_it_wakes_up_and_works_on(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert paused_in_its_handler(books, fleet, tmp_path) == []
    assert books.waypoints("returned", "paused") == 1


@stores.on_both
def test_an_owner_paused_between_claim_and_handling_finds_the_fence_when_it_wakes_up_and_works_on(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    flows = transfers(40)
    books.start(flows)
    gate = tmp_path / "gate"
    first = fleet.process(threads=1, hold=f"claimed,*,30,{gate}")
    wait_until(Path(f"{gate}.entered").exists, "the first owner is between claim and handling")
    pause(first.pid, books.url)
    second = fleet.process(threads=3, paused_after_seconds=1)
    settle(books)
    Path(f"{gate}.open").touch()
    first.signal(signal.SIGCONT)
    more = [*flows, *resumed(books, first, second)]
    settle(books)
    assert books.problems(more) == []
    assert books.blamed("died") == []
    assert books.blamed("failed") == []
    assert first.logged("lease-lost")


@pytest.mark.more
@pytest.mark.parametrize("store", ["postgres"])
def test_owners_paused_in_their_transactions_lose_them_and_what_they_held_to_another(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """Nobody is left who would kill them: their supervisor is stopped too."""
    flows = [Flow(f"held{n}", "chore", f"late-gate-once={tmp_path}/{n}") for n in range(2)]
    books.start(flows)
    first = fleet.process(threads=2)
    wait_until(lambda: all((tmp_path / f"{n}.entered").exists() for n in range(2)), "both are in their transactions")
    first.signal(signal.SIGSTOP)
    second = fleet.process(threads=2, paused_after_seconds=1)
    settle(books)
    assert books.entries() == 2
    for n in range(2):
        (tmp_path / f"{n}.open").touch()
    first.signal(signal.SIGCONT)
    more = [*flows, *resumed(books, first, second)]
    settle(books)
    assert books.problems(more) == []
    assert books.blamed("died") == []
    assert books.blamed("failed") == []


@pytest.mark.more
@stores.on_both_and_longer
def test_a_worker_that_stands_still_in_its_transaction_is_killed_by_its_supervisor_and_all_others_go_on(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    flows = transfers(40)
    books.start(flows)
    marker = tmp_path / "paused"
    worker = fleet.command("--drain", "--processes", "2", "--threads", "2", pause=f"begun,*,20,{marker}", tune="hung=6")
    wait_until(marker.exists, "one process has stopped itself, with the write lock")
    assert worker.wait() == 0
    assert len(worker.logged("worker-hung")) == 1
    assert books.problems(flows) == []
    assert books.blamed("failed") == []


@pytest.mark.more
@stores.on_both_and_longer
def test_a_supervisor_that_is_paused_loses_its_suspect_to_another_and_changes_nothing_when_it_wakes_up(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [Flow("suspect", "chore", f"kill-once={tmp_path}/died gate-once={gate}"), *transfers(5)]
    books.start(flows)
    first = fleet.command("--threads", "1", tune="death=0.1")
    wait_until(Path(f"{gate}.entered").exists, "the suspect runs alone")
    pause(first.pid, books.url)
    for pid in fleet.pids(PROCESS):
        fleet.end(pid)
    second = fleet.process(threads=1, paused_after_seconds=1)
    wait_until(lambda: second.logged("taken-over"), "the paused supervisor's suspect was given back")
    Path(f"{gate}.open").touch()
    first.signal(signal.SIGCONT)
    settle(books)
    assert books.problems(flows) == []
    assert len(books.blamed("died")) == 1
