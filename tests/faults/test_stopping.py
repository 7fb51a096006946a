"""Workers that are told to stop: in good order, at once, or for longer than they may take."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults import stores
from tests.faults.books import Books, Flow, chores, transfers
from tests.faults.scenarios import settle, stopped_in_its_handler
from tests.faults.worker_fleet import PROCESS, WorkerFleet
from tests.waiting import wait_until


@stores.on_both
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_told_to_stop_finishes_what_runs_and_gives_back_what_it_claimed(
    number: signal.Signals, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [*chores(60), Flow("slow", "chore", f"gate={gate}"), *chores(40, name="d")]
    books.start(flows)
    worker = fleet.command("--threads", "1", tune="ahead=10")
    wait_until(Path(f"{gate}.entered").exists, "it is in its handler")
    worker.signal(number)
    wait_until(lambda: claimed(books) == 1, "all that it held but did not run was given back")
    Path(f"{gate}.open").touch()
    assert worker.wait() == 0
    assert claimed(books) == 0
    assert books.rows("SELECT 1 FROM ledger WHERE flow_id = 'slow'")
    assert books.waypoints("returned") > 0
    assert books.registered() == 0
    assert fleet.command("--drain").wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("died") == []
    assert books.blamed("failed") == []


@stores.on_both
def test_what_still_runs_when_the_grace_time_ends_is_redelivered_uncounted(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert stopped_in_its_handler(books, fleet, tmp_path) == []


@stores.on_both_and_longer
def test_a_second_signal_stops_at_once_and_what_ran_is_redelivered_uncounted(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [*chores(60), Flow("slow", "chore", f"gate-once={gate}"), *chores(40, name="d")]
    books.start(flows)
    worker = fleet.command("--threads", "1", "--grace", "3600")
    wait_until(Path(f"{gate}.entered").exists, "it is in its handler")
    worker.signal(signal.SIGTERM)
    wait_until(lambda: any("stopping:" in each["text"] for each in worker.lines()), "the first signal has got through")
    worker.signal(signal.SIGTERM)
    worker.wait()
    assert fleet.pids(PROCESS) == []
    assert fleet.command("--drain").wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("died") == []
    assert books.blamed("failed") == []


@stores.on_both_and_longer
def test_two_signals_in_quick_succession_stop_at_once_too(books: Books, fleet: WorkerFleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    flows = [Flow("slow", "chore", f"gate-once={gate}"), *transfers(5)]
    books.start(flows)
    worker = fleet.command("--threads", "2", "--grace", "3600")
    wait_until(Path(f"{gate}.entered").exists, "it is in its handler")
    worker.signal(signal.SIGSTOP)
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGINT)
    worker.signal(signal.SIGCONT)
    worker.wait()
    assert fleet.command("--drain").wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("died") == []


@stores.on_both_and_longer
def test_a_process_says_by_its_exit_code_whether_it_stopped_in_good_order(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    idle = fleet.process()
    wait_until(lambda: books.hearts_beat_since(0) == 1, "it lives")
    idle.signal(signal.SIGTERM)
    assert idle.wait() == 0
    books.start([Flow("slow", "chore", f"gate={tmp_path}/gate")])
    busy = fleet.process(grace=0.3)
    wait_until((tmp_path / "gate.entered").exists, "it is in its handler")
    busy.signal(signal.SIGTERM)
    assert busy.wait() == 1


@stores.on_both_and_longer
def test_a_process_that_is_told_to_stop_before_it_has_begun_stops_in_good_order(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """While it imports the app, which may take a while."""
    for _ in range(5):
        early = fleet.process(tune=f"import={tmp_path}/importing")
        wait_until((tmp_path / "importing").exists, "it imports the app")
        early.signal(signal.SIGTERM)
        assert early.wait() == 0
        (tmp_path / "importing").unlink()


@stores.on_both_and_longer
def test_the_command_says_by_its_exit_code_that_it_gave_up_what_ran(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    books.start([Flow("slow", "chore", f"gate={tmp_path}/gate")])
    worker = fleet.command("--threads", "1", "--grace", "0.3")
    wait_until((tmp_path / "gate.entered").exists, "it is in its handler")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1


@stores.on_both_and_longer
def test_a_draining_worker_that_is_told_to_stop_does_not_say_that_it_has_drained(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    books.start([Flow("slow", "chore", f"gate={tmp_path}/gate"), *transfers(5)])
    worker = fleet.command("--threads", "1", "--drain")
    wait_until((tmp_path / "gate.entered").exists, "it is in its handler")
    worker.signal(signal.SIGTERM)
    (tmp_path / "gate.open").touch()
    assert worker.wait() == 1
    assert not any("drained" in each["text"] and "before" not in each["text"] for each in worker.lines())


@stores.on_both
def test_a_worker_with_the_write_lock_and_much_to_give_back_stops_when_its_grace_time_ends(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """What it wants to give back needs the lock that its own handler holds."""
    gate = tmp_path / "gate"
    flows = [*chores(60), Flow("slow", "chore", f"late-gate-once={gate}"), *chores(40, name="d")]
    books.start(flows)
    worker = fleet.process(threads=1, grace=0.5)
    wait_until(Path(f"{gate}.entered").exists, "it is in its handler, with the write lock")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1
    fleet.command("--threads", "2")
    settle(books)
    assert books.problems(flows) == []
    assert books.blamed("died") == []
    assert books.blamed("failed") == []


@stores.on_both_and_longer
def test_a_suspect_that_runs_alone_when_its_supervisor_is_told_to_stop_is_given_back_uncounted(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [Flow("suspect", "chore", f"kill-once={tmp_path}/died gate-once={gate}"), *transfers(5)]
    books.start(flows)
    worker = fleet.command("--threads", "1", tune="death=0.1")
    wait_until(Path(f"{gate}.entered").exists, "the suspect runs alone")
    worker.signal(signal.SIGTERM)
    worker.wait()
    assert fleet.pids() == []
    assert fleet.command("--drain").wait() == 0
    assert books.problems(flows) == []
    assert len(books.blamed("died")) == 1


def claimed(books: Books) -> int:
    return books.number("SELECT count(*) FROM stagepost_ready WHERE owner IS NOT NULL")


def test_a_callback_that_never_returns_keeps_no_worker_from_draining(books: Books, fleet: WorkerFleet) -> None:
    flows = [*chores(2, "call-back-for-ever"), *chores(5, name="d")]
    books.start(flows)
    worker = fleet.command("--drain", "--grace", "0.5", "--threads", "2")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert len(worker.logged("after-commit-stuck")) == 2
