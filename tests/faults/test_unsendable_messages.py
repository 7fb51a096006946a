"""One message that the queue's database never takes, among healthy ones, while workers are killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from stagepost.transaction.steps import Step
from tests.faults.books import Flow, transfers
from tests.faults.campaign import get_on
from tests.faults.scenarios import settle
from tests.faults.two_books import TwoBooks
from tests.faults.worker_fleet import PROCESS, WorkerFleet
from tests.processes import kill
from tests.waiting import wait_until

TUNE = "death=0.1,restart=0.1,retry=0.1,unsendable=0.02"

# Before it is handled, between the two commits, and before it is known to be sent. A fourth death would bury it.
KILLS = (Step.CLAIMED, Step.COMMITTED, Step.DISPATCHED)


@pytest.fixture
def store() -> str:
    return "postgres-outbox"


def refuse(books: TwoBooks, flow_id: str, stage: str) -> None:
    """For a reason that does not pass."""
    with books.queue.connected() as queue:
        queue.execute(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = 'P0001'; END $$"
        )
        queue.execute(
            "CREATE TRIGGER no BEFORE INSERT ON stagepost_ready FOR EACH ROW "
            f"WHEN (NEW.flow_id = '{flow_id}' AND NEW.stage = '{stage}') EXECUTE FUNCTION no()"
        )
        queue.commit()


def kill_over_and_over(books: TwoBooks, fleet: WorkerFleet, kills: int) -> None:
    random = Random(kills)
    for _ in range(kills):
        get_on(books, random.randint(1, 8))
        kill(random.choice(wait_until(lambda: fleet.pids(PROCESS), "there is somebody to kill")))


def judged(books: TwoBooks, flows: Sequence[Flow]) -> list[str]:
    return [*books.problems(flows), *books.blamed("failed")]


def reasons(books: TwoBooks) -> list[tuple[str, str]]:
    return [(flow, reason) for flow, _, reason, *_ in books.letters()]


@pytest.mark.more
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_one_of_several_that_a_stage_sends_is_unsendable_once_and_all_others_go_whoever_is_killed_meanwhile(
    kills: int, books: TwoBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    refuse(books, "refused", "bank.errand")
    refused = Flow("refused", "round", dies_at="bank.errand")
    flows = [refused, *(Flow(f"round{number}", "round") for number in range(3)), *transfers(10 * kills, "slow=0.01")]
    books.start([refused])
    fleet.command(
        "--threads", "2", tune=TUNE, kill=";".join(f"{step},bank.round,1,{tmp_path}/{step}" for step in KILLS)
    )
    wait_until((tmp_path / Step.DISPATCHED).exists, "it is killed at each of these steps")
    books.start(flows[1:])
    kill_over_and_over(books, fleet, kills)
    settle(books)
    assert judged(books, flows) == []
    assert reasons(books) == [("refused", "unsendable")]
    assert books.waypoints("dead") == 1


@pytest.mark.soak
@pytest.mark.parametrize("kills", [0, 10])
def test_one_flow_that_the_queue_never_takes_is_unsendable_once_and_all_others_start_whoever_is_killed_meanwhile(
    kills: int, books: TwoBooks, fleet: WorkerFleet
) -> None:
    refuse(books, "refused", "bank.chore")
    flows = [Flow("refused", "chore", dies_at="bank.chore"), *transfers(10 + 10 * kills, "slow=0.01")]
    books.start(flows)
    fleet.command("--processes", "2", "--threads", "2", tune=TUNE)
    kill_over_and_over(books, fleet, kills)
    settle(books)
    assert judged(books, flows) == []
    assert reasons(books) == [("refused", "unsendable")]
    assert books.waypoints("dead") == 1


@pytest.mark.soak
@pytest.mark.parametrize("kills", [0, 10])
def test_one_flow_whose_id_the_queue_knows_for_other_content_is_unsendable_once_and_all_others_start(
    kills: int, books: TwoBooks, fleet: WorkerFleet
) -> None:
    """Another service on the same queue came first."""
    theirs = Flow("contested", "chore")
    books.queue.start([theirs])
    ours = Flow("contested", "chore", fault="bank.nowhere:fail", dies_at="bank.chore")
    flows = [ours, *transfers(10 + 10 * kills, "slow=0.01")]
    books.start(flows)
    fleet.command("--processes", "2", "--threads", "2", tune=TUNE)
    kill_over_and_over(books, fleet, kills)
    settle(books)
    assert judged(books, [theirs, *flows]) == []
    assert reasons(books) == [("contested", "unsendable")]
