"""Messages that kill their process, among healthy ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import stores
from tests.faults.books import Books, Flow, chores, transfers
from tests.faults.scenarios import settle
from tests.faults.worker_fleet import ALONE, PROCESS, WorkerFleet
from tests.waiting import wait_until


@stores.on_both
def test_only_the_messages_that_kill_their_process_become_dead_letters_and_all_others_are_done_once(
    books: Books, fleet: WorkerFleet
) -> None:
    """By a signal, by an exit that says all is well, and by a segmentation fault; before the first entry and after."""
    deadly = [
        Flow("sigkill", fault="bank.transfer.credit:sigkill", dies_at="bank.transfer.credit"),
        Flow("exit", fault="bank.transfer:late-exit", dies_at="bank.transfer"),
        Flow("segfault", fault="bank.done:late-segfault", dies_at="bank.done"),
    ]
    flows = [*transfers(20), *deadly, *transfers(20, name="u")]
    books.start(flows)
    worker = fleet.command("--drain", "--processes", "2", "--threads", "3")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    # The first death, which nobody is blamed for, and three alone.
    assert [(flow, reason, failures, deaths) for flow, _, reason, failures, deaths in books.letters()] == [
        ("exit", "worker-died", 0, 4),
        ("segfault", "worker-died", 0, 4),
        ("sigkill", "worker-died", 0, 4),
    ]
    how = dict(books.rows("SELECT flow_id, causes FROM stagepost_dead_letter"))
    assert "SIGKILL" in how["sigkill"]
    assert "exit code 0" in how["exit"]
    assert "SIGSEGV" in how["segfault"]


@pytest.mark.more
def test_draining_is_not_over_with_a_message_that_leaves_as_if_all_were_well(books: Books, fleet: WorkerFleet) -> None:
    flows = [Flow("exit", "chore", "late-exit", dies_at="bank.chore"), *chores(30)]
    books.start(flows)
    worker = fleet.command("--drain", "--threads", "1", tune="death=0.1")
    assert worker.wait() == 0
    assert books.problems(flows) == []


@stores.on_both
@pytest.mark.more
def test_a_message_that_forks_and_dies_is_a_dead_letter_although_its_child_lives_on(
    books: Books, fleet: WorkerFleet
) -> None:
    flows = [Flow("deadly", "chore", "fork-and-die", dies_at="bank.chore"), *chores(10)]
    books.start(flows)
    worker = fleet.command("--drain", "--threads", "1", tune="death=0.1")
    wait_until(lambda: len(books.blamed("died")) >= 2, "its death alone was seen")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.letters() == [("deadly", "bank.chore", "worker-died", 0, 4)]


@stores.on_both
def test_a_suspect_that_was_only_there_when_another_killed_the_process_is_done_once_and_keeps_its_one_death(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [Flow("bystander", "chore", f"gate-once={gate}"), Flow("deadly", "chore", f"kill-once={tmp_path}/died")]
    books.start(flows[:1])
    worker = fleet.command("--threads", "2", tune="death=0.1")
    wait_until(Path(f"{gate}.entered").exists, "the bystander is in its handler")
    books.start(flows[1:])
    settle(books)
    assert books.problems(flows) == []
    assert sorted(each.split()[1] for each in books.blamed("died")) == ["bystander", "deadly"]
    assert len(worker.logged("worker-ended")) == 1


@stores.on_both
def test_what_a_killed_process_had_claimed_and_not_begun_is_given_back_and_counts_as_nothing(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """Quick ones first, so that the worker claims many at a time; then one that kills it in their midst."""
    flows = [*chores(60), Flow("deadly", "chore", f"kill-once={tmp_path}/died"), *chores(60, name="d")]
    books.start(flows)
    fleet.command("--threads", "1", tune="death=0.1,ahead=60")
    settle(books)
    assert books.problems(flows) == []
    assert [each.split()[1] for each in books.blamed("died")] == ["deadly"]
    assert books.waypoints("returned") > 0


@stores.on_both_and_longer
@pytest.mark.more
def test_a_suspect_whose_child_is_killed_from_outside_is_done_once_in_the_end(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """Twice, as the kernel does when memory is short, and its parent cannot tell who did it."""
    gate = tmp_path / "gate"
    fault = f"kill-once={tmp_path}/died gate-once={gate}1 gate-once={gate}2"
    flows = [Flow("suspect", "chore", fault), *chores(5)]
    books.start(flows)
    fleet.command("--threads", "1", tune="death=0.1")
    for number in (1, 2):
        wait_until(Path(f"{gate}{number}.entered").exists, f"the suspect runs alone for the {number}. time")
        (child,) = fleet.pids(ALONE)
        fleet.end(child)
    settle(books)
    assert books.problems(flows) == []
    assert len(books.blamed("died")) == 3


@stores.on_both_and_longer
@pytest.mark.parametrize("victim", [PROCESS, "stagepost worker"], ids=["a worker process", "the supervisor"])
def test_killing_others_while_a_suspect_runs_alone_counts_no_further_death_of_it(
    victim: str, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [Flow("suspect", "chore", f"kill-once={tmp_path}/died gate={gate}"), *chores(5)]
    books.start(flows)
    fleet.command("--threads", "1", tune="death=0.1")
    wait_until(Path(f"{gate}.entered").exists, "the suspect runs alone")
    for pid in fleet.pids(victim):
        fleet.end(pid)
    Path(f"{gate}.open").touch()
    fleet.command("--threads", "1", tune="death=0.1")
    settle(books)
    assert books.problems(flows) == []
    assert len(books.blamed("died")) == 1


@stores.on_both_and_longer
def test_an_error_whose_text_cannot_be_stored_fails_by_its_policy_like_any_other(
    books: Books, fleet: WorkerFleet
) -> None:
    """Such as one that names a file whose name is not UTF-8: half a surrogate pair goes into no database."""
    flows = [Flow("unprintable", "chore", "fail-unprintably", dies_at="bank.chore"), *transfers(10)]
    books.start(flows)
    worker = fleet.command("--threads", "2")
    settle(books)
    assert books.problems(flows) == []
    assert books.letters() == [("unprintable", "bank.chore", "exhausted", 3, 0)]
    assert worker.logged("worker-ended") == []
