"""Handlers that take longer than their time limit: those that yield to the interrupt, and those that do not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import pytest

from tests.faults import stores
from tests.faults.books import Books, Flow, chores
from tests.faults.scenarios import settle, stuck
from tests.faults.worker_fleet import WorkerFleet
from tests.waiting import wait_until

STUBBORN = ("stuck-once", "late-stuck-once", "swallow-once", "late-swallow-once")


@stores.on_both_and_longer
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("chore", "late-spin"),
        ("errand", "late-sleep"),
        *(
            pytest.param(*each, marks=pytest.mark.more)
            for each in (
                ("chore", "spin"),
                ("chore", "late-long-statement"),
                ("chore", "swallow-and-write"),
                ("errand", "sleep"),
            )
        ),
    ],
)
def test_a_handler_that_yields_to_the_interrupt_fails_by_its_policy_and_its_process_stays(
    kind: Literal["chore", "errand"], fault: str, books: Books, fleet: WorkerFleet
) -> None:
    slow = Flow("slow", kind, fault, dies_at=f"bank.{kind}")
    flows = [*chores(10), slow, *chores(10, name="d")]
    books.start(flows)
    # A sound handler beside one that spins may take a second on a busy machine.
    worker = fleet.command("--drain", "--threads", "2", time_limit="2")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.letters() == [("slow", f"bank.{kind}", "exhausted", 3, 0)]
    ((causes,),) = books.rows("SELECT causes FROM stagepost_dead_letter")
    assert "TimeLimitExceeded" in causes
    assert books.blamed("died") == []
    assert len(books.blamed("failed")) == 3
    assert worker.logged("worker-ended") == []


@pytest.mark.parametrize(
    ("store", "fault"),
    [
        ("sqlite", "late-stuck-once"),
        *(pytest.param("sqlite", each, marks=pytest.mark.more) for each in STUBBORN if each != "late-stuck-once"),
        *(
            pytest.param("postgres", fault, marks=pytest.mark.more if fault == "late-stuck-once" else pytest.mark.soak)
            for fault in STUBBORN
        ),
    ],
)
def test_a_handler_that_does_not_yield_fails_once_and_its_process_is_replaced_and_its_siblings_are_not_blamed(
    fault: str, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert stuck(books, fleet, tmp_path, fault) == []


@pytest.mark.more
@stores.on_both_and_longer
def test_a_handler_that_never_yields_becomes_a_dead_letter_by_its_failures_and_not_by_deaths(
    books: Books, fleet: WorkerFleet
) -> None:
    flows = [Flow("stuck", "chore", "stuck", dies_at="bank.chore"), *chores(10)]
    books.start(flows)
    worker = fleet.command("--drain", "--grace", "0.5", "--threads", "2", time_limit="1", tune="yield=0.3")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.letters() == [("stuck", "bank.chore", "exhausted", 3, 0)]
    assert books.blamed("died") == []


@pytest.mark.more
@stores.on_both_and_longer
def test_two_handlers_that_get_stuck_one_after_the_other_both_count_as_failures(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """The second one does so while the process already waits for what else runs in it."""
    first = tmp_path / "first"
    flows = [Flow("first", "chore", f"stuck-once={first}"), Flow("second", "chore", f"stuck-once={tmp_path}/second")]
    books.start(flows[:1])
    worker = fleet.command("--drain", "--grace", "4", "--threads", "2", time_limit="0.5", tune="yield=1,death=0.1")
    wait_until(
        lambda: first.exists() and time.time() - first.stat().st_mtime > 0.4, "the first one has its time behind it"
    )
    books.start(flows[1:])
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("died") == []


@stores.on_both_and_longer
@pytest.mark.more
def test_a_handler_stuck_with_the_write_lock_does_not_keep_its_process_from_being_replaced(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """Quick ones first, so that the process holds messages it wants to give back, for which it needs that lock."""
    flows = [
        *chores(60),
        Flow("stuck", "chore", f"late-stuck-once={tmp_path}/stuck"),
        *chores(40, name="d"),
    ]
    books.start(flows)
    # Longer than a message may wait for a thread before its process wants to give it back.
    worker = fleet.command("--drain", "--grace", "0.5", "--threads", "1", time_limit="2", tune="yield=0.5")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("died") == []
    assert [each.split()[1] for each in books.blamed("failed")] == ["stuck"]


@pytest.mark.more
@stores.on_both_and_longer
def test_a_handler_stuck_in_c_with_pythons_lock_ends_by_its_failures_and_takes_nobody_along(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """Its process cannot say anything any more. It is killed for that, which is a death: but one only."""
    flows = [Flow("stuck", "chore", "stuck-with-the-lock", dies_at="bank.chore"), *chores(10)]
    books.start(flows)
    # A busy machine delays the heartbeat of a sound process by seconds.
    tuned = "hung=5,silent=5,death=0.1"
    worker = fleet.command("--drain", "--threads", "3", time_limit="1", tune=tuned)
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.letters() == [("stuck", "bank.chore", "exhausted", 3, 1)]


@stores.on_both_and_longer
@pytest.mark.more
def test_what_waits_for_the_database_is_not_over_its_time(books: Books, fleet: WorkerFleet, tmp_path: Path) -> None:
    holder, lock, waiter = (tmp_path / name for name in ("holder", "lock", "waiter"))
    flows = [Flow("holder", "chore", f"gate={holder} late-gate={lock}"), Flow("waiter", "chore", f"gate={waiter}")]
    books.start(flows[:1])
    fleet.process(threads=1)
    wait_until(Path(f"{holder}.entered").exists, "the one that will hold the write lock is in its handler")
    books.start(flows[1:])
    fleet.process(threads=1, time_limit="5")
    wait_until(Path(f"{waiter}.entered").exists, "the one that will wait for it is in its handler")
    Path(f"{holder}.open").touch()
    wait_until(Path(f"{lock}.entered").exists, "the write lock is held")
    Path(f"{waiter}.open").touch()
    began = time.time()
    wait_until(lambda: books.hearts_beat_since(began + 6) == 2, "the other one has waited longer than its limit")
    Path(f"{lock}.open").touch()
    settle(books)
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
