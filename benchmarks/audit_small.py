"""Measure ``stagepost audit`` of a small journal beside a bare session of Spark with one job, both as processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.audit_growth import Filled, Store, filled
from benchmarks.machine import watched
from benchmarks.result import Durations, Results
from stagepost.pipeline.java import provide_java

LINES = 420
ROUNDS = 5
FACTOR_MAX = 2.0
STORES: Sequence[Store] = ("sqlite", "postgres")


def measure() -> Results:
    # Both sides find the same Java.
    provide_java()
    return Results([_compare(store) for store in STORES])


def _compare(store: Store) -> Durations:
    ours: list[float] = []
    bare: list[float] = []
    with filled(store, LINES, has_faults=False) as journal:
        assert journal.rows == LINES
        audited(journal)
        with watched(*journal.servers) as quiet:
            for _ in range(ROUNDS):
                ours.append(audited(journal))
                bare.append(_run("benchmarks.bare_session")[0])
    return Durations(
        name=f"the command audit of {LINES} waypoints, {store}, local[*]",
        ours=ours,
        other=bare,
        other_name="a process that opens a plain session, runs one job and stops it",
        others=quiet.others,
        factor_max=FACTOR_MAX,
    )


def audited(journal: Filled) -> float:
    """Return the seconds of the command. It must find nothing."""
    seconds, out = _run("stagepost", "audit", "--json", "--database", journal.url)
    report = json.loads(out)
    assert (report["waypoints"], report["lost_count"], report["doubled_count"]) == (journal.rows, 0, 0), report
    return seconds


def _run(*words: str) -> tuple[float, str]:
    """Return the seconds and the output of a module."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True, text=True)
    return time.perf_counter() - begin, done.stdout
