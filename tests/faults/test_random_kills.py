"""Kills at no particular moment, many times over."""

from __future__ import annotations

import pytest

from tests.faults import stores
from tests.faults.books import Books, Flow, transfers
from tests.faults.campaign import Campaign, run
from tests.faults.worker_fleet import WorkerFleet


@stores.in_every_mode
def test_workers_and_supervisors_killed_over_and_over_leave_every_effect_exactly_once(
    books: Books, fleet: WorkerFleet
) -> None:
    # Handlers that take a moment, so that a kill meets some of them.
    report = run(Campaign(flows=300, kills=30, handler_seconds=0.02), books, fleet)
    assert report.problems == []
    assert report.kills == 30


@pytest.mark.more
@stores.in_every_mode_and_longer
def test_a_dozen_kills_under_slow_handlers_bury_nobody(books: Books, fleet: WorkerFleet) -> None:
    """The small one of two hundred kills under handlers of two seconds, which is for ``make soak``."""
    report = run(Campaign(flows=28, kills=12, handler_seconds=0.5, supervisor_share=0.15, threads=3), books, fleet)
    assert report.problems == []
    assert report.kills == 12
    assert report.deaths > 0


@stores.in_every_mode_and_longer
@pytest.mark.more
def test_two_copies_of_the_whole_command_on_one_store_do_everything_once(books: Books, fleet: WorkerFleet) -> None:
    deadly = Flow("deadly", fault="bank.fraud:late-sigkill", dies_at="bank.fraud")
    flows = [*transfers(150), deadly]
    books.start(flows)
    commands = [fleet.command("--drain", "--processes", "2", "--threads", "2", tune="death=0.1") for _ in range(2)]
    assert [command.wait() for command in commands] == [0, 0]
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.letters() == [("deadly", "bank.fraud", "worker-died", 0, 4)]
