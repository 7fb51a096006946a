"""Two hundred ``kill -9`` under handlers of two seconds: whatever is killed was nearly always in the middle of many
messages, and none of these is to be blamed for it."""

from __future__ import annotations

import time
from pathlib import Path

from tests.faults import campaign as faults
from tests.faults.sqlite_books import SqliteBooks
from tests.faults.worker_fleet import WorkerFleet
from tests.soak.campaign import Campaign

HANDLER_SECONDS = 2.0
# Of five stages each, a stage in two seconds on each of sixteen threads: more than as many kills take.
FLOWS_A_KILL = 3


def run(folder: Path, *, kills: int = 200, seed: int = 1) -> Campaign:
    begin = time.monotonic()
    plan = faults.Campaign(
        flows=FLOWS_A_KILL * kills,
        kills=kills,
        handler_seconds=HANDLER_SECONDS,
        supervisor_share=0.1,
        threads=4,
        seed=seed,
    )
    books = SqliteBooks(folder / "bank.db")
    fleet = WorkerFleet(books, folder)
    try:
        report = faults.run(plan, books, fleet)
    except BaseException:
        fleet.kill_all()
        raise
    fleet.kill_all()
    lost = sum(problem.startswith("lost: ") for problem in report.problems)
    return Campaign(
        name=f"kill -9 of workers under handlers of {HANDLER_SECONDS:g} s, seed {seed}",
        operations=report.entries,
        faults=report.kills,
        lost=lost,
        doubled=len(report.problems) - lost,
        buried=report.letters,
        seconds=time.monotonic() - begin,
        note=f"{report.deaths} attempts cut short; {'; '.join(report.problems[:3])}".rstrip("; "),
    )
