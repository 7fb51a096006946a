"""Deliveries in real worker processes: their threads, and what a death in the middle of a delivery leads to."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost import App, Target
from stagepost.app.app import engine_of
from stagepost.gateway.out import Delivery, Posted, deliver
from stagepost.ports.dead_letters import KeptLetter, Selection
from stagepost.ports.journal import Waypoint
from stagepost.transaction.steps import STEPS, Step
from tests.deliveries.conftest import BODY, NewConsumer
from tests.deliveries.consumer import Consumer, Request, answer
from tests.deliveries.messages import Placed
from tests.faults.worker_fleet import PROCESS, SCRIPT, Member
from tests.places import bare_environment
from tests.processes import ROOT, ProcessGroup, kill
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it finds processes by Linux's /proc")


FLOWS_MAX = 120


class Shop:
    """The app of ``shop.py`` as the test uses it, and the workers that run it."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._processes = ProcessGroup()
        self.pids = self._processes.pids
        self.workers: list[Member] = []
        self.app = App("shop", database=url)
        self.first = deliver(self.app, "first", Delivery(url="https://nowhere.invalid/"))
        self.second = deliver(self.app, "second", Delivery(url="https://nowhere.invalid/"))
        self.place: Target[Placed, Any] = self.app.remote("place", Placed)

    def work(self, *options: str, **environment: str) -> Member:
        import subprocess

        variables = {f"SHOP_{name.upper()}": value for name, value in environment.items()}
        log = self._folder / f"worker-{len(self.workers)}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                [str(SCRIPT), "worker", "tests.deliveries.shop:app", "--json", *options],
                cwd=ROOT,
                env=bare_environment() | self._processes.environment | {"SHOP_DATABASE": self._url} | variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self.workers.append(Member(process, log))
        return self.workers[-1]

    def kill_worker_process(self) -> None:
        for pid in self.pids(PROCESS):
            kill(pid)

    def start(self, target: object, *flow_ids: str) -> None:
        for each in flow_ids:
            self.app.start(target, Posted(msgspec.Raw(BODY)), flow_id=each)  # type: ignore[arg-type]  # a route

    def history(self, flow_id: str) -> list[Waypoint]:
        with closing(engine_of(self.app).access()) as access:
            return access.session.journal.history(flow_id)

    def names(self, flow_id: str) -> list[str]:
        return [each.waypoint for each in self.history(flow_id)]

    def letters(self) -> Sequence[KeptLetter]:
        with closing(engine_of(self.app).access()) as access:
            return list(access.session.dead_letters.select(Selection("all")))

    def close(self) -> None:
        for each in self.workers:
            each.kill()
        self._processes.kill_all()
        self.app.close()
        for each in self.workers:
            print(each.log.read_text(errors="replace")[-8000:])  # noqa: T201


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    made: Callable[[], str] = request.getfixturevalue(f"new_{request.param}")
    with closing(Shop(made(), tmp_path)) as shop:
        yield shop


def blocking(consumer: Consumer) -> None:
    """Let the consumer answer nothing at all."""

    def wait(connection: object) -> bool:
        connection.recv(1)  # type: ignore[attr-defined]  # it is a socket
        return False

    consumer.otherwise = wait


def test_a_slow_consumer_takes_no_thread_of_another_route_or_stage(shop: Shop, consumer: NewConsumer) -> None:
    slow, quick = consumer(), consumer()
    blocking(slow)
    shop.start(shop.first, *(f"slow-{n}" for n in range(20)))
    # Beyond the time-out the slow route posts again.
    shop.work("--threads", "1", first=slow.url, second=quick.url, timeout=str(PATIENCE_SECONDS))
    wait_until(lambda: len(slow.requests) == 2, "both threads of the slow route wait")
    shop.start(shop.second, *(f"quick-{n}" for n in range(20)))
    shop.app.start(shop.place, Placed("o1", 1), flow_id="placed")
    wait_until(lambda: len(quick.requests) == 20, "the other route is delivered")
    wait_until(lambda: shop.names("placed")[-1] == "committed", "the stage of the app runs")
    assert len(slow.requests) == 2


