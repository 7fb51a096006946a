"""Two services with a store each, over a real broker, whose receivers and dispatchers are killed at every step."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from stagepost import App
from stagepost.transaction.steps import EdgeStep
from tests.faults.two_services import FOLDER, PREFIX, PREPARATION, Booked, Transfer
from tests.faults.worker_fleet import SCRIPT
from tests.places import bare_environment
from tests.processes import ROOT, Process, ProcessGroup
from tests.quiet_logs import unquiet_lines
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import PATIENCE_SECONDS, last_while_moving, wait_until

pytestmark = pytest.mark.more

TRANSFERS = 60
# Nothing of these services is sent again from stored copies.
STEPS: list[EdgeStep] = [each for each in EdgeStep if each not in (EdgeStep.RESENDING, EdgeStep.RESENT)]


class Place(NamedTuple):
    """A broker, and what the names of the services begin with there."""

    url: str
    prefix: str

    def app(self, name: str, service: Service) -> App:
        return App(f"{self.prefix}{name}", database=f"sqlite:///{service.path}", broker=self.url)


class Service:
    """``stagepost worker`` with the app of one service. It dies once at the edge for each of ``steps``."""

    def __init__(self, name: str, folder: Path, place: Place, processes: ProcessGroup, steps: list[EdgeStep]) -> None:
        self.name = name
        self.place = place
        self.path = folder / f"{name}.db"
        self.tickets = folder / name
        self.tickets.mkdir()
        for each in steps:
            (self.tickets / each).touch()
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(PREPARATION)
        self.environment = bare_environment() | processes.environment
        self.environment |= {
            "STAGEPOST_DATABASE": f"sqlite:///{self.path}",
            "STAGEPOST_BROKER": place.url,
            FOLDER: str(self.tickets),
            PREFIX: place.prefix,
        }
        self._log = folder / f"{name}.log"

    def run(self, *options: str) -> Process:
        """``stagepost worker``, with one worker process."""
        command = [str(SCRIPT), "worker", f"tests.faults.two_services:{self.name}", "--threads", "2", "--json"]
        with self._log.open("ab") as file:
            started = subprocess.Popen(
                [*command, *options], cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        return Process(started, self._log)

    def effects(self) -> list[tuple[str, int]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute("SELECT transfer_id, amount FROM effect ORDER BY transfer_id").fetchall()

    def left(self) -> list[str]:
        return sorted(each.name for each in self.tickets.iterdir())

    def broker(self) -> dict[str, Any]:
        """Return the broker as ``stagepost status`` shows it."""
        command = [str(SCRIPT), "status", "--json"]
        told = subprocess.run(command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, check=True)
        (found,) = json.loads(told.stdout)["brokers"]
        return dict(found)

    def query(self, sql: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(sql).fetchall()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def deaths(self) -> int:
        """Return how many dead processes the supervisor has replaced."""
        return self.log.count('"event": "worker-ended"')


@pytest.fixture
def place(broker_name: str, request: pytest.FixtureRequest) -> Place:
    server = request.getfixturevalue(broker_name)
    if isinstance(server, RabbitServer):
        return Place(server.url("heartbeat=5", server.add_host()), "")
    return Place(server.url("heartbeat=5"), f"t{uuid4().hex[:8]}-")


def stop(workers: Sequence[Process]) -> None:
    for worker in workers:
        worker.signal(signal.SIGTERM)
    assert [worker.wait() for worker in workers] == [0] * len(workers)


def check_books(payments: Service, ledger: Service, started: int) -> None:
    """Each of the started transfers took its amount here and brought it there, once, and nothing is left behind."""
    amounts = list(range(1, started + 1))
    assert sorted(amount for _, amount in ledger.effects()) == amounts
    assert sorted(-amount for _, amount in payments.effects() if amount) == amounts
    assert len(payments.effects()) == 2 * started
    for each in (payments, ledger):
        for table in ("dead_letter", "suspect", "delayed", "ready", "departure"):
            assert each.query(f"SELECT * FROM stagepost_{table}") == [], table


on_both_brokers = pytest.mark.parametrize("broker_name", ["rabbitmq", "activemq"])


@on_both_brokers
def test_each_effect_happens_once_while_the_edges_die_at_every_step(
    place: Place, processes: ProcessGroup, tmp_path: Path
) -> None:
    payments, ledger = (Service(name, tmp_path, place, processes, STEPS) for name in ("payments", "ledger"))
    workers = [each.run() for each in (payments, ledger)]
    app = place.app("payments", payments)
    pay = app.remote(f"{place.prefix}payments.pay", Transfer, Booked)
    started = 0

    def books() -> tuple[int, int, list[str]]:
        return len(payments.effects()), len(ledger.effects()), payments.left() + ledger.left()

    def is_over() -> bool:
        """Start transfers while processes are left that must die, because an idle edge passes no step."""
        nonlocal started
        answered = sum(amount == 0 for _, amount in payments.effects())
        if answered == started and (started < TRANSFERS or payments.left() + ledger.left()):
            for _ in range(5):
                started += 1
                app.start(pay, Transfer(f"t{started:04}", started), flow_id=f"t{started:04}")
            return False
        return answered == started

    # This process starts flows at a stage of an app of the same store, once it is declared.
    assert last_while_moving(lambda: bool(_declared(payments)), lambda: payments.log, PATIENCE_SECONDS)
    is_done = last_while_moving(is_over, books, 90)
    for each in (payments, ledger):
        print(f"--- {each.name}\n{each.log[-6000:]}")  # noqa: T201 - pytest shows it where the test failed
    assert is_done, books()
    # A supervisor that is stopped before it has seen the last death counts that process as broken off.
    for each in (payments, ledger):
        wait_until(lambda log=each: log.deaths() >= len(STEPS), "all dead processes are replaced")  # type: ignore[misc]
    stop(workers)
    check_books(payments, ledger, started)
    for each in (payments, ledger):
        assert unquiet_lines(each.log) == []
    # Deaths of the edge count against no message.
    assert payments.query("SELECT * FROM stagepost_journal WHERE waypoint IN ('died', 'failed')") == []


def test_each_effect_happens_once_while_the_broker_dies_and_is_cut_and_in_alarm(
    rabbitmq: RabbitServer, processes: ProcessGroup, tmp_path: Path
) -> None:
    place = Place(rabbitmq.url("heartbeat=5", rabbitmq.add_host()), "")
    payments, ledger = (Service(name, tmp_path, place, processes, []) for name in ("payments", "ledger"))
    workers = [each.run() for each in (payments, ledger)]
    app = place.app("payments", payments)
    assert last_while_moving(lambda: bool(_declared(payments)), lambda: payments.log, PATIENCE_SECONDS)
    started = 0

    def start(count: int) -> None:
        nonlocal started
        for _ in range(count):
            started += 1
            app.start(app.remote("payments.pay", Transfer), Transfer(f"t{started:04}", started), flow_id=f"{started}")

    def are_answered() -> bool:
        return sum(amount == 0 for _, amount in payments.effects()) == started

    def wait_for_answers() -> None:
        answered = last_while_moving(are_answered, lambda: (len(payments.effects()), len(ledger.effects())), 90)
        assert answered, (started, payments.effects(), payments.log[-4000:], ledger.log[-4000:])

    start(20)
    wait_for_answers()
    start(100)
    rabbitmq.restart()
    wait_for_answers()
    start(100)
    rabbitmq.cut_connections()
    start(100)
    with rabbitmq.in_alarm():
        start(100)
    wait_for_answers()

    def is_noted() -> bool:
        seen = ledger.broker()
        # Copies arrive too.
        return (seen["state"], seen["dispatched"]) == ("connected", started) and seen["arrived"] >= started

    # The state is noted at once, and the counts every ten seconds.
    wait_until(is_noted, "status shows that all messages have arrived and left")
    stop(workers)
    check_books(payments, ledger, started)
    for each in (payments, ledger):
        assert each.query("SELECT * FROM stagepost_edge") == []
        assert unquiet_lines(each.log) == []
        assert "worker-ended" not in each.log


@on_both_brokers
def test_a_run_that_drains_receives_runs_and_sends_until_nothing_is_left(
    place: Place, processes: ProcessGroup, tmp_path: Path
) -> None:
    payments, ledger = (Service(name, tmp_path, place, processes, []) for name in ("payments", "ledger"))
    # It declares the ledger's queues, and finds nothing to do.
    assert ledger.run("--drain").wait() == 0, ledger.log
    # Without a broker a message waits for its stage, whatever is declared.
    with closing(App(f"{place.prefix}payments", database=f"sqlite:///{payments.path}")) as app:
        for n in range(1, 6):
            app.start(app.remote(f"{place.prefix}payments.pay", Transfer), Transfer(f"t{n}", n), flow_id=f"t{n}")
    web = Service("web", tmp_path, place, processes, [])
    with closing(place.app("web", web)) as app:
        app.start(app.remote(f"{place.prefix}ledger.book", Transfer), Transfer("t6", 6), flow_id="t6")
    for service in (payments, web, ledger, payments):
        assert service.run("--drain").wait() == 0, service.log
    assert sorted(amount for _, amount in ledger.effects()) == [1, 2, 3, 4, 5, 6]
    assert len(payments.effects()) == 10
    for each in (payments, ledger):
        assert each.query("SELECT * FROM stagepost_ready") == []
        assert "worker-ended" not in each.log


def _declared(service: Service) -> bool:
    try:
        return (f"{service.place.prefix}payments.pay",) in service.query("SELECT stage FROM stagepost_declaration")
    except sqlite3.OperationalError:
        return False
