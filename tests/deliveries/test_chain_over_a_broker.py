"""Producer, gateway, queue, broker, queue, consumer: each accepted message arrives once, whatever is killed."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from stagepost import App
from stagepost.app.app import engine_of
from stagepost.ports.dead_letters import Selection
from tests.deliveries.conftest import NewConsumer
from tests.deliveries.test_whole_chain import FAULTS, Books, has_at_least
from tests.faults.worker_fleet import PROCESS, SCRIPT
from tests.gateway.http_calls import post, wait_until_alive
from tests.places import bare_environment
from tests.processes import ROOT, Process, ProcessGroup, kill
from tests.quiet_logs import unquiet_lines
from tests.servers.ports import reserved_port
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(sys.platform != "linux", reason="it finds processes by Linux's /proc"),
]

CONFIGURATION = """
app = "tests.deliveries.brokered:front"
bind = "127.0.0.1:{port}"
anonymous = "erp"

[[route]]
name = "orders"
to = "orders.place"
"""
EDGE = "stagepost.worker.edge"
HTTP = "gateway_process"


class Services:
    """A gateway and a worker of the front, a worker of the back, and the broker between them."""

    def __init__(self, folder: Path, broker: str, consumer_url: str) -> None:
        self._folder = folder
        self._broker = broker
        self._consumer_url = consumer_url
        self._group = ProcessGroup()
        self._started: list[Process] = []
        self.port = reserved_port()
        (folder / "gateway.toml").write_text(CONFIGURATION.format(port=self.port))
        for name in ("front", "back"):
            self._start(name, str(SCRIPT), "worker", f"tests.deliveries.brokered:{name}", "--json")
        self._start("front", sys.executable, "-m", "stagepost", "gateway", str(folder / "gateway.toml"), "--json")
        wait_until_alive(self.port)

    def kill(self, part: str) -> None:
        for pid in self._group.pids(part):
            kill(pid)

    def produce(self, order: str) -> None:
        def try_once() -> bool:
            return post(self.port, "/orders", {"order": order, "amount": 1}, {"Message-Id": order})[0] == 200

        wait_until(try_once, f"{order} is accepted")

    def produce_all(self, orders: list[str]) -> None:
        for each in orders:
            self.produce(each)

    def letters(self) -> list[str]:
        found: list[str] = []
        for name in ("front", "back"):
            with closing(engine_of(App(name, database=self._url(name))).access()) as access:
                letters = access.session.dead_letters.select(Selection("all"))
                found += [f"{each.letter.reason}: {each.letter.summary}" for each in letters]
        return found

    def close(self) -> None:
        for each in self._started:
            each.kill()
        self._group.kill_all()
        print(self.logs()[-16_000:])  # noqa: T201

    def logs(self) -> str:
        return "".join(each.read_text(errors="replace") for each in sorted(self._folder.glob("*.log")))

    def _url(self, name: str) -> str:
        return f"sqlite:///{self._folder}/{name}.db"

    def _start(self, name: str, *command: str) -> None:
        log = self._folder / f"{name}-{len(self._started)}.log"
        environment = {
            "STAGEPOST_DATABASE": self._url(name),
            "STAGEPOST_BROKER": self._broker,
            "SHOP_FIRST": self._consumer_url,
            "PYTHONPATH": str(ROOT),
        }
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=bare_environment() | self._group.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._started.append(Process(process, log))


@pytest.fixture(params=["rabbitmq", "activemq"])
def broker(request: pytest.FixtureRequest) -> str:
    server = request.getfixturevalue(request.param)
    made: str = server.url("heartbeat=5", server.add_host()) if request.param == "rabbitmq" else server.url()
    return made


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Services]]:
    made: list[Services] = []
    yield made
    for each in made:
        each.close()


def test_every_order_arrives_once_over_a_broker_while_processes_are_killed(
    broker: str, started: list[Services], tmp_path: Path, consumer: NewConsumer
) -> None:
    random_faults = random.Random(3)
    shop = consumer(*(random_faults.choice(FAULTS) for _ in range(8)))
    books = Books(shop)
    services = Services(tmp_path, broker, shop.url)
    started.append(services)
    orders = [f"o{n}" for n in range(30)]
    producing = threading.Thread(target=services.produce_all, args=[orders])
    producing.start()
    for least, part in ((5, HTTP), (10, EDGE), (16, PROCESS)):
        wait_until(partial(has_at_least, shop, least), "some orders arrived")
        services.kill(part)
    producing.join()
    wait_until(lambda: books.done.keys() >= set(orders) or services.letters(), "all orders reached the consumer")
    assert services.letters() == []
    assert books.done == dict.fromkeys(orders, 1)
    assert unquiet_lines(services.logs()) == []
