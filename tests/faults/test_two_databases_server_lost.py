"""The ledger is in one PostgreSQL server and the messages are in another, and one of the two is killed while workers
work; and comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import STEPS, Step
from tests.faults.books import Books, Flow, transfers
from tests.faults.campaign import get_on
from tests.faults.postgres_books import PostgresBooks
from tests.faults.scenarios import settle
from tests.faults.two_books import SIDES, Side, TwoBooks
from tests.faults.worker_fleet import Member, WorkerFleet
from tests.servers.postgres import OwnServer
from tests.waiting import wait_until

MODES: list[Mode] = ["outbox", "two_phase"]
# Between the two commits, where the one is there that has not committed yet, with ``make test-more``; the others with
# ``make soak``.
SAMPLED: set[tuple[Mode, Side, Step]] = {("outbox", "queue", Step.COMMITTED), ("two_phase", "business", Step.PREPARED)}

STAGES_THREAD = {"stagepost.transaction.attempt", "stagepost.transaction.outbox", "stagepost.runtime.loop"}


@pytest.fixture
def books(mode: Mode, side: Side, mortal_postgres: OwnServer, new_postgres: Callable[[], str]) -> Iterator[TwoBooks]:
    """``side`` is on the server that is killed."""
    url = mortal_postgres.new_database()
    mortal, other = PostgresBooks(url), PostgresBooks(new_postgres())
    books = TwoBooks(mortal, other, mode) if side == "business" else TwoBooks(other, mortal, mode)
    yield books
    books.close()
    mortal_postgres.drop_database(url)


def has_met_no_server(worker: Member) -> bool:
    """The stage's thread itself: others of the process do so all the time."""
    met = [*worker.logged("database-unavailable"), *worker.logged("not-marked")]
    return any(each["logger"] in STAGES_THREAD for each in met)


def stop(books: Books, server: OwnServer) -> None:
    books.close()
    server.stop("immediate")


@pytest.mark.parametrize(
    ("mode", "side", "step"),
    [
        pytest.param(mode, side, step, marks=pytest.mark.more if (mode, side, step) in SAMPLED else pytest.mark.soak)
        for mode in MODES
        for side in SIDES
        for step in STEPS[mode]
    ],
)
def test_one_of_two_servers_that_is_gone_for_a_while_from_a_step_of_a_stage_on_loses_and_doubles_nothing(
    step: Step, books: TwoBooks, mortal_postgres: OwnServer, fleet: WorkerFleet, tmp_path: Path
) -> None:
    flows = transfers(20)
    books.start(flows)
    gate = tmp_path / "gate"
    worker = fleet.command("--threads", "1", hold=f"{step},*,7,{gate}", tune="retry=0.1")
    wait_until(Path(f"{gate}.entered").exists, f"it is at the step {step}")
    stop(books, mortal_postgres)
    Path(f"{gate}.open").touch()
    wait_until(lambda: has_met_no_server(worker), "it goes on, and meets no server")
    mortal_postgres.start()
    settle(books)
    assert worker.logged("worker-ended") == []
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []


@pytest.mark.soak
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("mode", MODES)
def test_one_of_two_servers_that_is_stopped_at_once_over_and_over_while_workers_work_loses_and_doubles_nothing(
    books: TwoBooks, mortal_postgres: OwnServer, fleet: WorkerFleet
) -> None:
    deadly = Flow("deadly", fault="bank.fraud:late-sigkill", dies_at="bank.fraud")
    flows = [*transfers(60, "slow=0.01"), deadly, *transfers(60, "slow=0.01", name="u")]
    books.start(flows)
    worker = fleet.command("--processes", "2", "--threads", "2", tune="death=0.1")
    for _ in range(4):
        get_on(books, 60)
        stop(books, mortal_postgres)
        mortal_postgres.start()
    settle(books)
    assert worker.is_running()
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert [(flow, reason, deaths) for flow, _, reason, _, deaths in books.letters()] == [("deadly", "worker-died", 4)]
