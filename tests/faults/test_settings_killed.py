"""What is started, handled and sent is once each, whatever connection, role, database or pooler are set to, and whoever
is killed meanwhile.

A few kills stand for each setting in ``make test`` and ``make test-more``; ``make soak`` makes two hundred of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from random import Random

import psycopg
import pytest

from tests.faults.books import transfers
from tests.faults.campaign import Campaign, run
from tests.faults.crew import Crew
from tests.faults.initiator import SETTINGS
from tests.faults.postgres_books import PostgresBooks
from tests.faults.waiting import wait_until
from tests.servers.plugin import Pooled

KILLS = 200


@pytest.fixture
def store() -> str:
    return "postgres"


def sampled(few: int, settings: list[str], in_test: set[str]) -> list[object]:
    """Each setting with a few kills, of which some are for ``make test``, and with all of them."""
    return [
        *(pytest.param(few, each, marks=[] if each in in_test else pytest.mark.more) for each in settings),
        *(pytest.param(KILLS, each, marks=pytest.mark.soak) for each in settings),
    ]


@contextmanager
def default(url: str, name: str, value: str) -> Iterator[None]:
    database = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} SET {name} TO '{value}'".encode())
    yield


DEFAULTS = {
    "synchronous_commit=off": ("synchronous_commit", "off"),
    **{
        level: ("default_transaction_isolation", level)
        for level in ("read committed", "repeatable read", "serializable")
    },
}
POOLER = "a pooler in session mode"


@pytest.mark.parametrize(("kills", "setting"), sampled(3, [*DEFAULTS, POOLER], {"serializable", POOLER}))
def test_workers_killed_over_and_over_leave_every_effect_once_whatever_they_are_set_to(
    kills: int, setting: str, books: PostgresBooks, crew: Crew, pooled_by: Pooled
) -> None:
    if setting == POOLER:
        crew.url = pooled_by("session", default_pool_size="100").url_of(books.url)
    with nullcontext() if setting == POOLER else default(books.url, *DEFAULTS[setting]):
        campaign = Campaign(flows=10 * kills, kills=kills, handler_seconds=0.02, supervisor_share=0.1)
        report = run(campaign, books, crew)
    crew.disband()
    assert report.problems == []
    assert report.kills == kills
    assert report.letters == 0


@pytest.mark.parametrize(("kills", "setting"), sampled(3, list(SETTINGS), {"pipeline mode"}))
def test_flows_started_on_a_callers_connection_by_a_script_that_is_killed_are_started_with_the_callers_own_work(
    kills: int, setting: str, books: PostgresBooks, crew: Crew
) -> None:
    random = Random(0)
    count = 40 * kills
    killed = 0
    while True:
        before = books.waiting()
        script = crew.module("tests.faults.initiator", books.url, setting, "none", "1", str(count))
        enough = before + random.randint(1, 40)
        wait_until(has_started(books, enough, script.is_running), "it gets on")
        if killed == kills or not script.is_running():
            assert script.wait() == 0
            break
        script.kill()
        killed += 1
    assert killed == kills
    started, accepted = books.waiting(), books.number("SELECT count(*) FROM stagepost_accepted")
    assert (started, accepted, books.number("SELECT count(*) FROM scratch")) == (count,) * 3
    if kills < KILLS:
        assert crew.command("--drain").wait() == 0
        assert books.problems(transfers(count)) == []


def has_started(books: PostgresBooks, enough: int, is_running: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: books.waiting() >= enough or not is_running()
