"""What happens to a bank, as functions that say what was wrong with it afterwards: nothing, unless somebody broke the
library on purpose.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stagepost.transaction.steps import Step
from tests.faults.books import Books, Flow, chores, transfers
from tests.faults.pausing import pause
from tests.faults.worker_fleet import Member, WorkerFleet
from tests.waiting import STANDSTILL_SECONDS, last_while_moving, wait_until


def settle(books: Books, standstill: float = STANDSTILL_SECONDS) -> None:
    """Wait until the queue is empty, or until no message moves and no worker comes or goes. ``Books.problems`` reports
    the messages that are left."""
    last_while_moving(books.is_drained, lambda: (books.moves(), books.registered()), standstill)


def killed_at_a_step(
    books: Books,
    fleet: WorkerFleet,
    folder: Path,
    step: str,
    occurrence: int = 1,
    stage: str = "*",
) -> list[str]:
    flows = transfers(20)
    books.start(flows)
    marker = folder / "killed"
    worker = fleet.command("--threads", "3", kill=f"{step},{stage},{occurrence},{marker}", tune="death=0.1")
    wait_until(lambda: worker.logged("worker-ended"), "the worker was killed")
    assert marker.exists()
    settle(books, fleet.standstill_seconds)
    return [*books.problems(flows), *books.blamed("failed")]


def killed_at_each_step(
    books: Books, fleet: WorkerFleet, folder: Path, steps: Sequence[Step], occurrence: int = 7, **settings: str
) -> list[str]:
    """One worker process after the other, each at another step, in one history."""
    flows = transfers(10 + occurrence * len(steps) // 2)
    books.start(flows)
    kills = [f"{step},*,{occurrence},{folder}/{step}" for step in steps]
    fleet.command("--threads", "3", kill=";".join(kills), tune="death=0.1,restart=0.1", **settings)
    settle(books, fleet.standstill_seconds)
    unharmed = [f"unharmed: nobody was killed at {step}" for step in steps if not (folder / step).exists()]
    return [*unharmed, *books.problems(flows), *books.blamed("failed")]


def struck_at_a_step(
    books: Books, fleet: WorkerFleet, folder: Path, step: str, strike: Callable[[], object], occurrence: int = 7
) -> list[str]:
    """One thread stands still at a step, something happens to its connection or to its server, and it goes on."""
    flows = transfers(20)
    books.start(flows)
    gate = folder / "gate"
    worker = fleet.command("--threads", "1", hold=f"{step},*,{occurrence},{gate}")
    wait_until(Path(f"{gate}.entered").exists, f"it is at the step {step}")
    strike()
    Path(f"{gate}.open").touch()
    settle(books, fleet.standstill_seconds)
    ended = [f"ended: {each['text']}" for each in worker.logged("worker-ended")]
    return [*books.problems(flows), *books.blamed("failed"), *books.blamed("died"), *ended]


def paused_in_its_handler(books: Books, fleet: WorkerFleet, folder: Path) -> list[str]:
    """The first owner stops after it began to handle and before it touched the database; another one takes over."""
    gate = folder / "gate"
    flows = [Flow("paused", fault=f"bank.transfer:gate-once={gate}"), *transfers(5)]
    books.start(flows)
    first = fleet.process(threads=1)
    wait_until(Path(f"{gate}.entered").exists, "the first owner is in its handler")
    pause(first.pid, books.url)
    second = fleet.process(threads=2, paused_after_seconds=1)
    wait_until(lambda: len(books.rows("SELECT 1 FROM ledger WHERE flow_id = 'paused'")) == 5, "the second did its work")
    settle(books, fleet.standstill_seconds)
    Path(f"{gate}.open").touch()
    first.signal(signal.SIGCONT)
    more = [*flows, *resumed(books, first, second)]
    settle(books, fleet.standstill_seconds)
    return [*books.problems(more), *books.blamed("failed"), *books.blamed("died")]


def resumed(books: Books, first: Member, second: Member) -> list[Flow]:
    """Ends the second owner, and has the first one do something: it has then got through what it was paused in."""
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    later = transfers(3, name="later")
    books.start(later)
    wait_until(lambda: len(books.rows("SELECT 1 FROM ledger WHERE flow_id = 'later2'")) >= 5, "the first one works on")
    return later


def initiation_repeated(
    books: Books,
    fleet: WorkerFleet,
    how: str = "start",
    point: str = "after-commit",
    occurrence: int = 1,
) -> list[str]:
    """A script that starts flows is killed, run once more with the same ids, and once more for good measure."""
    flows = transfers(4)
    arguments = [books.url, how, point, str(occurrence), str(len(flows))]
    assert fleet.module("tests.faults.initiator", *arguments).wait() == -signal.SIGKILL
    arguments[2] = "none"
    assert fleet.module("tests.faults.initiator", *arguments).wait() == 0
    fleet.command("--threads", "2")
    settle(books, fleet.standstill_seconds)
    assert fleet.module("tests.faults.initiator", *arguments).wait() == 0
    settle(books, fleet.standstill_seconds)
    return books.problems(flows)


def slow(books: Books, fleet: WorkerFleet, folder: Path, *, holds_the_lock: bool) -> list[str]:
    """A handler takes longer than a heartbeat may stand still; all others want the database meanwhile."""
    gate = folder / "gate"
    flows = [Flow("slow", "chore", f"{'late-' if holds_the_lock else ''}gate-once={gate}"), *transfers(10)]
    books.start(flows)
    workers = [fleet.process(threads=1, paused_after_seconds=1)]
    wait_until(Path(f"{gate}.entered").exists, "the slow one is in its handler")
    workers += [fleet.process(threads=2, paused_after_seconds=1) for _ in range(2)]

    def beats_since(moment: float) -> bool:
        return books.hearts_beat_since(moment) == 3 or not all(worker.is_running() for worker in workers)

    wait_until(lambda: beats_since(0), "all have begun")
    began = time.time()
    wait_until(lambda: beats_since(began + 3), "every heart has beaten on, or somebody was taken for dead")
    ended = [f"ended: worker process {worker.pid}" for worker in workers if not worker.is_running()]
    Path(f"{gate}.open").touch()
    settle(books, fleet.standstill_seconds)
    return [*books.problems(flows), *books.blamed("failed"), *books.blamed("died"), *ended]


def behind_our_back(books: Books, fleet: WorkerFleet, trick: str) -> list[str]:
    """Three handlers play that trick, and each is to become a dead letter that changed nothing."""
    flows = [
        *chores(10),
        *(Flow(f"trick{number}", "chore", trick, dies_at="bank.chore") for number in range(3)),
        *chores(10, name="d"),
    ]
    books.start(flows)
    fleet.command("--threads", "2")
    settle(books, fleet.standstill_seconds)
    problems = [*books.problems(flows), *books.blamed("died")]
    if books.number("SELECT count(*) FROM scratch"):
        problems.append("unexpected: what a handler wrote in scratch was committed")
    return problems


def stuck(books: Books, fleet: WorkerFleet, folder: Path, fault: str) -> list[str]:
    """One handler does not yield to its time limit. Beside it one runs that is not ready when the process is replaced,
    and some that are."""
    flows = [
        Flow("stuck", "chore", f"{fault}={folder}/stuck"),
        Flow("sibling", fault=f"bank.transfer:gate-once={folder}/sibling"),
        *transfers(10),
    ]
    books.start(flows)
    worker = fleet.command("--grace", "0.5", "--threads", "3", time_limit="0.5", tune="yield=0.5")
    wait_until(lambda: worker.logged("worker-ended"), "the process was replaced")
    settle(books, fleet.standstill_seconds)
    failed = books.blamed("failed")
    return [*books.problems(flows), *books.blamed("died"), *(each for each in failed if each.split()[1] != "stuck")]


def stopped_in_its_handler(books: Books, fleet: WorkerFleet, folder: Path) -> list[str]:
    """A worker is told to stop, its grace time ends before its handler does, and another worker does the rest."""
    gate = folder / "gate"
    flows = [Flow("abandoned", fault=f"bank.transfer:gate-once={gate}"), *transfers(10)]
    books.start(flows)
    worker = fleet.process(threads=1, grace=0.5)
    wait_until(Path(f"{gate}.entered").exists, "it is in its handler")
    worker.signal(signal.SIGTERM)
    worker.wait()
    fleet.command("--threads", "2", tune="death=0.1")
    settle(books, fleet.standstill_seconds)
    return [*books.problems(flows), *books.blamed("died"), *books.blamed("failed")]


def forked_and_killed(books: Books, fleet: WorkerFleet, folder: Path) -> list[str]:
    """A handler forks a child that stays, and its process dies."""
    flows = [Flow("deadly", "chore", f"late-fork-and-die-once={folder}/died"), *transfers(10)]
    books.start(flows)
    fleet.command("--threads", "1", tune="death=0.1")
    settle(books, fleet.standstill_seconds)
    return [*books.problems(flows), *books.blamed("failed")]
