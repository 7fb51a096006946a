"""The ledger is in one PostgreSQL database and the messages are in another, and the way to one of them is cut: by the
server, on its way, or just where a question or an answer of the two commits is under way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

import pytest

from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import STEPS, Step
from tests.faults.books import Flow, transfers
from tests.faults.campaign import get_on
from tests.faults.scenarios import settle, struck_at_a_step
from tests.faults.two_books import SIDES, Side, TwoBooks
from tests.faults.worker_fleet import PROCESS, WorkerFleet
from tests.processes import kill
from tests.servers.proxy import COMMIT, Loss, Proxy, Trap
from tests.waiting import wait_until

LOSSES: list[Loss] = ["of the question", "of the answer"]
MODES: list[Mode] = ["outbox", "two_phase"]


@dataclass(frozen=True)
class Point:
    """What is said to which database: the statement with ``word`` in it, in a transaction with ``text`` in it."""

    side: Side
    text: str
    word: str = COMMIT


def word(side: Side, text: str) -> Point:
    return Point(side, text, text)


OF_THE_RELAY = {
    "the relay's lease": Point("business", "SELECT id FROM stagepost_outbox"),
    "the relay's dispatch": Point("queue", "INSERT INTO stagepost_accepted"),
    "the relay's forgetting": Point("business", "DELETE FROM stagepost_outbox"),
}
POINTS: Mapping[Mode, Mapping[str, Point]] = {
    "outbox": {
        "the inbox": word("business", "INSERT INTO stagepost_inbox"),
        "the work": Point("business", "INSERT INTO stagepost_inbox"),
        "the dispatch": Point("queue", "DELETE FROM stagepost_ready"),
        "the mark": Point("business", "SET produced = NULL"),
        **OF_THE_RELAY,
    },
    "two_phase": {
        "PREPARE TRANSACTION": word("queue", "PREPARE TRANSACTION"),
        "the decision": word("business", "INSERT INTO stagepost_decision"),
        "the work": Point("business", "INSERT INTO stagepost_decision"),
        "COMMIT PREPARED": word("queue", "COMMIT PREPARED"),
        **OF_THE_RELAY,
    },
}
EVERYWHERE = [(f"postgres-{mode}", name) for mode in MODES for name in POINTS[mode]]

Proxies = Mapping[Side, Proxy]


@pytest.fixture
def proxies(books: TwoBooks, fleet: WorkerFleet) -> Iterator[Proxies]:
    """The fleet's ways to the two, and not those of who judges."""
    made: dict[Side, Proxy] = {side: Proxy(books.side(side).url) for side in SIDES}
    fleet.url = made["business"].url
    fleet.settings["queue"] = made["queue"].url
    yield made
    fleet.kill_all()
    for each in made.values():
        each.close()


def set_up(proxies: Proxies, point: Point, loss: Loss, *, is_last: bool = False) -> Trap:
    return proxies[point.side].trap(point.text, loss, word=point.word, is_last=is_last)


def judged(books: TwoBooks, flows: Sequence[Flow]) -> list[str]:
    return [*books.problems(flows), *books.blamed("failed"), *books.blamed("died")]


@pytest.mark.parametrize("store", [f"postgres-{mode}" for mode in MODES])
def test_each_question_and_each_answer_between_two_databases_lost_one_after_the_other_leaves_every_effect_exactly_once(
    books: TwoBooks, fleet: WorkerFleet, proxies: Proxies
) -> None:
    """Each finds work of its own to fall into."""
    flows: list[Flow] = []
    fleet.command("--threads", "2", tune="retry=0.05")
    for number, (name, loss) in enumerate(product(POINTS[books.mode], LOSSES)):
        trap = set_up(proxies, POINTS[books.mode][name], loss)
        some = transfers(2, name=f"t{number}-")
        books.start(some)
        flows += some
        wait_until(trap.sprung.is_set, f"the loss {loss} at {name}")
    settle(books)
    assert judged(books, flows) == []


