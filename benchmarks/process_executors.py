"""Measure ``stagepost process`` on a standalone cluster, with one and two executors of one core, against a worker.

The worker has as many threads as the job has executors, and both drain copies of one PostgreSQL database. The rates are
those between the first claim and the last commit, from the journal. The rest of the command's time is its start and
end.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from benchmarks.job import make_app_on, start
from benchmarks.machine import watched
from benchmarks.postgres_stage import TABLE, copy, running_server
from benchmarks.result import Ratio
from stagepost.testing.postgres import PostgresServer
from tests.pipeline.cluster import Cluster
from tests.pipeline.commands import Commands

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
MODULE = 'from benchmarks.job import make_app_on\n\napp = make_app_on("sqlite:///none.db")\n'


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

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self._server = server
        self.commands = Commands("", folder)
        self._cluster = Cluster(self.commands, folder)
        self._cluster.join(cores=max(EXECUTORS))
        (folder / "bench_app.py").write_text(MODULE)
        self._copies = 0
        url = copy(server, "waiting", "template1")
        with psycopg.connect(url) as connection:
            connection.execute(TABLE)
        app = make_app_on(url)
        start(app, ITEMS)
        app.close()

    def worker(self, threads: int) -> float:
        """Return the messages a second of a worker."""
        return self._run(["worker", "bench_app:app", "--processes", "1", "--threads", str(threads), "--drain"])[0]

    def job(self, executors: int) -> tuple[float, float]:
        """Return the messages a second of the job, and the seconds of its start and end."""
        settings = ("spark.executor.cores=1", f"spark.cores.max={executors}", "spark.executor.memory=512m")
        options = [word for each in settings for word in ("--conf", each)]
        return self._run(["process", "bench_app:app", "--master", self._cluster.url, *options])

    def _run(self, words: list[str]) -> tuple[float, float]:
        self._copies += 1
        url = copy(self._server, f"run{self._copies}", "waiting")
        begin = time.perf_counter()
        command = [sys.executable, "-m", "stagepost", *words, "--database", url]
        answer = self.commands.run(command, self._cluster.environment).answer()
        seconds = time.perf_counter() - begin
        assert answer.code == 0, answer.err
        with psycopg.connect(url) as connection:
            row: Any = connection.execute(SECONDS).fetchone()
        active, committed = float(row[0]), int(row[1])
        assert committed == MESSAGES
        return committed / active, seconds - active


def measure() -> Executors:
    with running_server() as (server, folder):
        site = Site(server, folder)
        try:
            return _measure(server, site)
        finally:
            site.commands.kill_all()


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
