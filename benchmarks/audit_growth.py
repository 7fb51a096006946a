"""Measure the audit as its journal grows: its time, and the memory of the driver, of Java and of the Python workers.

    python -m benchmarks.audit_growth 300000 3000000 --store postgres

Each size has a process of its own. Its memory is the greatest sum, over all its processes, of memory that is shared in
proportion (PSS). Three planted losses and two planted doubles must be found, so a fast wrong answer is an error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from benchmarks import audit_rows
from benchmarks.machine import describe
from benchmarks.peak_memory import MEMORY_MAX, run_measured
from stagepost.flow.clock import SystemClock
from stagepost.pipeline.jobs.audit import AuditTerms, audit
from stagepost.pipeline.session import spark_session
from stagepost.ports.journal import Position, Waypoint, WaypointName
from stagepost.ports.registry import driver_of

Store = Literal["sqlite", "postgres"]

LINES_PER_FLOW = 3 * len(audit_rows.STAGES)
LOST, DOUBLED = 3, 2
ORIGIN = 1_700_000_000_000_000


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.audit_growth")
    parser.add_argument("sizes", type=int, nargs="*", default=[100_000, 300_000])
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--in-process", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.in_process:
        print(json.dumps(measure(options.in_process)))
        return 0
    print(describe())
    found = []
    for size in options.sizes:
        with filled(options.store, size) as journal:
            found.append({"rows": journal.rows, **in_own_process(journal.url)})
            print(json.dumps(found[-1]), flush=True)
    first, last = found[0], found[-1]
    growth = last["rows"] / first["rows"]
    time_growth, memory_growth = (last[name] / first[name] for name in ("seconds", "mebibytes"))
    print(f"{growth:.1f} times the rows: {time_growth:.2f} times the time, {memory_growth:.2f} times the memory")
    return 0 if time_growth <= growth and memory_growth <= MEMORY_MAX else 1


def in_own_process(url: str) -> dict[str, float]:
    measured = run_measured([sys.executable, "-m", "benchmarks.audit_growth", "--in-process", url])
    memory = {"mebibytes": round(measured.mebibytes), "java_mebibytes": round(measured.java)}
    return {**json.loads(measured.out.splitlines()[-1]), **memory}


def measure(url: str) -> dict[str, float]:
    begin = time.perf_counter()
    with closing(driver_of(url).open_existing(url, "the benchmark").session()) as session:
        until: Position = session.journal.position()
    with spark_session("growth of the audit") as spark:
        spark.range(1).count()
        started = time.perf_counter()
        report = audit(spark, url, until=until, at=SystemClock().now(), terms=AuditTerms())
        ended = time.perf_counter()
    assert (report.lost_count, report.doubled_count) == (LOST, DOUBLED), report
    return {"session_seconds": round(started - begin, 1), "seconds": round(ended - started, 1)}


@dataclass(frozen=True, slots=True)
class Filled:
    """A store with a journal, the exact number of its lines, and the processes of its server, if it has one."""

    url: str
    rows: int
    servers: Sequence[int] = ()


@contextmanager
def filled(store: Store, size: int, *, has_faults: bool = True) -> Iterator[Filled]:
    """Make a store with a journal of about that size."""
    with TemporaryDirectory(prefix="stagepost-bench-") as folder:
        if store == "sqlite":
            url = f"sqlite:///{Path(folder) / 'journal.db'}"
            driver_of(url).open(url)
            yield Filled(url, fill(url, size, has_faults=has_faults))
            return
        from benchmarks.postgres_stage import copy, running_server  # noqa: PLC0415 - needs a server

        with running_server() as (server, _):
            url = copy(server, "growth", "template1")
            driver_of(url).open(url)
            yield Filled(url, fill(url, size, has_faults=has_faults), [server.pid])


def fill(url: str, size: int, *, has_faults: bool) -> int:
    with closing(driver_of(url).open_existing(url, "the benchmark").session()) as session:
        rows = audit_rows.fill_session(session, max(1, size // LINES_PER_FLOW))
        return rows + audit_rows.record(session, faults() if has_faults else iter(()))


def faults() -> Iterator[Waypoint]:
    for number in range(LOST + DOUBLED):
        names: list[WaypointName] = ["accepted", "received"]
        if number >= LOST:
            names += ["committed", "committed"]
        for name in names:
            key = ("worker@host:0", audit_rows.STAGES[0], f"fault-{number}", f"fault:{number}")
            # An accepted message with an attempt would have gone over a broker, and so be in doubt.
            yield Waypoint(name, ORIGIN, *key, 0 if name == "accepted" else 1, ORIGIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
