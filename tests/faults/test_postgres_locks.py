"""Rows that somebody else holds, and owners that meet at one message."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults.books import Flow, transfers
from tests.faults.postgres_books import PostgresBooks
from tests.faults.scenarios import settle
from tests.faults.worker_fleet import WorkerFleet
from tests.waiting import wait_until


@pytest.fixture
def store() -> str:
    return "postgres"


def test_of_two_owners_that_handle_one_message_at_once_the_fence_lets_one_through(
    books: PostgresBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """The first waits at a gate and is paused; the second takes over, and both go through the next one together."""
    first_gate, both = tmp_path / "first", tmp_path / "both"
    fault = f"bank.transfer:gate-once={first_gate} bank.transfer:count={tmp_path}/count bank.transfer:gate={both}"
    flows = [Flow("contested", fault=fault), *transfers(5)]
    books.start(flows)
    first = fleet.process(threads=1)
    wait_until(Path(f"{first_gate}.entered").exists, "the first owner is in its handler")
    first.signal(signal.SIGSTOP)
    second = fleet.process(threads=1, paused_after_seconds=1)
    wait_until(Path(f"{both}.entered").exists, "the second owner is in its handler")
    Path(f"{first_gate}.open").touch()
    first.signal(signal.SIGCONT)
    wait_until(lambda: (tmp_path / "count").stat().st_size == 2, "both are in it")
    Path(f"{both}.open").touch()
    settle(books)
    wait_until(lambda: first.logged("lease-lost"), "the first one was told")
    assert not second.logged("lease-lost")
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []


def test_a_row_that_somebody_else_has_locked_keeps_nobody_but_its_own_message_waiting(
    books: PostgresBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [Flow("locked", "chore", f"gate={gate}"), *transfers(20)]
    books.start(flows)
    worker = fleet.process(threads=2)
    wait_until(Path(f"{gate}.entered").exists, "it is in its handler")
    with books.connected() as somebody:
        somebody.execute("SELECT 1 FROM stagepost_ready WHERE flow_id = 'locked' FOR UPDATE")
        Path(f"{gate}.open").touch()
        wait_until(lambda: books.entries() == 100, "all others are done")
        beats = books.beats()[worker.pid]
        wait_until(lambda: books.beats()[worker.pid] > beats + 2, "its heart beats on")
        assert books.waiting() == 1
    settle(books)
    assert worker.is_running()
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []


@pytest.mark.more
def test_an_owner_that_stands_still_in_its_transaction_keeps_nobody_from_taking_over_from_others(
    books: PostgresBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """No supervisor is there to kill it: its machine may be gone, and the server has not noticed."""
    still, dying = tmp_path / "still", tmp_path / "dying"
    flows = [Flow("still", "chore", f"late-gate-once={still}")]
    books.start(flows)
    first = fleet.process(threads=1)
    wait_until(Path(f"{still}.entered").exists, "the first owner has taken its message, and has not committed")
    first.signal(signal.SIGSTOP)
    flows.append(Flow("dying", fault=f"bank.transfer:gate-once={dying}"))
    books.start(flows[1:])
    third = fleet.process(threads=1)
    wait_until(Path(f"{dying}.entered").exists, "another one is in its handler")
    # A busy machine delays the heartbeat of a sound process by seconds. The one that is killed must not look paused.
    second = fleet.process(threads=1, paused_after_seconds=6)
    wait_until(
        lambda: books.beats().get(second.pid, 0) > 9, "a third one had time to see that the first one stands still"
    )
    third.kill()
    wait_until(lambda: books.blamed("died"), "what the dead one held has been taken over")
    # For the suspect, which runs alone under a supervisor.
    fleet.command("--threads", "1", tune="death=0.1")
    wait_until(lambda: books.number("SELECT count(*) FROM ledger WHERE flow_id = 'dying'") == 5, "and is done")
    Path(f"{still}.open").touch()
    first.signal(signal.SIGCONT)
    settle(books)
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert [each.split()[1] for each in books.blamed("died")] == ["dying"]
