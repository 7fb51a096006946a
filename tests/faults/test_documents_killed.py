"""Workers whose stage writes documents into a real Redis are killed and stopped at each step."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from _pytest.mark import ParameterSet

from stagepost import App, Target
from stagepost.app.app import engine_of
from stagepost.runtime.settings import Place, handing_down
from stagepost.store.document.redis import RedisDocuments
from stagepost.worker.child import Plan
from tests.faults.documented_bank import Booking
from tests.faults.pausing import pause
from tests.faults.worker_fleet import PROCESS, SCRIPT
from tests.places import bare_environment
from tests.processes import ROOT, Process, ProcessGroup
from tests.servers.redis import RedisServer
from tests.waiting import wait_until

APP = "tests.faults.documented_bank:app"
ACCOUNTS, BOOKINGS = 2, 12
STEPS = ("claimed", "handled", "listed", "written", "recorded", "committing", "committed", "after_commit")
# On SQLite a process that stands still in its transaction keeps all others from writing: its supervisor kills it.
PAUSES = ("claimed", "handled", "listed", "written", "committed")


def _first(step: str, sampled: str) -> ParameterSet:
    """Return a step, to run with ``make test`` if it is the sampled one."""
    return pytest.param(step, marks=[] if step == sampled else pytest.mark.more)


class Bank:
    """The bookings, the processes that handle them, and the judge."""

    def __init__(self, url: str, server: RedisServer, folder: Path) -> None:
        self.url, self._folder = url, folder
        self._group = ProcessGroup()
        self._processes: list[Process] = []
        self.use(server)
        self._execute("CREATE TABLE entry (account integer, cents integer)")
        self._app = App("documented", database=url)
        target: Target[Booking, Any] = self._app.remote("accounts.book", Booking)
        for number in range(BOOKINGS):
            self._app.start(target, Booking(number % ACCOUNTS, 2**number), flow_id=f"booking:{number}")

    def use(self, server: RedisServer) -> None:
        self._server = server
        self.documents = RedisDocuments(server.url)
        server.clear()

    def worker(self, *, at: str = "") -> Process:
        """``stagepost worker --drain``: a supervisor with a worker process."""
        command = [str(SCRIPT), "worker", APP, "--database", self.url, "--drain", "--processes", "1", "--json"]
        return self._start([*command, "--threads", "2"], at)

    def process(self, *, at: str = "", paused_after_seconds: float = 30) -> Process:
        """A worker process alone, whose parent is the test. Its thread is held at the step."""
        plan = Plan(APP, 1, False, 30, os.getpid(), "INFO", True, paused_after_seconds)
        return self._start([sys.executable, "-m", PROCESS, msgspec.json.encode(plan).decode()], at, DOCUMENTS_HOLDS="1")

    def has_reached(self, step: str) -> bool:
        return (self._folder / f"at-{step}").exists()

    def is_settled(self) -> bool:
        access = engine_of(self._app).access()
        try:
            depths = access.session.queue.depths()
            return not any(each.ready or each.claimed or each.delayed or each.suspect for each in depths)
        finally:
            access.close()

    @property
    def problems(self) -> list[str]:
        """The differences between the bookings, the documents and the ledger, and the dead letters."""
        found = []
        entries = sorted(self._execute("SELECT account, cents FROM entry"))
        expected = sorted((number % ACCOUNTS, 2**number) for number in range(BOOKINGS))
        if entries != expected:
            found.append(f"ledger {entries}")
        for account in range(ACCOUNTS):
            content = json.loads(self.documents.read(f"account:{account}").body)
            cents = sum(2**number for number in range(BOOKINGS) if number % ACCOUNTS == account)
            if content["cents"] != cents:
                found.append(f"account {account} has {content['cents']} in place of {cents}")
            if len(content["processed"]) > 4:
                found.append(f"account {account} keeps {len(content['processed'])} ids")
        letters = self._execute("SELECT stage, reason FROM stagepost_dead_letter")
        return [*found, *(f"dead letter {each}" for each in letters)]

    def close(self) -> None:
        for each in self._processes:
            each.kill()
        self._group.kill_all()
        for each in self._processes:
            print(f"--- {each.log.name}\n{each.log.read_text(errors='replace')[-4000:]}")  # noqa: T201 - pytest shows it where the test failed
        self._app.close()

    def go(self) -> None:
        (self._folder / "go").touch()

    def _start(self, command: list[str], at: str, **settings: str) -> Process:
        there = {each: value for each, value in handing_down(Place(self.url, None)).items() if each not in os.environ}
        environment = bare_environment() | there | self._group.environment
        environment |= {"DOCUMENTS_URL": self._server.url, "DOCUMENTS_AT": at, "DOCUMENTS_FOLDER": str(self._folder)}
        environment |= settings
        log = self._folder / f"{len(self._processes)}.log"
        with log.open("ab") as file:
            started = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self._processes.append(Process(started, log))
        return self._processes[-1]

    def _execute(self, statement: str) -> list[Any]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file, file:
                return file.execute(statement).fetchall()
        with psycopg.connect(self.url) as connection:
            answer = connection.execute(statement.encode())
            return answer.fetchall() if answer.description else []


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def bank(request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path) -> Iterator[Bank]:
    make: Callable[[], str] = request.getfixturevalue(f"new_{request.param}")
    bank = Bank(make(), redis_server, tmp_path)
    yield bank
    bank.close()


@pytest.mark.parametrize(
    "step", [pytest.param(each, marks=[] if each == "written" else pytest.mark.more) for each in STEPS]
)
def test_a_worker_killed_at_a_step_leaves_each_booking_exactly_once(step: str, bank: Bank) -> None:
    assert bank.worker(at=step).wait() == 0
    assert bank.has_reached(step)
    assert bank.problems == []


@pytest.mark.parametrize("first", ["listed", pytest.param("written", marks=pytest.mark.more)])
def test_the_next_owner_killed_after_its_fence_leaves_each_booking_exactly_once(first: str, bank: Bank) -> None:
    assert bank.worker(at=f"{first},fenced").wait() == 0
    assert bank.has_reached("fenced")
    assert bank.problems == []


@pytest.mark.parametrize(
    "step", [pytest.param(each, marks=[] if each == "listed" else pytest.mark.more) for each in PAUSES]
)
def test_an_owner_stopped_at_a_step_changes_nothing_when_it_goes_on(step: str, bank: Bank) -> None:
    first = bank.process(at=step)
    wait_until(lambda: bank.has_reached(step), "the first owner is at the step")
    pause(first.pid, bank.url)
    second = bank.process(paused_after_seconds=1)
    wait_until(bank.is_settled, "the second owner has handled everything")
    assert bank.problems == []
    bank.go()
    first.signal(signal.SIGCONT)
    for each in (first, second):
        each.signal(signal.SIGTERM)
        each.wait()
    assert bank.is_settled()
    assert bank.problems == []


def test_a_worker_waits_for_a_server_of_documents_that_was_killed(bank: Bank, tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "mortal")
    server.start()
    try:
        bank.use(server)
        worker = bank.worker()
        wait_until(lambda: server.client().exists("account:0"), "the first booking is written")
        server.kill()
        server.start()
        assert worker.wait() == 0
        assert bank.problems == []
    finally:
        server.stop()
