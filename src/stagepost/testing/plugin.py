"""The pytest plugin, which pytest finds by its entry point: fixtures that run an app in memory and on each database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from stagepost.runtime.settings import TEST_POSTGRES_VARIABLE, postgres_for_tests
from stagepost.testing.clock import ManualClock
from stagepost.testing.postgres import new_database
from stagepost.testing.running import AnApp, RunningApp, run

SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stagepost")
    group.addoption(
        "--stagepost-seed",
        default="0",
        metavar="SEED",
        help="decides the order in which drain() runs messages: a number, or 'random' for another order each time",
    )
    parser.addini("stagepost_app", "the app of the fixtures: module:app, or module:make_app() for a function")


def pytest_configure(config: pytest.Config) -> None:
    given = config.getoption("--stagepost-seed")
    if given != "random" and not given.isdecimal():
        raise pytest.UsageError(f"--stagepost-seed={given} is neither a number nor 'random'")
    config.stash[SEED] = SystemRandom().randrange(2**32) if given == "random" else int(given)


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("--stagepost-seed") == "0":
        return None
    return f"stagepost: messages run in the order of --stagepost-seed={config.stash[SEED]}"


@pytest.fixture
def stagepost_app(request: pytest.FixtureRequest) -> AnApp:
    """The app that the fixtures run: the setting ``stagepost_app``. Override it to return an app or a factory."""
    named = str(request.config.getini("stagepost_app"))
    if not named:
        raise pytest.UsageError(
            "no app is named: set stagepost_app = module:make_app() in pytest's settings, or define a fixture "
            "stagepost_app that returns an app"
        )
    return named


@pytest.fixture
def stagepost_clock() -> ManualClock:
    """The virtual clock of all apps of the test."""
    return ManualClock()


@pytest.fixture
def stagepost_ends() -> Iterator[ExitStack]:
    """Ends the apps and then the databases that a test began, the last one first."""
    with ExitStack() as ends:
        yield ends


@pytest.fixture
def stagepost_run(
    request: pytest.FixtureRequest, stagepost_clock: ManualClock, stagepost_ends: ExitStack
) -> Callable[..., RunningApp]:
    """Run an app until the test ends: ``stagepost_run(app, "memory:")``, as ``stagepost.testing.run`` does."""

    def begin(app: AnApp, database: str | None = None, **options: Any) -> RunningApp:
        options = {"seed": request.config.stash[SEED], "clock": stagepost_clock, **options}
        return stagepost_ends.enter_context(run(app, database, **options))

    return begin


@pytest.fixture
def stagepost_memory(stagepost_app: AnApp, stagepost_run: Callable[..., RunningApp]) -> RunningApp:
    """The app in memory: on an SQLite file that ends with the test."""
    return stagepost_run(stagepost_app, "memory:")


@pytest.fixture
def stagepost_sqlite(stagepost_app: AnApp, stagepost_run: Callable[..., RunningApp], tmp_path: Path) -> RunningApp:
    """The app on an SQLite file in ``tmp_path``, which pytest keeps for a while."""
    return stagepost_run(stagepost_app, f"sqlite:///{tmp_path}/stagepost.db")


@pytest.fixture
def stagepost_postgres_url(stagepost_ends: ExitStack) -> str:
    """The URL of a new PostgreSQL database, on the server that ``STAGEPOST_TEST_POSTGRES`` names.

    The URL's user must be allowed to create databases. Without the variable, the test is skipped.
    """
    server = postgres_for_tests()
    if server is None:
        pytest.skip(f"{TEST_POSTGRES_VARIABLE} names no PostgreSQL server: postgresql://user:password@host/database")
    return stagepost_ends.enter_context(new_database(server))


@pytest.fixture
def stagepost_postgres(
    stagepost_app: AnApp, stagepost_run: Callable[..., RunningApp], stagepost_postgres_url: str
) -> RunningApp:
    """The app on a new PostgreSQL database, which ends with the test."""
    return stagepost_run(stagepost_app, stagepost_postgres_url)
