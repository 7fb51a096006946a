"""Two apps of different names that declare the same endpoints in one store, in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import stores
from tests.faults.bank import Chore, open_bank
from tests.faults.books import Books, Flow, transfers
from tests.faults.scenarios import settle
from tests.faults.worker_fleet import APP, Member, WorkerFleet
from tests.waiting import wait_until

ENDPOINTS = ["bank.chore", "bank.done", "bank.errand", "bank.fraud", "bank.round", "bank.transfer"]


def said(member: Member) -> str:
    return " ".join(member.log.read_text().split())


@pytest.mark.more
@stores.on_both
def test_a_renamed_app_is_refused_until_the_old_one_is_gone_and_its_endpoints_are_reassigned(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flows = [Flow("running", fault=f"bank.transfer:gate-once={gate}"), *transfers(5)]
    books.start(flows)
    old = fleet.command("--threads", "1")
    wait_until(Path(f"{gate}.entered").exists, "the old one is in its handler")

    refused = fleet.command("--threads", "1", app_name="savings")
    assert refused.wait() == 2
    assert "app 'savings' declares bank.chore, bank.done," in said(refused)
    assert "and so does app 'bank' on" in said(refused)
    assert "which works there (" in said(refused)
    reassign = ("stagepost", "reassign", *ENDPOINTS, "--app", APP, "--database", books.url)
    too_early = fleet.module(*reassign, app_name="savings")
    assert too_early.wait() == 2
    assert "which works there (" in said(too_early)

    old.kill()
    for pid in fleet.pids():
        fleet.end(pid)
    refused = fleet.command("--threads", "1", app_name="savings")
    assert refused.wait() == 2
    assert f"run: stagepost reassign {' '.join(ENDPOINTS)} --app MODULE:APP" in said(refused)
    command = fleet.module(*reassign, app_name="savings")
    assert command.wait() == 0
    assert "bank.transfer: now declared by savings, before by bank" in said(command)

    Path(f"{gate}.open").touch()
    fleet.command("--threads", "1", app_name="savings", tune="death=0.1")
    settle(books, fleet.standstill_seconds)
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert len(books.blamed("died")) == 1


@stores.on_both
def test_a_worker_process_declares_what_its_own_code_has(books: Books, fleet: WorkerFleet) -> None:
    """Its supervisor may run older code."""
    fleet.process(threads=1)
    declared = "SELECT stage FROM stagepost_declaration WHERE app = 'bank' AND dropped_at IS NULL"
    wait_until(lambda: len(books.rows(declared)) == 8, "all its stages are declared")


@stores.on_both
def test_of_two_that_start_at_once_one_works_and_the_other_is_refused(books: Books, fleet: WorkerFleet) -> None:
    flows = transfers(5)
    books.start(flows)
    both = [fleet.command("--threads", "1", "--drain", app_name=name) for name in ("bank", "savings")]
    assert sorted(each.wait() for each in both) == [0, 2]
    (refused,) = (each for each in both if each.wait() == 2)
    assert "and so does app" in said(refused)
    assert books.problems(flows) == []


@stores.on_both_and_longer
def test_messages_at_a_stage_that_no_app_declares_are_told_of_while_the_worker_works(
    books: Books, fleet: WorkerFleet
) -> None:
    bank = open_bank(books.url)
    worker = fleet.command("--threads", "1")
    wait_until(lambda: any("stages" in each["text"] for each in worker.lines()), "it has begun")
    bank.app.start(bank.app.remote("mail.send", Chore), Chore("f1"), flow_id="f1")
    wait_until(lambda: worker.logged("stage-undeclared"), "it has told")
    (line,) = worker.logged("stage-undeclared")
    assert line["text"].startswith("messages wait at mail.send, which no app declares. Start a worker of the app")
