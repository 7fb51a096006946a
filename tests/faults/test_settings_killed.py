"""What is started, handled and sent is once each, whatever connection, role, database, pooler, file name or locale are
set to, and whoever is killed meanwhile.

A few kills stand for each setting in ``make test`` and ``make test-more``; ``make soak`` makes two hundred of each.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import psycopg
import pytest

from tests.campaigns import Tell
from tests.faults.books import Books, transfers
from tests.faults.campaign import Campaign, run
from tests.faults.sqlite_books import SqliteBooks
from tests.faults.worker_fleet import Member, WorkerFleet
from tests.waiting import wait_until

FEW, KILLS = 3, 200
FLOWS_A_KILL = 10
REPEATED = 50
FLOWS_A_RUN = 60
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

Cell = tuple[str, str]


def sampled(cells: list[Cell], in_test: set[Cell]) -> list[object]:
    """Each setting on its store with a few kills, of which some are for ``make test``, and with all of them."""
    return [
        *(pytest.param(FEW, *each, marks=[] if each in in_test else pytest.mark.more) for each in cells),
        *(pytest.param(KILLS, *each, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]) for each in cells),
    ]


class Scene:
    """What a setting may set before the workers come."""

    def __init__(self, books: Books, fleet: WorkerFleet, folder: Path, request: pytest.FixtureRequest) -> None:
        self.books = books
        self.fleet = fleet
        self.folder = folder
        self.request = request
        self.fault = ""
        self.flow_name = "t"


def default(name: str, value: str) -> Callable[[Scene], None]:
    def set_default(scene: Scene) -> None:
        url = scene.books.url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {name} TO '{value}'".encode())

    return set_default


def a_pooler(scene: Scene) -> None:
    pooled_by = scene.request.getfixturevalue("pooled_by")
    scene.fleet.url = pooled_by("session", default_pool_size="100").url_of(scene.books.url)


def another_name(scene: Scene) -> None:
    """Each command has its own, and the caller another one."""
    assert isinstance(scene.books, SqliteBooks)
    link, folder = scene.folder / "link.db", scene.folder / "linked"
    link.symlink_to(scene.books.path)
    folder.symlink_to(scene.folder)
    scene.fleet.urls = [f"sqlite:///{link}", f"sqlite:///{folder / scene.books.path.name}"]


def ascii_locale(scene: Scene) -> None:
    scene.fleet.environment = ASCII
    scene.flow_name = "zażółć-"
    if isinstance(scene.books, SqliteBooks):
        folder = scene.folder / "dépôt"
        folder.symlink_to(scene.folder)
        scene.fleet.urls = [f"sqlite:///{folder / scene.books.path.name}"]


def own_factories(scene: Scene) -> None:
    scene.fault = "set-factories"


SETTINGS: dict[str, Callable[[Scene], None]] = {
    "synchronous_commit=off": default("synchronous_commit", "off"),
    "read committed": default("default_transaction_isolation", "read committed"),
    "repeatable read": default("default_transaction_isolation", "repeatable read"),
    "serializable": default("default_transaction_isolation", "serializable"),
    "a pooler in session mode": a_pooler,
    "the database under two names": another_name,
    "an ASCII locale": ascii_locale,
    "factories of the handlers' own": own_factories,
}
IN_TEST = {("postgres", "a pooler in session mode"), ("sqlite", "factories of the handlers' own")}
ON_POSTGRES = [("postgres", setting) for setting in SETTINGS if setting != "the database under two names"]
ON_SQLITE = [
    ("sqlite", setting)
    for setting in ("the database under two names", "an ASCII locale", "factories of the handlers' own")
]


@pytest.mark.parametrize(("kills", "store", "setting"), sampled(sorted([*ON_POSTGRES, *ON_SQLITE]), IN_TEST))
def test_workers_killed_over_and_over_leave_every_effect_once_whatever_they_are_set_to(
    kills: int,
    store: str,
    setting: str,
    books: Books,
    fleet: WorkerFleet,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    tell: Tell,
) -> None:
    scene = Scene(books, fleet, tmp_path, request)
    SETTINGS[setting](scene)
    campaign = Campaign(
        flows=FLOWS_A_KILL * kills,
        kills=kills,
        handler_seconds=0.02,
        supervisor_share=0.1,
        fault=scene.fault,
        flow_name=scene.flow_name,
    )
    report = run(campaign, books, fleet)
    fleet.kill_all()
    tell(f"{kills} kills of workers, {store}, {setting}", report.problems)
    assert report.problems == []
    assert report.kills == kills
    assert report.letters == 0


OF_CALLERS = [
    ("sqlite", "texts as bytes"),
    ("sqlite", "rows as objects"),
    ("postgres", "pipeline mode"),
    ("postgres", "LATIN1"),
    ("postgres", "SQL_ASCII"),
]


@pytest.mark.parametrize(("kills", "store", "setting"), sampled(OF_CALLERS, {OF_CALLERS[2]}))
def test_flows_started_on_a_callers_connection_by_a_script_that_is_killed_are_started_with_the_callers_own_work(
    kills: int, store: str, setting: str, books: Books, fleet: WorkerFleet, tell: Tell
) -> None:
    random = Random(0)
    killed = 0

    def run_script() -> Member:
        """Each run starts some of what the one before it started."""
        waiting = books.waiting()
        first, count = max(0, waiting - REPEATED), waiting + FLOWS_A_RUN
        return fleet.module("tests.faults.initiator", books.url, setting, "none", "1", str(count), str(first))

    while killed < kills:
        enough = books.waiting() + random.randint(1, 20)
        script = run_script()
        wait_until(has_started(books, enough, script.is_running), "it gets on")
        # A script that has ended was faster than this test, and another one is killed in its place.
        if script.is_running():
            script.kill()
            killed += 1
        else:
            assert script.wait() == 0
    assert run_script().wait() == 0
    count = books.waiting()
    accepted, scratch = (books.number(f"SELECT count(*) FROM {each}") for each in ("stagepost_accepted", "scratch"))
    assert (accepted, scratch) == (count, count)
    assert fleet.command("--drain").wait() == 0
    problems = books.problems(transfers(count))
    tell(f"{kills} kills of a script, {store}, {setting} on the caller's connection", problems)
    assert problems == []


def has_started(books: Books, enough: int, is_running: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: books.waiting() >= enough or not is_running()
