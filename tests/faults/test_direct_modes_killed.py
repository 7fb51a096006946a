"""Stages that consume from a real broker, whose processes are killed at every step of their modes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stagepost import App
from stagepost.flow.target import Target
from tests.faults.direct_services import DEAD, FOLDER, NAME, PREPARATION, TICKETS, Order
from tests.faults.pausing import pause
from tests.faults.worker_fleet import SCRIPT
from tests.places import bare_environment
from tests.processes import ROOT, Process, ProcessGroup
from tests.quiet_logs import unquiet_lines
from tests.waiting import last_while_moving, wait_until

pytestmark = pytest.mark.more

ORDERS = 60
Row = tuple[Any, ...]


class Service:
    """``stagepost worker`` with the app, on its store and over its broker."""

    def __init__(self, url: str, broker: str, folder: Path, processes: ProcessGroup) -> None:
        self.url = url
        self.broker = broker
        self.tickets = folder / "tickets"
        self.tickets.mkdir()
        self._dead = folder / DEAD
        self._dead.mkdir()
        self._log = folder / "worker.log"
        self.query(PREPARATION)
        self.environment = bare_environment() | processes.environment
        self.name = f"order{uuid.uuid4().hex[:8]}"
        self.environment |= {"STAGEPOST_DATABASE": url, "STAGEPOST_BROKER": broker}
        self.environment |= {FOLDER: str(self.tickets), NAME: self.name}
        self.app = App(self.name, database=url, broker=broker, local=False)

    def run(self, *options: str) -> Process:
        command = [str(SCRIPT), "worker", "tests.faults.direct_services:app", "--threads", "2", "--json", *options]
        with self._log.open("ab") as file:
            started = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        return Process(started, self._log)

    def start(self, *order_ids: str) -> None:
        pay: Target[Order, Any] = self.app.remote(f"{self.name}.pay", Order)
        with self.app.initiate() as out:
            for each in order_ids:
                out.send(pay, Order(each), flow_id=each)

    def query(self, sql: str) -> list[Row]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection, connection:
                return connection.execute(sql).fetchall()
        with psycopg.connect(self.url) as server:
            found = server.execute(sql)
            return found.fetchall() if found.description else []

    def effects(self, stage: str) -> Counter[str]:
        return Counter(each for (each,) in self.query(f"SELECT order_id FROM effect WHERE stage = '{stage}'"))

    def lines(self, waypoint: str, stage: str = "pay") -> Counter[str]:
        found = self.query(
            f"SELECT flow_id FROM stagepost_journal WHERE waypoint = '{waypoint}' AND stage = '{self.name}.{stage}'"
        )
        return Counter(each for (each,) in found)

    def left(self) -> list[str]:
        return sorted(each.name for each in self.tickets.iterdir())

    def dying(self) -> list[str]:
        """Return the processes that have taken a ticket, and whose parent does not know yet that they are dead."""
        return [each.name for each in self._dead.iterdir() if Path("/proc", each.name).exists()]

    def waiting(self) -> int:
        tables = ("ready", "delayed", "suspect")
        return sum(len(self.query(f"SELECT 1 FROM stagepost_{table}")) for table in tables)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")


@pytest.fixture
def service(
    request: pytest.FixtureRequest, store: str, broker_name: str, tmp_path: Path, processes: ProcessGroup
) -> Iterator[Service]:
    if broker_name == "rabbitmq":
        server = request.getfixturevalue("rabbitmq")
        broker = server.url("heartbeat=4", server.add_host())
    else:
        broker = request.getfixturevalue("activemq").url("heartbeat=4")
    url = f"sqlite:///{tmp_path / 'order.db'}" if store == "sqlite" else request.getfixturevalue("new_postgres")()
    service = Service(url, broker, tmp_path, processes)
    yield service
    service.app.close()


@pytest.mark.parametrize(
    ("store", "broker_name"),
    [("sqlite", "rabbitmq"), ("postgres", "rabbitmq"), ("sqlite", "activemq"), ("postgres", "activemq")],
)
def test_each_effect_happens_as_often_as_its_mode_promises_while_processes_die_at_every_step(service: Service) -> None:
    for each in TICKETS:
        (service.tickets / each).touch()
    worker = service.run()
    started = 0

    def books() -> tuple[list[int], list[str]]:
        return [len(service.effects(stage)) for stage in ("pay", "bill", "book")], service.left()

    def is_over() -> bool:
        """Start orders while processes are left that must die."""
        nonlocal started
        booked = len(service.effects("book"))
        if booked == started and (started < ORDERS or service.left()):
            service.start(*(f"o{started + n:04}" for n in range(5)))
            started += 5
            return False
        return booked == started and not service.waiting()

    is_done = last_while_moving(is_over, books, 90)
    print(service.log[-8000:])  # noqa: T201 - pytest shows it where the test failed
    assert is_done, books()
    # A supervisor that is stopped before it has seen the last death counts that process as broken off.
    wait_until(lambda: not service.dying(), "the dead processes are gone")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    orders = {f"o{n:04}" for n in range(started)}
    # Best effort repeats a run only where the journal says so, and the copies that it sends have the ids of the first.
    assert service.effects("pay") == Counter(dict.fromkeys(orders, 1)) + service.lines("doubted")
    # A guard forbids the repetition, and the stored bytes are sent.
    assert service.effects("bill") == dict.fromkeys(orders, 1)
    assert service.lines("doubted", "bill").total() >= 1
    assert service.effects("book") == dict.fromkeys(orders, 1)
    assert 1 <= service.lines("doubted").total() <= len(TICKETS)
    assert unquiet_lines(service.log) == []
    for table in ("dead_letter", "suspect", "delayed", "ready", "departure"):
        assert service.query(f"SELECT * FROM stagepost_{table}") == [], table
    assert service.query("SELECT 1 FROM stagepost_journal WHERE waypoint = 'failed'") == []


@pytest.mark.parametrize(("store", "broker_name"), [("sqlite", "rabbitmq"), ("postgres", "activemq")])
def test_a_poison_kills_one_process_directly_and_one_more_before_it_runs_alone(service: Service) -> None:
    worker = service.run("--processes", "4")
    service.start(*(f"o{n:04}" for n in range(20)))
    assert last_while_moving(lambda: len(service.effects("book")) == 20, lambda: service.effects("book"), 90)
    service.start("poison", *(f"o{n:04}" for n in range(20, 60)))

    def is_dead() -> bool:
        return len(service.effects("book")) == 60 and service.query("SELECT 1 FROM stagepost_dead_letter") != []

    assert last_while_moving(is_dead, lambda: (service.effects("book").total(), service.log), 90), service.log
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    ((reason, message_id),) = service.query("SELECT reason, flow_id FROM stagepost_dead_letter")
    assert (reason, message_id) == ("worker-died", "poison")
    assert service.log.count('"event": "worker-ended"') <= 2
    assert service.effects("book") == dict.fromkeys((f"o{n:04}" for n in range(60)), 1)


@pytest.mark.parametrize(("store", "broker_name"), [("sqlite", "rabbitmq"), ("postgres", "activemq")])
def test_of_a_run_that_stood_still_past_its_redelivery_and_the_stored_copy_one_commits(service: Service) -> None:
    worker = service.run("--processes", "2")
    service.start("o0")
    assert last_while_moving(lambda: len(service.effects("book")) == 1, lambda: service.log, 90), service.log
    service.start("slow")
    running = service.tickets / "running-slow"
    pid = int(wait_until(lambda: running.exists() and running.read_text(), "a process runs the order"))
    pause(pid, service.url)
    try:
        # The broker misses its heart-beats, and delivers the message to the other process, which stores it.
        wait_until(lambda: service.effects("book")["slow"], "another process ran the order")
        (service.tickets / "go").touch()
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: '"event": "broker-unavailable"' in service.log, "the run found that its delivery is lost")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert (service.effects("pay")["slow"], service.effects("book")["slow"]) == (1, 1)
    assert service.lines("doubted") == {}
    assert service.query("SELECT 1 FROM stagepost_journal WHERE waypoint IN ('failed', 'died')") == []
    assert unquiet_lines(service.log) == []


@pytest.mark.parametrize(("store", "broker_name"), [("sqlite", "rabbitmq")])
def test_a_run_that_drains_ends_beside_stages_that_consume_directly(service: Service) -> None:
    # It declares the queues, and finds nothing to do.
    assert service.run("--drain").wait() == 0, service.log
    service.start(*(f"o{n}" for n in range(10)))
    for _ in range(3):
        # What a direct stage sends to its own store may arrive after the receiver has ended.
        if len(service.effects("book")) < 10:
            assert service.run("--drain").wait() == 0, service.log
    assert service.effects("pay") == service.effects("book") == dict.fromkeys((f"o{n}" for n in range(10)), 1)
    assert service.waiting() == 0
    assert unquiet_lines(service.log) == []
