"""The ledger is in one PostgreSQL database and the messages are in another: owners that stand still between the two,
and rows that somebody else has locked in one of them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import STEPS, Step
from tests.faults.books import Flow, transfers
from tests.faults.scenarios import paused_in_its_handler, resumed, settle
from tests.faults.two_books import SIDES, TwoBooks
from tests.faults.worker_fleet import Member, WorkerFleet
from tests.waiting import wait_until

MODES: list[Mode] = ["outbox", "two_phase"]
# In doubt, and overruled; the others with ``make soak``.
SAMPLED = {("two_phase", Step.PREPARED)}

in_both_modes = pytest.mark.parametrize("store", [f"postgres-{mode}" for mode in MODES])


def judged(books: TwoBooks, flows: Sequence[Flow]) -> list[str]:
    return [*books.problems(flows), *books.blamed("failed"), *books.blamed("died")]


def somebody_waits(books: TwoBooks) -> bool:
    return any(books.side(side).is_locked_out() for side in SIDES)


@pytest.mark.parametrize(
    ("store", "step"),
    [
        pytest.param(f"postgres-{mode}", step, marks=[] if (mode, step) in SAMPLED else pytest.mark.soak)
        for mode in MODES
        for step in STEPS[mode]
    ],
)
def test_an_owner_paused_at_any_step_between_two_databases_changes_nothing_when_it_wakes_up_and_works_on(
    step: Step, books: TwoBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    flows = transfers(10)
    books.start(flows)
    # One thread: with more, another may stand still in its transaction too.
    first = fleet.process(threads=1, pause=f"{step},*,20,{tmp_path}/paused")
    wait_until((tmp_path / "paused").exists, "the first owner has stopped itself")
    second = fleet.process(threads=3, paused_after_seconds=1)

    def has_done_what_it_can() -> bool:
        return books.is_drained() or (bool(second.logged("taken-over")) and somebody_waits(books))

    wait_until(has_done_what_it_can, "the second one is done, or waits for the first")
    first.signal(signal.SIGCONT)
    settle(books)
    more = [*flows, *resumed(books, first, second)]
    settle(books)
    assert judged(books, more) == []


@pytest.mark.soak
@in_both_modes
def test_an_owner_paused_in_its_handler_before_either_database_knows_of_it_changes_nothing_when_it_wakes_up(
    books: TwoBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert paused_in_its_handler(books, fleet, tmp_path) == []
    assert books.waypoints("returned", "paused") == 1


def beats_on(books: TwoBooks, worker: Member) -> None:
    beats = wait_until(lambda: books.side("queue").beats().get(worker.pid, 0), "its heart beats")
    wait_until(lambda: books.side("queue").beats().get(worker.pid, 0) > beats + 2, "its heart beats on")


@pytest.mark.soak
@in_both_modes
def test_a_message_that_somebody_else_has_locked_in_the_queue_keeps_nobody_but_itself_waiting(
    books: TwoBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [Flow("locked", "chore", f"gate={gate}"), *transfers(20)]
    books.start(flows)
    worker = fleet.process(threads=2)
    wait_until(Path(f"{gate}.entered").exists, "it is in its handler")
    with books.queue.connected() as somebody:
        somebody.execute("SELECT 1 FROM stagepost_ready WHERE flow_id = 'locked' FOR UPDATE")
        Path(f"{gate}.open").touch()
        # In the mode outbox its own work is committed by then.
        done = 101 if books.mode == "outbox" else 100
        wait_until(lambda: books.entries() == done and books.waiting() == 1, "all others are done")
        wait_until(lambda: somebody_waits(books), "its own attempt waits")
        beats_on(books, worker)
        assert books.waiting() == 1
    settle(books)
    assert worker.is_running()
    assert judged(books, flows) == []


@pytest.mark.soak
@in_both_modes
def test_a_table_of_the_handlers_that_somebody_else_has_locked_for_a_while_counts_against_no_message(
    books: TwoBooks, fleet: WorkerFleet
) -> None:
    flows = transfers(20)
    worker = fleet.process(threads=2)
    with books.connected() as somebody:
        somebody.execute("LOCK TABLE ledger IN SHARE MODE")
        books.start(flows)
        wait_until(lambda: somebody_waits(books), "handlers wait")
        beats_on(books, worker)
    settle(books)
    assert worker.is_running()
    assert judged(books, flows) == []


def admitted_by_somebody(books: TwoBooks, somebody: psycopg.Connection[object]) -> None:
    (message,) = books.rows("SELECT message_id FROM stagepost_ready WHERE flow_id = 'held'")[0]
    somebody.execute(
        "INSERT INTO stagepost_inbox (stage, message_id, digest, handled_at, leased_until, hour)"
        " VALUES ('bank.chore', %s, '', 0, 0, 0)",
        [message],
    )


def marked_by_somebody(books: TwoBooks, somebody: psycopg.Connection[object]) -> None:
    somebody.execute("SELECT 1 FROM stagepost_inbox WHERE stage = 'bank.chore' FOR UPDATE")


def decided_by_somebody(books: TwoBooks, somebody: psycopg.Connection[object]) -> None:
    ((gid,),) = books.queue.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    somebody.execute("INSERT INTO stagepost_decision (gid, is_commit, decided_at) VALUES (%s, false, 0)", [gid])


LOCKS: dict[tuple[Mode, Step], Callable[[TwoBooks, psycopg.Connection[object]], None]] = {
    ("outbox", Step.CLAIMED): admitted_by_somebody,
    ("outbox", Step.CONFIRMED): marked_by_somebody,
    ("two_phase", Step.PREPARED): decided_by_somebody,
}


@pytest.mark.parametrize(
    "is_long", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["for a moment", "for longer than is waited"]
)
@pytest.mark.parametrize(("store", "step"), [(f"postgres-{mode}", step) for mode, step in LOCKS])
def test_what_somebody_else_has_locked_of_the_books_that_two_databases_keep_of_each_other_counts_against_no_message(
    step: Step, is_long: bool, books: TwoBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """Somebody changes his mind in the end."""
    gate = tmp_path / "gate"
    held = Flow("held", "chore")
    books.start([held])
    worker = fleet.process(threads=2, hold=f"{step},bank.chore,1,{gate}")
    wait_until(Path(f"{gate}.entered").exists, f"it is at the step {step}")
    with closing(psycopg.connect(books.url)) as somebody:
        LOCKS[books.mode, step](books, somebody)
        Path(f"{gate}.open").touch()
        wait_until(lambda: somebody_waits(books), "it waits")
        flows = transfers(5)
        books.start(flows)
        wait_until(lambda: books.entries() >= 25, "all others are done")
        if is_long:
            beats_on(books, worker)
    settle(books)
    assert worker.is_running()
    assert judged(books, [held, *flows]) == []
