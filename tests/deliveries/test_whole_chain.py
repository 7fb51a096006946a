"""Producer, gateway, queue, consumer: whatever is killed or fails, each accepted message arrives, and none is undone.

The gateway is the command with all its processes. The consumer is exactly-once in its own database, and its log is what
the test judges by.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from stagepost import App
from stagepost.app.app import engine_of
from stagepost.ports.dead_letters import Selection
from stagepost.ports.journal import Waypoint
from tests.deliveries.conftest import NewConsumer
from tests.deliveries.consumer import Act, Consumer, Request, answer, half, reset, silence
from tests.gateway.http_calls import get, post, wait_until_alive
from tests.places import bare_environment
from tests.processes import ROOT, Process, ProcessGroup, kill
from tests.quiet_logs import unquiet_lines
from tests.servers.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it finds processes by Linux's /proc")

CONFIGURATION = """
database = "{url}"
bind = "127.0.0.1:{port}"
anonymous = "erp"
grace = 3

[[route]]
name = "orders"

[route.deliver]
url = "{consumer}"
allow_private = ["localhost"]
timeout_seconds = {timeout}
pause_after = 0
redelivery = {{ kind = "fixed", every_seconds = 0.1, times = 200 }}
"""

NewChain = Callable[..., "Chain"]
HTTP = "gateway_process"
WORKER = "stagepost.worker.process"
DELIVERIES = "gateway_deliveries"


class Chain:
    """``stagepost gateway`` in front of one consumer."""

    def __init__(self, url: str, folder: Path, consumer: Consumer, timeout: float) -> None:
        self._folder = folder
        self._url = url
        self._group = ProcessGroup()
        self.pids = self._group.pids
        self.log = folder / "gateway.log"
        self.port = reserved_port()
        text = CONFIGURATION.format(url=url, port=self.port, consumer=consumer.url, timeout=timeout)
        (folder / "gateway.toml").write_text(text)
        self.command = self.start()

    def start(self) -> Process:
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "stagepost", "gateway", "gateway.toml", "--json"],
                cwd=self._folder,
                env=bare_environment() | self._group.environment | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.command = Process(process, self.log)
        wait_until_alive(self.port)
        return self.command

    def kill_all_but_command(self, part: str) -> None:
        for pid in self.pids(part):
            kill(pid)

    def produce(self, order: str) -> str:
        """Post until the gateway has answered, as a producer does: each retry with the same id and body."""

        def try_once() -> str:
            status, document = post(self.port, "/orders", {"order": order}, {"Message-Id": order})
            return str(document["status"]) if status == 200 else ""

        return wait_until(try_once, f"{order} is accepted")

    def letters(self) -> list[str]:
        with closing(engine_of(App("gateway", database=self._url)).access()) as access:
            found = access.session.dead_letters.select(Selection("all"))
            return [f"{each.letter.reason}: {each.letter.summary}" for each in found]

    def lines_of(self, message_id: str) -> list[Waypoint]:
        with closing(engine_of(App("gateway", database=self._url)).access()) as access:
            return access.session.journal.history(message_id)

    def has_ended(self, message_id: str) -> bool:
        return self.lines_of(message_id)[-1].waypoint == "committed"

    def status(self, order: str) -> dict[str, object]:
        status, document = get(self.port, f"/orders/messages/{order}")
        assert status == 200
        return dict(document)

    def close(self) -> None:
        self.command.kill()
        self._group.kill_all()
        print(self.log.read_text(errors="replace")[-8000:])  # noqa: T201


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def new_chain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewChain]:
    made: list[Chain] = []
    new_url: Callable[[], str] = request.getfixturevalue(f"new_{request.param}")

    def make(consumer: Consumer, timeout: float = 0.5) -> Chain:
        made.append(Chain(new_url(), tmp_path, consumer, timeout))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_message_goes_from_producer_to_consumer(new_chain: NewChain, consumer: NewConsumer) -> None:
    shop = consumer()
    chain = new_chain(shop, PATIENCE_SECONDS)
    assert chain.produce("o1") == "accepted"
    assert chain.produce("o1") == "duplicate"
    wait_until(lambda: shop.requests, "it is delivered")
    assert [each.body for each in shop.requests] == [b'{"order": "o1"}']
    wait_until(lambda: chain.status("o1")["status"] in ("delivered", "committed"), "its producer sees that")
    chain.command.signal(15)  # type: ignore[arg-type]  # a number is as good as its name
    assert chain.command.wait() == 0
    assert chain.pids() == []


def has_at_least(consumer: Consumer, requests: int) -> bool:
    return len(consumer.requests) >= requests


class Books:
    """The consumer's own records: it does the work of each id once, and says so in each answer."""

    def __init__(self, consumer: Consumer) -> None:
        self.done: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._known: set[str] = set()
        consumer.on_request = self._take

    def _take(self, request: Request) -> None:
        with self._lock:
            message_id = request.headers["message-id"]
            if message_id not in self._known:
                self._known.add(message_id)
                self.done[str(json.loads(request.body)["order"])] += 1


