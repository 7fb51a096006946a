"""``examples/web`` with real processes: orders over HTTP, a worker beside the server, and kills of both."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from tests.places import bare_environment
from tests.servers.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS, wait_until

ORDERS = 40
# After so many answers the server is killed, with other requests under way.
ANSWERS = 12


class Shop:
    """The processes of one shop, on one database."""

    def __init__(self, framework: str, url: str, log: Path) -> None:
        self.framework = framework
        self.url = url
        self.port = reserved_port()
        self._log = log
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**bare_environment(), "STAGEPOST_DATABASE": self.url, **environment},
                stdout=log,
                stderr=log,
            )
        self._started.append(process)
        return process

    def serve(self, reply_seconds: float = PATIENCE_SECONDS) -> subprocess.Popen[bytes]:
        server = self.start("examples.web", self.framework, str(self.port), REPLY_SECONDS=str(reply_seconds))

        def answers() -> bool:
            assert server.poll() is None, self._log.read_text()
            with suppress(OSError):
                return self.ask("GET", "/orders/none")[0] == 404
            return False

        wait_until(answers, "the server answers")
        return server

    def work(self, *options: str) -> subprocess.Popen[bytes]:
        return self.start("stagepost", "worker", f"examples.web.{self.framework}_shop:shop", *options)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)) as connection:
            connection.request(
                method, path, None if body is None else json.dumps(body), {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def order(self, order_id: str) -> tuple[int, dict[str, object]]:
        return self.ask("POST", "/orders", {"order_id": order_id, "amount": 3})

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file:
                return file.execute(statement).fetchall()
        with psycopg.connect(self.url) as server:
            return server.execute(statement.encode()).fetchall()

    def close(self) -> None:
        for each in self._started:
            if each.poll() is None:
                each.send_signal(signal.SIGTERM)
        for each in self._started:
            each.wait(PATIENCE_SECONDS)


@pytest.fixture(params=["fastapi", "django"])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def shop(request: pytest.FixtureRequest, framework: str, tmp_path: Path) -> Iterator[Shop]:
    make: Callable[[], str] = request.getfixturevalue(f"new_{request.param}")
    url = make()
    command = [sys.executable, "-m", "stagepost", "migrate", "--database", url]
    subprocess.run(command, check=True, capture_output=True)
    shop = Shop(framework, url, tmp_path / "log")
    yield shop
    shop.close()


@pytest.mark.more
def test_a_request_waits_for_its_confirmation_and_a_repeat_changes_nothing(shop: Shop) -> None:
    shop.serve()
    worker = shop.work()
    assert shop.order("o1") == (200, {"order_id": "o1", "is_confirmed": True})
    assert shop.order("o1") == (200, {"order_id": "o1", "is_confirmed": True})
    with ThreadPoolExecutor(8) as clients:
        assert {status for status, _ in clients.map(shop.order, [f"n{n}" for n in range(16)])} == {200}
    assert worker.poll() is None
    assert shop.rows("SELECT DISTINCT confirmations FROM sale") == [(1,)]


@pytest.mark.more
def test_without_a_worker_the_order_is_accepted_and_confirmed_later(shop: Shop) -> None:
    shop.serve(reply_seconds=0.2)
    assert shop.order("o1") == (202, {"order_id": "o1", "is_confirmed": False})
    assert shop.work("--drain").wait(PATIENCE_SECONDS) == 0
    assert shop.ask("GET", "/orders/o1") == (200, {"order_id": "o1", "is_confirmed": True})


@pytest.mark.parametrize("framework", ["fastapi", pytest.param("django", marks=pytest.mark.more)], indirect=True)
def test_a_client_that_goes_away_ends_the_wait_and_the_reply_expires(shop: Shop) -> None:
    shop.serve()
    body = json.dumps({"order_id": "o1", "amount": 3})
    with closing(http.client.HTTPConnection("127.0.0.1", shop.port, timeout=PATIENCE_SECONDS)) as connection:
        connection.request("POST", "/orders", body, {"content-type": "application/json"})
        wait_until(lambda: shop.rows("SELECT 1 FROM sale WHERE order_id = 'o1'"), "the order is accepted")
    worker = shop.work()
    expired = "SELECT 1 FROM stagepost_journal WHERE waypoint = 'expired'"
    wait_until(lambda: shop.rows(expired), "the reply has expired")
    assert worker.poll() is None
    assert shop.rows("SELECT confirmations FROM sale") == [(1,)]
    assert shop.ask("GET", "/orders/o1") == (200, {"order_id": "o1", "is_confirmed": True})


@pytest.mark.parametrize("framework", ["django", pytest.param("fastapi", marks=pytest.mark.more)], indirect=True)
def test_a_server_that_is_killed_leaves_no_order_without_its_flow_and_none_twice(shop: Shop) -> None:
    server = shop.serve()
    worker = shop.work()
    orders = [f"o{n}" for n in range(ORDERS)]
    answered: list[str] = []

    def place(order_id: str) -> None:
        with suppress(OSError, http.client.HTTPException):
            shop.order(order_id)
            answered.append(order_id)
        if len(answered) >= ANSWERS:
            with suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGKILL)

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(place, orders))
    assert server.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    assert ANSWERS <= len(answered) < ORDERS
    both = "SELECT (SELECT count(*) FROM sale), (SELECT count(*) FROM stagepost_accepted)"
    ((sales, flows),) = shop.rows(both)
    assert sales == flows
    shop.serve()
    with ThreadPoolExecutor(8) as clients:
        assert {status for status, _ in clients.map(shop.order, orders)} == {200}
    wait_until(
        lambda: shop.rows("SELECT count(*) FROM sale WHERE confirmations = 1") == [(ORDERS,)], "all are confirmed"
    )
    assert worker.poll() is None
    assert shop.rows(both) == [(ORDERS, ORDERS)]
