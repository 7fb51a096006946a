"""The example that hands out jobs: the database dies at the worst moments, the queue is away; each job is done once."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

import examples.jobs.app
from stagepost.app.app import engine_of
from stagepost.runtime.settings import Place
from stagepost.testing import Harness
from tests.servers.postgres import OwnServer
from tests.servers.stalling import stalled

SCHEMA = Path(examples.jobs.app.__file__).with_name("schema.sql")
JOBS = [f"job-{number:02}" for number in range(1, 11)]


@pytest.fixture
def jobs() -> Iterator[ModuleType]:
    """An app that has opened no database yet."""
    module = importlib.reload(examples.jobs.app)
    yield module
    module.app.close()


@pytest.fixture
def mortal_url(mortal_postgres: OwnServer) -> Iterator[str]:
    url = mortal_postgres.new_database()
    yield url
    mortal_postgres.drop_database(url)


def place(jobs: ModuleType, url: str, queue: str | None = None) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(SCHEMA.read_bytes())
    engine_of(jobs.app).databases.place = Place(url, queue)


def done(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [job for (job,) in connection.execute("SELECT job_id FROM job_done ORDER BY job_id")]


def work(jobs: ModuleType) -> None:
    harness = Harness(jobs.app)
    harness.drain()
    harness.close()


class Blow:
    """Kills the server at the second job, once, at that moment; and starts it again."""

    def __init__(self, server: OwnServer, moment: str) -> None:
        self._server = server
        self._moment = moment
        self._passed = 0
        self.has_struck = False

    def passes(self, moment: str) -> bool:
        """Whether it struck."""
        self._passed += moment == self._moment
        if self._passed < 2 or self.has_struck:
            return False
        self.has_struck = True
        self._server.kill()
        self._server.start()
        return True

    def connect(self, url: str) -> psycopg.Connection[Any]:
        blow = self

        class Doomed(psycopg.Connection[Any]):
            def execute(self, *arguments: Any, **options: Any) -> Any:
                cursor = super().execute(*arguments, **options)
                blow.passes("after the job is taken")
                return cursor

            def commit(self) -> None:
                blow.passes("before the commit")
                super().commit()
                if blow.passes("after the commit"):
                    raise psycopg.OperationalError("the answer was lost on its way")

        return Doomed.connect(url)


@pytest.mark.parametrize("moment", ["after the job is taken", "before the commit", "after the commit"])
def test_a_database_that_is_killed_while_jobs_are_handed_out_loses_and_doubles_none(
    moment: str, jobs: ModuleType, mortal_postgres: OwnServer, mortal_url: str
) -> None:
    place(jobs, mortal_url)
    blow = Blow(mortal_postgres, moment)
    waits: list[float] = []
    assert jobs.hand_out(partial(blow.connect, mortal_url), waits.append) == JOBS
    assert blow.has_struck
    assert len(waits) == 1
    work(jobs)
    assert done(mortal_url) == JOBS


def test_jobs_are_handed_out_while_the_queue_is_away(
    jobs: ModuleType, mortal_postgres: OwnServer, mortal_url: str, new_postgres: Callable[[], str]
) -> None:
    url = new_postgres()
    place(jobs, url, mortal_url)
    with stalled(mortal_postgres):
        assert jobs.hand_out(partial(psycopg.connect, url)) == JOBS
    assert done(url) == []
    work(jobs)
    assert done(url) == JOBS


def test_a_job_that_cannot_be_handed_out_is_free_as_before(jobs: ModuleType, new_postgres: Callable[[], str]) -> None:
    url = new_postgres()
    place(jobs, url)

    class Cut(psycopg.Connection[Any]):
        def execute(self, *arguments: Any, **options: Any) -> Any:
            cursor = super().execute(*arguments, **options)
            self.pgconn.finish()
            return cursor

    with pytest.raises(jobs.NothingSent):
        jobs.allocate(partial(Cut.connect, url))
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM job WHERE is_handed_out").fetchone() == (0,)