FAULTS: list[Act] = [silence, half, reset, answer(500), answer(503), answer(425, Retry_After="0"), answer(404)]


def post_all(chain: Chain, orders: list[str]) -> None:
    for each in orders:
        chain.produce(each)


def run_orders(chain: Chain, orders: list[str]) -> None:
    """Post all orders from four producers at once."""
    shares = [orders[n::4] for n in range(4)]
    threads = [threading.Thread(target=post_all, args=(chain, share)) for share in shares]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def check(chain: Chain, books: Books, consumer: Consumer, orders: list[str]) -> None:
    wait_until(lambda: books.done.keys() >= set(orders) or chain.letters(), "all orders reached the consumer")
    assert chain.letters() == []
    assert books.done == dict.fromkeys(orders, 1)
    by_id: dict[str, int] = Counter(consumer.ids)
    for message_id, requests in by_id.items():
        wait_until(partial(chain.has_ended, message_id), "its end is written")
        lines = [each.waypoint for each in chain.lines_of(message_id)]
        assert lines.count("accepted") == lines.count("committed") == 1
        # The history tells how often the message was read from the queue. A kill may come before a request.
        assert lines.count("received") >= requests
    assert unquiet_lines(chain.log.read_text()) == []


@pytest.mark.more
def test_every_order_arrives_once_however_the_consumer_fails(new_chain: NewChain, consumer: NewConsumer) -> None:
    random_faults = random.Random(1)
    shop = consumer(*(random_faults.choice(FAULTS) for _ in range(20)))
    books = Books(shop)
    chain = new_chain(shop)
    orders = [f"o{n}" for n in range(30)]
    run_orders(chain, orders)
    check(chain, books, shop, orders)


@pytest.mark.parametrize("part", [WORKER, *(pytest.param(each, marks=pytest.mark.more) for each in (HTTP, DELIVERIES))])
def test_every_order_arrives_once_while_processes_of_the_gateway_are_killed(
    new_chain: NewChain, consumer: NewConsumer, part: str
) -> None:
    random_faults = random.Random(2)
    shop = consumer(*(random_faults.choice(FAULTS) for _ in range(5)))
    books = Books(shop)
    chain = new_chain(shop)
    orders = [f"o{n}" for n in range(40)]
    kills = [5, 10, 20]
    take, lock = shop.on_request, threading.Lock()

    def take_and_kill(request: Request) -> None:
        take(request)
        with lock:
            is_time = bool(kills) and len(shop.requests) >= kills[0]
            if is_time:
                kills.pop(0)
        if is_time:
            chain.kill_all_but_command(part)

    shop.on_request = take_and_kill
    run_orders(chain, orders)
    check(chain, books, shop, orders)
    assert not kills


@pytest.mark.more
def test_every_order_arrives_once_while_the_whole_gateway_is_killed(new_chain: NewChain, consumer: NewConsumer) -> None:
    shop = consumer()
    books = Books(shop)
    chain = new_chain(shop)
    orders = [f"o{n}" for n in range(40)]
    producing = threading.Thread(target=run_orders, args=(chain, orders))
    producing.start()
    for least in (5, 15):
        wait_until(partial(has_at_least, shop, least), "some orders arrived")
        chain.command.kill()
        for part in (HTTP, DELIVERIES, WORKER):
            chain.kill_all_but_command(part)
        chain.start()
    producing.join()
    check(chain, books, shop, orders)


def test_a_refusal_that_is_committed_is_never_redelivered(new_chain: NewChain, consumer: NewConsumer) -> None:
    shop = consumer(otherwise=answer(422))
    # A refusal that comes too late counts as no answer.
    chain = new_chain(shop, PATIENCE_SECONDS)
    chain.produce("o1")
    wait_until(chain.letters, "the refusal is written")
    chain.kill_all_but_command(WORKER)
    chain.produce("o2")
    wait_until(lambda: len(chain.letters()) == 2, "the other refusal is written")
    assert len(shop.ids) == len(set(shop.ids)) == 2
    assert chain.status("o1")["status"] in ("refused", "dead")
    assert chain.produce("o1") == "duplicate"


def test_the_logs_of_a_fault_run_are_one_line_an_event_without_secrets_and_stacks(
    new_chain: NewChain, consumer: NewConsumer
) -> None:
    shop = consumer(*FAULTS)
    chain = new_chain(shop)
    chain.produce("o1")
    wait_until(lambda: len(shop.requests) > len(FAULTS), "it is delivered in the end")
    wait_until(lambda: chain.lines_of(shop.ids[0])[-1].waypoint == "committed", "its end is written")
    assert unquiet_lines(chain.log.read_text()) == []