def test_a_worker_drains_all_routes_and_stages(shop: Shop, consumer: NewConsumer) -> None:
    here, refusing = consumer(), consumer(otherwise=answer(422))
    shop.start(shop.first, *(f"a-{n}" for n in range(20)))
    shop.start(shop.second, *(f"b-{n}" for n in range(20)))
    worker = shop.work("--drain", first=here.url, second=refusing.url)
    assert worker.wait() == 0
    assert len(here.requests) == len(refusing.requests) == 20
    # The reports of the refusals came while the threads of the other stages had nothing to do.
    assert shop.names("b-0")[-1] == "committed"


def test_a_delivery_whose_process_died_is_given_back_uncounted_and_may_have_been_taken(
    shop: Shop, consumer: NewConsumer
) -> None:
    here = consumer(otherwise=answer(422))
    kills = [None]

    def kill_once(request: Request) -> None:
        if kills:
            kills.pop()
            shop.kill_worker_process()

    here.on_request = kill_once
    shop.start(shop.first, "f1")
    shop.work(first=here.url)
    wait_until(shop.letters, "the message is set aside")
    assert shop.names("f1") == ["accepted", "received", "returned", "received", "failed", "dead"]
    (kept,) = shop.letters()
    assert (kept.letter.reason, kept.letter.deaths) == ("maybe-delivered", 0)
    returned = shop.history("f1")[2]
    assert returned.detail is not None
    assert returned.detail.endswith("during its delivery")
    assert len(set(here.ids)) == 1
    assert len(here.ids) == 2


@pytest.mark.more
def test_the_third_death_in_a_row_makes_a_suspect(shop: Shop, consumer: NewConsumer) -> None:
    here = consumer()
    kills = [None] * 3

    def kill_thrice(request: Request) -> None:
        if kills:
            kills.pop()
            shop.kill_worker_process()

    here.on_request = kill_thrice
    shop.start(shop.first, "f1")
    shop.work(first=here.url)
    wait_until(lambda: shop.names("f1")[-1] == "committed", "the message is delivered, alone")
    names = shop.names("f1")
    assert [each for each in names if each not in ("received", "accepted")] == [
        "returned", "returned", "died", "delayed", "committed",
    ]  # fmt: skip
    assert len(here.ids) == 4


@pytest.mark.more
@pytest.mark.parametrize("refuses", [False, True])
def test_a_delivery_is_settled_once_while_processes_die_at_every_step(
    shop: Shop, consumer: NewConsumer, tmp_path: Path, refuses: bool
) -> None:
    """A taken message is never reported as refused, even where its process dies between the answer and the commit."""
    tickets = tmp_path / "tickets"
    tickets.mkdir()
    # A process that dies before the departure makes a suspect, as with any stage.
    steps = {Step.COMMITTING, Step.COMMITTED} if refuses else set(STEPS["single"]) - {Step.CLAIMED}
    for step in steps:
        (tickets / step).touch()
    here = consumer(otherwise=answer(422 if refuses else 200))
    flows: list[str] = []
    shop.work(first=here.url, tickets=str(tickets))

    def is_over() -> bool:
        """Start flows while processes are left that must die, because an idle worker passes no step."""
        has_ended = all(shop.names(each)[-1] in ("committed", "dead") for each in flows)
        if has_ended and (list(tickets.iterdir()) or not flows) and len(flows) < FLOWS_MAX:
            # Several at once, because three deaths in a row would make a suspect of one.
            started = [f"f{len(flows) + n}" for n in range(12)]
            flows.extend(started)
            shop.start(shop.first, *started)
            return False
        return has_ended

    wait_until(is_over, "every process that must die has died, and every message has its end")
    for each in flows:
        lines = [line.waypoint for line in shop.history(each) if line.stage == "first"]
        assert lines.count("committed") + lines.count("dead") == 1
        assert "failed" not in lines or refuses
        assert "died" not in lines
    by_id = Counter(here.ids)
    assert len(by_id) == len(flows)
    assert not list(tickets.iterdir())
    if refuses:
        # A message that was posted twice may have been taken the first time, as far as the gateway knows.
        reasons = {each.letter.message_id: each.letter.reason for each in shop.letters()}
        assert {each for each in by_id if by_id[each] > 1} <= {
            each for each in reasons if reasons[each] == "maybe-delivered"
        }
        assert all(by_id[each] == 1 for each in reasons if reasons[each] == "refused")
