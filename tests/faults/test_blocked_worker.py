"""A thread that keeps a failed message, in a real process: it takes nothing else, and a kill loses no failure."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tests.faults import stores
from tests.faults.books import Books, chores
from tests.faults.scenarios import settle
from tests.faults.worker_fleet import WorkerFleet
from tests.waiting import wait_until


@pytest.mark.more
@stores.on_both_and_longer
def test_a_process_killed_while_it_keeps_a_message_leaves_the_count_of_its_failures(
    books: Books, fleet: WorkerFleet
) -> None:
    (poison,) = chores(1, "fail", "poison")
    healthy = chores(3)
    books.start([poison])
    # A worker that looks idle beside waiting messages for a second is replaced.
    blocked = fleet.process(threads=1, blocking="1", tune="no_progress=1")
    wait_until(lambda: books.blamed("failed"), "the message has failed")
    books.start(healthy)
    wait_until(lambda: len(books.blamed("failed")) == 2, "it has failed again, on the same thread")
    assert books.entries() == 0
    assert blocked.logged("no-progress") == []
    blocked.signal(signal.SIGKILL)
    fleet.command("--threads", "1")
    settle(books)
    assert books.problems([replace(poison, dies_at="bank.chore"), *healthy]) == []
    ((_, _, reason, failures, _),) = books.letters()
    assert (reason, failures) == ("exhausted", 3)
