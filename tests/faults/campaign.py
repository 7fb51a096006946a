"""Worker commands and worker processes are killed with SIGKILL, over and over, while they work.

``run`` is for a test when the numbers are small, and for ``make soak`` when they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.faults.books import Books, Flow, transfers
from tests.faults.scenarios import settle
from tests.faults.worker_fleet import PROCESS, Member, WorkerFleet
from tests.processes import kill
from tests.waiting import STANDSTILL_SECONDS, wait_until


@dataclass(frozen=True)
class Campaign:
    """
    ``flows``            transfers, of five stages each; more are started if these are done before the last kill
    ``kills``            SIGKILLs; each waits until the survivors got on with the work, and how far is up to ``seed``
    ``handler_seconds``  how long each handler takes before it writes
    ``commands``         copies of the whole worker command on the one store
    ``supervisor_share`` of the kills: those that hit a supervisor, which is then started anew
    ``fault``          what goes wrong in the handlers: see ``handler_faults``
    ``flow_name``        what the flows' ids begin with
    """

    flows: int
    kills: int
    handler_seconds: float = 0.0
    commands: int = 2
    processes: int = 2
    threads: int = 2
    supervisor_share: float = 0.2
    fault: str = ""
    flow_name: str = "t"
    seed: int = 0


@dataclass(frozen=True)
class Report:
    problems: list[str]
    kills: int
    deaths: int
    entries: int
    letters: int


def run(
    campaign: Campaign, books: Books, fleet: WorkerFleet, tell: Callable[[str], object] = lambda line: None
) -> Report:
    random = Random(campaign.seed)
    slow = f"slow={campaign.handler_seconds}" if campaign.handler_seconds else ""
    fault = f"{campaign.fault} {slow}".strip()
    flows = transfers(campaign.flows, fault, campaign.flow_name)
    books.start(flows)
    options = ["--processes", str(campaign.processes), "--threads", str(campaign.threads)]
    urls = fleet.urls or [fleet.url]

    def command(number: int) -> Member:
        return fleet.command(*options, url=urls[number % len(urls)])

    commands = [command(number) for number in range(campaign.commands)]
    slots = campaign.commands * campaign.processes * campaign.threads
    killed = 0
    while killed < campaign.kills:
        # As many more entries as there are handlers at a time, more or less: so that some are cut in the middle.
        get_on(books, random.randint(1, slots))
        replenish(books, flows, slots, fault)
        if random.random() < campaign.supervisor_share:
            number = random.randrange(len(commands))
            commands[number].kill()
            commands[number] = command(number)
        else:
            victims = wait_until(lambda: fleet.pids(PROCESS), "there is somebody to kill")
            kill(random.choice(victims))
        killed += 1
        tell(f"{killed} kills, {books.entries()} of {5 * len(flows)} entries, {books.waypoints('died')} deaths")
    # Of many kills many suspects are left, and they run one after the other.
    settle(books, 2 * STANDSTILL_SECONDS)
    return Report(
        [*books.problems(flows), *books.blamed("failed")],
        killed,
        books.waypoints("died"),
        books.entries(),
        len(books.letters()),
    )


def replenish(books: Books, flows: list[Flow], count: int, fault: str) -> None:
    """Start ``count`` flows more if all are done. The workers may be faster than a test that kills them."""
    if books.is_drained():
        more = transfers(count, fault, f"{flows[0].flow_id}-{len(flows)}-")
        books.start(more)
        flows += more


def get_on(books: Books, entries: int) -> None:
    enough = books.entries() + entries
    wait_until(lambda: books.entries() >= enough or books.is_drained(), "the work gets on")
