"""What the rooms share: a clock, an app on each of the two stores, its harness, and a ledger for its handlers."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from hypothesis import settings

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.ports.queue import QueueRow
from stagepost.store.postgres.store import PostgresStore
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing import Harness, ManualClock
from stagepost.testing.contract.givens import committed
from tests.campaigns import PROPERTY, Tell, line_of
from tests.places import InTwo, place
from tests.toy_store.store import ToyStore

pytest_plugins = ["tests.servers.plugin"]

# The toy store is installed like a third party's: its metadata lies in a folder of the path.
sys.path.append(str(Path(__file__).parent / "toy_store" / "installed"))

# How long an example takes says something about the machine, not about Stagepost.
settings.register_profile("stagepost", deadline=None, print_blob=True)
settings.load_profile("stagepost")

# A test has ended before Java's second compiler, and several threads that collect its garbage, are worth what they take
# of the few processors there are.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Those that take longest.
FIRST = ("pipeline/", "demo/", "faults/")


def pytest_configure() -> None:
    """A shell without job control has what it starts in the background ignore Ctrl-C, and all children of that too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that nobody waits for them at the end.

    What is said of all modes runs in all of them: a module says so, and a test of it may say otherwise.
    """
    items[:] = [item for item in items if "new_database" not in _parameters(item) or _holds_for(item)]
    for item in items:
        place_of_item = str(_parameters(item).get("new_database", ""))
        is_longer = place_of_item.startswith("postgres") and item.get_closest_marker("longer_on_postgres") is not None
        # What is said of all modes takes two databases a test there; what is said of a mode alone is not put off.
        is_of_the_mode = item.path.stem in ("test_two_phase", "test_outbox", "test_guards", "test_undoing")
        if place_of_item in ("postgres-two_phase", "sqlite-outbox") and not is_of_the_mode:
            item.add_marker(pytest.mark.soak)
        elif is_longer:
            item.add_marker(pytest.mark.more)
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    """What thousands of tests are made of stays for good. Not looked at again and again, it leaves the garbage of each
    of them, connections and files among it, to be found soon."""
    gc.collect()
    gc.freeze()


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def _holds_for(item: pytest.Item) -> bool:
    is_in_two = "-" in _parameters(item)["new_database"]
    says_so = isinstance(item, pytest.Function) and getattr(item.module, "IN_EVERY_MODE", False)
    return not is_in_two or (says_so and item.get_closest_marker("in_one_database") is None)


def _place(item: pytest.Item) -> int:
    path = item.path.relative_to(Path(__file__).parent).as_posix()
    return next((place for place, start in enumerate(FIRST) if path.startswith(start)), len(FIRST))


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    return lambda name, problems: record_property(PROPERTY, line_of(name, problems))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [each for outcome in ("passed", "failed") for each in terminalreporter.getreports(outcome)]
    lines = [str(text) for each in reports for name, text in each.user_properties if name == PROPERTY]
    if lines:
        terminalreporter.section("fault campaigns")
    for line in sorted(set(lines)):
        terminalreporter.write_line(line)


NewApp = Callable[..., App]
Inject = Callable[..., None]


class Ledger:
    """What handlers wrote and what of it was committed, in order. No unique key: a duplicate must show."""

    def __init__(self, app: App) -> None:
        self._store = engine_of(app).databases.business or engine_of(app).store
        if isinstance(self._store, SqliteStore):
            with closing(sqlite3.connect(self._store.path)) as connection:
                connection.execute("CREATE TABLE ledger (entry TEXT)")
        if isinstance(self._store, PostgresStore):
            with psycopg.connect(self._store.url) as server:
                server.execute("CREATE TABLE ledger (entry text, place bigint GENERATED ALWAYS AS IDENTITY)")

    def write(self, ctx: Context, entry: str) -> None:
        if isinstance(self._store, ToyStore):
            ctx.connection.append(entry)
        else:
            ctx.sql("INSERT INTO ledger (entry) VALUES (:entry)", entry=entry)

    @property
    def entries(self) -> list[str]:
        if isinstance(self._store, ToyStore):
            return list(self._store.tables.ledger.values())
        if isinstance(self._store, PostgresStore):
            with psycopg.connect(self._store.url) as server:
                return [entry for (entry,) in server.execute("SELECT entry FROM ledger ORDER BY place")]
        assert isinstance(self._store, SqliteStore)
        with closing(sqlite3.connect(self._store.path)) as connection:
            return [entry for (entry,) in connection.execute("SELECT entry FROM ledger ORDER BY rowid")]


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """A command that runs in this process configures logging. Later records would meet its closed standard error."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def new_file(tmp_path: Path) -> Callable[[], Path]:
    """A database file that does not exist yet, another one each time."""
    numbers = count(1)
    return lambda: tmp_path / f"shop-{next(numbers)}.db"


@pytest.fixture(params=["memory", "sqlite", "postgres", "memory-outbox", "sqlite-outbox", "postgres-two_phase"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    """The URL of an empty store. A module about SQLite alone takes ``new_sqlite`` in its place.

    With a mode behind it, the app's messages are in another one like it.
    """
    return place(request)


@pytest.fixture
def new_sqlite(new_file: Callable[[], Path]) -> Callable[[], str]:
    return lambda: f"sqlite:///{new_file()}"


@pytest.fixture
def new_app(new_database: Callable[[], str], clock: ManualClock) -> Iterator[NewApp]:
    made: list[App] = []

    def make(**options: Any) -> App:
        given = {"database": new_database(), "clock": clock, "random": Random(0), **options}
        if isinstance(new_database, InTwo):
            given = {"queue": new_database(), "mode": new_database.mode, **given}
        made.append(App("shop", **given))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def app(new_app: NewApp) -> App:
    return new_app()


@pytest.fixture
def ledger(app: App) -> Ledger:
    return Ledger(app)


@pytest.fixture
def ledger_of() -> Callable[[App], Ledger]:
    return Ledger


@pytest.fixture
def harness_of() -> Iterator[Callable[..., Harness]]:
    """Harnesses that are closed when the test has ended. Make one after everything was declared."""
    opened: list[Harness] = []

    def make(app: App, **options: Any) -> Harness:
        opened.append(Harness(app, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def harness(app: App, harness_of: Callable[..., Harness]) -> Callable[..., Harness]:
    return lambda **options: harness_of(app, **options)


@pytest.fixture
def inject(app: App) -> Inject:
    """Puts bytes of any kind into a stage's queue, as a foreign sender would."""

    def put(stage: str, envelope: bytes, *, message_id: str = "m1", flow_id: str = "flow", failures: int = 0) -> None:
        access = engine_of(app).access()
        row = QueueRow(stage, message_id, flow_id, failures, 0, 0, engine_of(app).clock.now(), envelope, None)
        with committed(access.session):
            access.session.queue.enqueue([row])
        access.session.close()

    return put


@pytest.fixture
def outside(app: App) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection to the app's file. It never waits for a lock."""
    store = engine_of(app).store
    assert isinstance(store, SqliteStore)
    with closing(sqlite3.connect(store.path, timeout=0, isolation_level=None)) as connection:
        yield connection
