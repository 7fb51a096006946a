"""Ctrl-C in the middle of ``app.start`` leaves no lock, no transaction and no file behind, wherever it arrives."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import psycopg
import pytest

from stagepost import App, IdConflict, Started
from stagepost.app.app import engine_of
from stagepost.store.postgres.store import PostgresStore
from stagepost.store.sqlite.store import SqliteStore
from tests.app.interrupts import InterruptedAt
from tests.app.open_files import open_files
from tests.faults.interrupted_starter import Order, open_shop
from tests.waiting import PATIENCE_SECONDS, last_of

# The driver says so of a connection that is interrupted before it has a name, and closes it.
pytestmark = pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")

on_every_store = pytest.mark.parametrize(
    "new_database", ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.more)], indirect=True
)
# A cold start passes many places, each of which is interrupted once.
cold_or_warm = pytest.mark.parametrize(
    "starts", [pytest.param("cold", marks=pytest.mark.soak), "warm", "conflict"], indirect=True
)

# Within so many places after the first one.
NEARBY = 60


class Starts:
    """One way to start flows; ``prepare`` makes the app as it is before, ``start`` is what is interrupted."""

    def __init__(self, database: str, *, is_cold: bool, is_conflict: bool) -> None:
        self.database = database
        self._is_cold = is_cold
        self._is_conflict = is_conflict
        self._app = open_shop(database)
        self._app.start(self._app.target("place"), Order(0), flow_id="before")

    def prepare(self) -> App:
        if self._is_cold:
            self._app.close()
            self._app = open_shop(self.database)
        return self._app

    def start(self, app: App, number: int) -> None:
        try:
            with app.initiate() as out:
                out.send(app.target("place"), Order(number), flow_id=f"first {number}")
                out.send(app.target("place"), Order(1 if self._is_conflict else number), flow_id=f"second {number}")
                if self._is_conflict:
                    out.send(app.target("place"), Order(1), flow_id="before")
        except IdConflict:
            assert self._is_conflict


@pytest.fixture(params=["cold", "warm", "conflict"])
def starts(request: pytest.FixtureRequest, new_database: Callable[[], str]) -> Iterator[Starts]:
    made = Starts(new_database(), is_cold=request.param == "cold", is_conflict=request.param == "conflict")
    yield made
    made.prepare().close()


def leftovers(app: App, files: Counter[str]) -> list[str]:
    """What an interrupt left behind; ``files`` are open without one."""
    # Threads that other tests have left in this process open and close sockets at any time.
    last_of(lambda: not open_files() - files)
    found = [f"open: {each}" for each in open_files() - files]
    figures = app.connections()
    if figures.in_use or figures.waiting:
        found.append(f"connections in use: {figures}")
    if isinstance(engine_of(app).store, SqliteStore):
        found += [f"locked: {each}" for each in write_locks()]
    if isinstance(engine_of(app).store, PostgresStore):
        # The server ends a statement before it sees that its client has gone.
        last_of(lambda: not open_transactions(app.database))
        found += [f"transaction: {each}" for each in open_transactions(app.database)]
    return found


def write_locks() -> list[str]:
    return [
        line
        for line in Path("/proc/locks").read_text().splitlines()
        # The suite has locks of its own, of another kind.
        if line.split()[1] == "POSIX" and line.split()[3] == "WRITE" and line.split()[4] == str(os.getpid())
    ]


def open_transactions(url: str) -> list[str]:
    with psycopg.connect(url) as server:
        return [
            str(row)
            for row in server.execute(
                "SELECT pid, state, query FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'"
                " AND backend_type = 'client backend'"
            )
        ]


def start_elsewhere(app: App, number: int) -> None:
    """In another thread, which finds no lock that this one holds."""
    outcome: list[object] = []

    def start() -> None:
        try:
            outcome.append(app.start(app.target("place"), Order(number), flow_id=f"after {number}"))
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            outcome.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert [type(each) for each in outcome] == [Started], outcome


@contextmanager
def told_where(interrupted: InterruptedAt) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(f"after {interrupted.where}")
        raise


def check_interrupted(starts: Starts, places: Callable[[int], Iterable[tuple[int, int | None]]]) -> None:
    app = starts.prepare()
    with InterruptedAt() as counted:
        starts.start(app, -1)
    assert counted.places > 100
    files = open_files()
    # What thousands of other tests have left is not looked through each time.
    gc.collect()
    gc.freeze()
    problems: list[str] = []
    for number, place in enumerate(places(counted.places)):
        app = starts.prepare()
        interrupted = InterruptedAt(*place)
        with suppress(KeyboardInterrupt), interrupted:
            starts.start(app, number)
        # SQLite keeps the file of a connection that is closed beside another one, for the next that is opened.
        gc.collect()
        with told_where(interrupted):
            start_elsewhere(app, number)
        problems += [f"{interrupted.where}: {each}" for each in leftovers(app, files)]
    assert not problems, "\n".join(problems)


@on_every_store
@cold_or_warm
def test_an_interrupt_anywhere_leaves_nothing_behind(starts: Starts) -> None:
    check_interrupted(starts, lambda count: [(number, None) for number in range(count)])


@on_every_store
@cold_or_warm
@pytest.mark.parametrize("interrupts", [100, pytest.param(2_000, marks=pytest.mark.soak)])
def test_a_second_interrupt_in_the_midst_of_what_the_first_one_set_off_leaves_nothing_behind(
    starts: Starts, interrupts: int
) -> None:
    random = Random(0)
    check_interrupted(
        starts, lambda count: [(random.randrange(count), random.randrange(NEARBY)) for _ in range(interrupts)]
    )