@pytest.mark.soak
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("store", "name"), EVERYWHERE)
def test_what_is_lost_five_times_between_two_databases_is_neither_lost_nor_doubled_in_them(
    name: str, loss: Loss, books: TwoBooks, fleet: WorkerFleet, proxies: Proxies
) -> None:
    flows = [each for number in range(5) for each in transfers(5, name=f"t{number}-")]
    traps = [set_up(proxies, POINTS[books.mode][name], loss) for _ in range(5)]
    fleet.command("--threads", "2")
    for number, trap in enumerate(traps):
        # A relay takes all that there is at once.
        books.start(flows[5 * number : 5 * number + 5])
        wait_until(trap.sprung.is_set, f"it is lost for the {number + 1}. time")
    settle(books)
    assert judged(books, flows) == []


@pytest.mark.soak
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("store", "name"), EVERYWHERE)
def test_what_is_lost_on_its_way_to_a_database_that_is_then_gone_for_a_while_is_neither_lost_nor_doubled_there(
    name: str, loss: Loss, books: TwoBooks, fleet: WorkerFleet, proxies: Proxies
) -> None:
    """So that nobody can ask at once what became of it."""
    flows = transfers(20)
    point = POINTS[books.mode][name]
    trap = set_up(proxies, point, loss, is_last=True)
    worker = fleet.command("--threads", "2")
    books.start(flows)
    wait_until(trap.sprung.is_set, "it is lost")
    wait_until(lambda: worker.logged("database-unavailable"), "the database is not there")
    proxies[point.side].let_in()
    settle(books)
    assert judged(books, flows) == []


@pytest.mark.soak
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("store", "step"), [(f"postgres-{mode}", step) for mode in MODES for step in STEPS[mode]])
def test_a_stage_whose_connections_to_one_of_two_databases_are_ended_at_any_step_is_done_once_and_nobody_is_blamed(
    step: Step, side: Side, books: TwoBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    def strike() -> None:
        assert books.side(side).terminate("application_name = 'stagepost'") >= 1

    assert struck_at_a_step(books, fleet, tmp_path, step, strike) == []


@pytest.mark.soak
@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("side", [*SIDES, "both"])
@pytest.mark.parametrize("store", [f"postgres-{mode}" for mode in MODES])
def test_all_connections_to_one_of_two_databases_or_both_cut_again_and_again_lose_and_double_nothing(
    side: str, is_reset: bool, books: TwoBooks, fleet: WorkerFleet, proxies: Proxies
) -> None:
    flows = transfers(100, "slow=0.005")
    books.start(flows)
    worker = fleet.command("--processes", "2", "--threads", "2")
    for _ in range(8):
        get_on(books, 40)
        for each, proxy in proxies.items():
            if side in (each, "both"):
                proxy.cut(is_reset=is_reset)
    settle(books)
    assert worker.is_running()
    assert judged(books, flows) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("store", [f"postgres-{mode}" for mode in MODES])
def test_workers_killed_and_ways_cut_and_words_lost_at_random_leave_every_effect_exactly_once(
    seed: int, books: TwoBooks, fleet: WorkerFleet, proxies: Proxies
) -> None:
    random = Random(seed)
    flows: list[Flow] = []
    fleet.command("--processes", "2", "--threads", "2", tune="death=0.1,restart=0.1,retry=0.1")
    for number in range(20):
        some = transfers(6, "slow=0.01", name=f"t{number}-")
        point = random.choice(list(POINTS[books.mode].values()))
        match random.choice(["cut", "kill", "lose", "lose"]):
            case "cut":
                books.start(some)
                get_on(books, random.randint(1, 8))
                proxies[random.choice(SIDES)].cut()
            case "kill":
                books.start(some)
                get_on(books, random.randint(1, 8))
                kill(random.choice(wait_until(lambda: fleet.pids(PROCESS), "there is somebody to kill")))
            case _:
                trap = set_up(proxies, point, random.choice(LOSSES))
                books.start(some)
                wait_until(trap.sprung.is_set, f"{point} is lost")
        flows += some
    settle(books)
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
