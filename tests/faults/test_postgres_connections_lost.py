"""Connections that end while they are needed: by the server, or on their way."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagepost import OutcomeUnknown
from stagepost.transaction.steps import STEPS, Step
from tests.faults.bank import Transfer, open_bank
from tests.faults.books import Flow, transfers
from tests.faults.campaign import get_on
from tests.faults.postgres_books import PostgresBooks
from tests.faults.scenarios import settle, struck_at_a_step
from tests.faults.worker_fleet import WorkerFleet
from tests.servers.proxy import Loss, Proxy
from tests.waiting import wait_until

# What is asked in a transaction, and in none of another kind.
OF_A_STAGE = "DELETE FROM stagepost_ready"
OF_A_CLAIM = "SET LOCAL synchronous_commit"
OF_A_START = "INSERT INTO stagepost_accepted"
OF_A_RETURN = "SET owner = NULL"

LOSSES: list[Loss] = ["of the question", "of the answer"]


@pytest.fixture
def store() -> str:
    return "postgres"


# Before anything is said, in the midst of it, at the commit, and when it was answered; the others with ``make soak``.
SAMPLED = {Step.CLAIMED, Step.HANDLED, Step.COMMITTING, Step.COMMITTED}


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[] if step in SAMPLED else pytest.mark.soak) for step in STEPS["single"]]
)
def test_a_stage_whose_connection_is_ended_by_the_server_at_any_step_is_done_once_and_nobody_is_blamed(
    step: Step, books: PostgresBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    def strike() -> None:
        assert books.terminate("state ^@ 'idle in transaction' OR query = 'COMMIT'") >= 1

    assert struck_at_a_step(books, fleet, tmp_path, step, strike) == []


@pytest.mark.parametrize("moment", ["", "late-"], ids=["before it wrote", "after it wrote"])
def test_a_handler_that_meets_the_end_of_its_connection_is_not_to_blame(
    moment: str, books: PostgresBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """``count`` is passed each time, so that the handler is known to have run again."""
    fault = f"count={tmp_path}/count {moment}gate-once={tmp_path}/gate"
    flows = [Flow("struck", fault=f"bank.transfer:{fault}"), *transfers(10)]
    books.start(flows)
    fleet.command("--threads", "2")
    wait_until((tmp_path / "gate.entered").exists, "it is in its handler")
    wait_until(lambda: books.entries() == 50, "the others are done")
    assert books.terminate("application_name = 'stagepost'") >= 3
    (tmp_path / "gate.open").touch()
    settle(books)
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []


@pytest.mark.more
@pytest.mark.more
def test_an_incarnation_whose_control_connection_ends_again_and_again_stays_alive_and_keeps_its_claims(
    books: PostgresBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [Flow("slow", "chore", f"gate={gate}"), *transfers(10)]
    books.start(flows)
    one = fleet.process(threads=1)
    wait_until(Path(f"{gate}.entered").exists, "one is in its handler")
    other = fleet.process(threads=1)
    wait_until(lambda: len(books.controls()) == 2, "another one lives, and looks who does")
    for _ in range(4):
        assert books.terminate(f"pid = {books.controls()[one.pid]}") == 1
        wait_until(lambda: one.pid in books.controls(), "it has shown that it lives")
    beats = books.beats()
    wait_until(lambda: all(now > beats[process] + 3 for process, now in books.beats().items()), "all had time to look")
    Path(f"{gate}.open").touch()
    settle(books)
    assert books.problems(flows) == []
    assert books.blamed("died") == []
    assert books.blamed("failed") == []
    assert books.waypoints("returned", "slow") == 0
    assert not other.logged("taken-over")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "transaction",
    [pytest.param(OF_A_STAGE, id="a stage"), pytest.param(OF_A_CLAIM, id="a claim", marks=pytest.mark.more)],
)
def test_a_commit_that_is_answered_by_a_cut_connection_is_neither_lost_nor_doubled(
    transaction: str, loss: Loss, books: PostgresBooks, fleet: WorkerFleet, proxy: Proxy
) -> None:
    flows = transfers(20)
    books.start(flows)
    traps = [proxy.trap(transaction, loss) for _ in range(5)]
    fleet.command("--threads", "2")
    settle(books)
    assert all(trap.sprung.is_set() for trap in traps)
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "transaction",
    [pytest.param(OF_A_STAGE, id="a stage"), pytest.param(OF_A_CLAIM, id="a claim", marks=pytest.mark.more)],
)
def test_a_commit_that_is_answered_by_a_cut_connection_to_a_server_that_is_gone_for_a_while_is_not_lost_either(
    transaction: str, loss: Loss, books: PostgresBooks, fleet: WorkerFleet, proxy: Proxy
) -> None:
    """So that nobody can ask at once what became of it."""
    flows = transfers(20)
    books.start(flows)
    trap = proxy.trap(transaction, loss, is_last=True)
    worker = fleet.command("--threads", "2")
    wait_until(trap.sprung.is_set, "a commit was not answered")
    wait_until(lambda: worker.logged("database-unavailable"), "the server is not there")
    proxy.let_in()
    settle(books)
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []


@pytest.mark.parametrize("loss", LOSSES)
def test_a_return_that_is_answered_by_a_cut_connection_leaves_nothing_behind(
    loss: Loss, books: PostgresBooks, fleet: WorkerFleet, proxy: Proxy, tmp_path: Path
) -> None:
    """A slow one that was claimed last has nothing behind it to give back: then the next slow one may."""
    gates = [tmp_path / f"gate{number}" for number in range(8)]
    flows = [Flow(f"slow{number}", "chore", f"gate={gate}") for number, gate in enumerate(gates)]
    flows = [each for number, slow in enumerate(flows) for each in (*transfers(10, name=f"t{number}-"), slow)]
    books.start(flows)
    trap = proxy.trap(OF_A_RETURN, loss)
    worker = fleet.command("--threads", "1", tune="ahead=60")
    for gate in gates:
        wait_until(Path(f"{gate}.entered").exists, "a slow one is in its handler")
        if books.number("SELECT count(*) FROM stagepost_ready WHERE owner IS NOT NULL") > 1:
            break
        Path(f"{gate}.open").touch()
    wait_until(trap.sprung.is_set, "it gave back what waits")
    for gate in gates:
        Path(f"{gate}.open").touch()
    settle(books)
    assert worker.is_running()
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []


@pytest.mark.parametrize("loss", LOSSES)
def test_a_start_that_is_answered_by_a_cut_connection_says_so_and_may_be_repeated(
    loss: Loss, books: PostgresBooks, fleet: WorkerFleet, proxy: Proxy
) -> None:
    bank = open_bank(proxy.url)
    order = Transfer("t0/from", "t0/to", 100)
    trap = proxy.trap(OF_A_START, loss)
    with pytest.raises(OutcomeUnknown) as caught:
        bank.app.start(bank.transfer, order, flow_id="t0", reply_to=bank.done)
    assert trap.sprung.is_set()
    stood = loss == "of the answer"
    assert books.waiting() == (1 if stood else 0)
    started = bank.app.start(bank.transfer, order, flow_id="t0", reply_to=bank.done)
    assert started.is_new is not stood
    assert caught.value.message_ids == (started.message_id,)
    bank.app.close()
    assert fleet.command("--drain").wait() == 0
    assert books.problems(transfers(1)) == []


@pytest.mark.parametrize("is_reset", [True, pytest.param(False, marks=pytest.mark.more)], ids=["reset", "closed"])
def test_all_connections_cut_again_and_again_on_their_way_lose_and_double_nothing(
    is_reset: bool, books: PostgresBooks, fleet: WorkerFleet, proxy: Proxy
) -> None:
    flows = transfers(100, "slow=0.005")
    books.start(flows)
    worker = fleet.command("--processes", "2", "--threads", "2")
    for _ in range(8):
        get_on(books, 40)
        proxy.cut(is_reset=is_reset)
    settle(books)
    assert worker.is_running()
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []


@pytest.mark.more
def test_a_network_that_swallows_everything_for_a_while_loses_and_doubles_nothing(
    books: PostgresBooks, fleet: WorkerFleet, proxy: Proxy, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [*transfers(20), Flow("slow", "chore", f"gate={gate}"), *transfers(20, name="u")]
    books.start(flows)
    worker = fleet.command("--threads", "1")
    wait_until(Path(f"{gate}.entered").exists, "one is in its handler")
    with proxy.black_hole():
        Path(f"{gate}.open").touch()
        fleet.url = books.url
        other = fleet.process(threads=1)
        wait_until(lambda: books.beats().get(other.pid, 0) > 3, "another one lives, with a way of its own")
    settle(books)
    assert worker.is_running()
    assert other.is_running()
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []


@pytest.mark.more
def test_a_slow_network_changes_nothing_but_the_time_it_takes(
    books: PostgresBooks, fleet: WorkerFleet, proxy: Proxy
) -> None:
    flows = transfers(5)
    books.start(flows)
    with proxy.delayed(0.05):
        worker = fleet.command("--drain", "--threads", "4")
        assert worker.wait() == 0
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []
