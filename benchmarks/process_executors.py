"""Measure ``stagepost process`` on a standalone cluster, with one and two executors of one core, against a worker.

The worker has as many threads as the job has executors, and both drain copies of one PostgreSQL database. The rates are
those between the first claim and the last commit, from the journal. The rest of the command's time is its start and
end.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import psycopg

from benchmarks.cluster_site import APP, ClusterSite, running_cluster
from benchmarks.job import create_table, make_app_on, start
from benchmarks.machine import watched
from benchmarks.postgres_stage import copy, running_server
from benchmarks.result import Ratio
from stagepost.testing.postgres import PostgresServer

ITEMS = 3_000
MESSAGES = 2 * ITEMS
ROUNDS = 3
GOAL = 0.8
BEYOND_SECONDS_MAX = 12.0
EXECUTORS = (1, 2)
SECONDS = """
SELECT (max(at) FILTER (WHERE waypoint = 'committed') - min(at) FILTER (WHERE waypoint = 'received')) / 1e6,
       count(*) FILTER (WHERE waypoint = 'committed')
FROM stagepost_journal
"""


@dataclass(frozen=True, slots=True)
class Executors:
    """The ratios by the number of executors, and the seconds of start and end of each run of the job."""

    ratios: list[Ratio]
    beyond: list[float]

    @property
    def is_valid(self) -> bool:
        return all(each.is_valid for each in self.ratios)

    @property
    def is_reached(self) -> bool:
        return all(each.is_reached for each in self.ratios) and median(self.beyond) <= BEYOND_SECONDS_MAX

    def lines(self) -> list[str]:
        found = [line for each in self.ratios for line in each.lines()]
        if self.is_valid:
            spread = f"({min(self.beyond):.1f} to {max(self.beyond):.1f}), goal {BEYOND_SECONDS_MAX:g}"
            found.append(f"  start and end  {median(self.beyond):.1f} s  {spread}")
        return found


class Site:
    """A cluster, and a database to be copied, in which messages wait."""

    def __init__(self, server: PostgresServer, site: ClusterSite) -> None:
        self._server = server
        self._site = site
        self._copies = 0
        url = copy(server, "waiting", "template1")
        create_table(url)
        app = make_app_on(url)
        start(app, ITEMS)
        app.close()

    def worker(self, threads: int) -> float:
        """Return the messages a second of a worker."""
        words = ["worker", APP, "--processes", "1", "--threads", str(threads), "--drain"]
        return self._run(words, is_local=True)[0]

    def job(self, executors: int) -> tuple[float, float]:
        """Return the messages a second of the job, and the seconds of its start and end."""
        settings = ("spark.executor.cores=1", f"spark.cores.max={executors}", "spark.executor.memory=512m")
        return self._run(["process", APP, *(word for each in settings for word in ("--conf", each))], is_local=False)

    def _run(self, words: list[str], *, is_local: bool) -> tuple[float, float]:
        self._copies += 1
        url = copy(self._server, f"run{self._copies}", "waiting")
        run = self._site.run(words, url, is_local=is_local)
        with psycopg.connect(url) as connection:
            row: Any = connection.execute(SECONDS).fetchone()
        active, committed = float(row[0]), int(row[1])
        assert committed == MESSAGES
        return committed / active, run.seconds - active


def measure() -> Executors:
    with running_server() as (server, _), running_cluster([max(EXECUTORS)]) as site:
        return _measure(server, Site(server, site))


def _measure(server: PostgresServer, site: Site) -> Executors:
    ratios: list[Ratio] = []
    beyond: list[float] = []
    for executors in EXECUTORS:
        ours: list[float] = []
        limit: list[float] = []
        with watched(server.pid) as quiet:
            for _ in range(ROUNDS):
                rate, seconds = site.job(executors)
                ours.append(rate)
                beyond.append(seconds)
                limit.append(site.worker(executors))
        ratios.append(
            Ratio(
                name=f"process on PostgreSQL, standalone cluster, {executors} executors of one core",
                unit="messages/s",
                ours=ours,
                limit=limit,
                limit_name=f"a worker with {executors} threads",
                goal=GOAL,
                others=quiet.others,
            )
        )
    return Executors(ratios, beyond)
