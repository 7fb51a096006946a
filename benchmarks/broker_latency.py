"""Measure how long a flow of three stages takes, each of whose messages goes over a broker, at a low load."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from benchmarks.broker_job import TABLE, Item
from benchmarks.broker_servers import BROKERS, BrokerServer, new_database, running_broker, working
from benchmarks.machine import BUSY_MAX, watched
from benchmarks.postgres_stage import running_server
from stagepost import App, Target

FLOWS = 400
WARM = 20
PAUSE_SECONDS = 0.05
STUCK_SECONDS = 120.0
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """``milliseconds`` of each flow by the broker's name, sorted."""

    milliseconds: dict[str, Sequence[float]]
    others: float

    @property
    def is_valid(self) -> bool:
        return self.others <= BUSY_MAX

    @property
    def is_reached(self) -> bool:
        return True

    def lines(self) -> list[str]:
        head = f"A flow of three stages over a broker, one every {PAUSE_SECONDS * 1000:g} ms"
        if not self.is_valid:
            return [head, f"  not measured: other processes used {self.others:.0%} of a core; run it again"]
        return [
            head,
            *(
                f"  {name:<9} p50 {statistics.median(each):.1f} ms, p99 {each[int(len(each) * 0.99)]:.1f} ms"
                for name, each in self.milliseconds.items()
            ),
        ]


def measure() -> Latencies:
    found: dict[str, Sequence[float]] = {}
    with (
        TemporaryDirectory(prefix="stagepost-bench-") as name,
        running_server() as (database, _),
        watched(database.pid) as quiet,
    ):
        for each in BROKERS:
            with running_broker(each, Path(name)) as broker:
                found[each] = run(broker, new_database(database, f"flow_{each}", TABLE))
    return Latencies(milliseconds=found, others=quiet.others)


def run(broker: BrokerServer, url: str) -> list[float]:
    """Return the milliseconds of each flow from its start to the insert of its last stage."""
    prefix = "latency-"
    started: dict[int, float] = {}
    app = App(f"{prefix}flow", database=url, broker=broker.url(), local=False)
    first: Target[Item, Any] = app.remote(f"{prefix}flow.first", Item)
    with working("flow", url, broker, prefix), closing(app), psycopg.connect(url, autocommit=True) as connection:
        for n in range(WARM + FLOWS):
            started[n] = time.time() * 1000
            app.start(first, Item(n, "x" * 400), flow_id=f"flow:{n}")
            if n < WARM:
                # The queues are made, and the processes are warm.
                _wait_for(connection, n + 1)
            time.sleep(PAUSE_SECONDS)
        _wait_for(connection, WARM + FLOWS)
        rows = connection.execute("SELECT n, at FROM entry WHERE stage = 3").fetchall()
    return sorted(at - started[n] for n, at in rows if n >= WARM)


def _wait_for(connection: psycopg.Connection[tuple[int]], count: int) -> None:
    deadline = time.monotonic() + STUCK_SECONDS
    while time.monotonic() < deadline:
        row = connection.execute("SELECT count(*) FROM entry WHERE stage = 3").fetchone()
        if row is not None and row[0] >= count:
            return
        time.sleep(LOOK_SECONDS)
    raise RuntimeError(f"{count} flows have not ended within {STUCK_SECONDS:g} s: look at the worker's log")
