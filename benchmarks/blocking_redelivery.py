"""Show what a bunch of poison does to its healthy neighbours, with blocking redelivery and without.

Two worker processes have four threads each. Eight poison messages begin the queue, one a thread, and healthy messages
of the same stage follow. The journal tells when each of them committed. ``python -m benchmarks.blocking_redelivery``.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from stagepost import App, Context, Redelivery

PROCESSES, THREADS = 2, 4
POISON = PROCESSES * THREADS
HEALTHY = 10_000
# The first moments after the first claim, in seconds, at which the commits are counted.
MOMENTS = (2, 5, 10, 15, 20, 25)
COUNTS = """
    SELECT (at - (SELECT min(at) FROM stagepost_journal WHERE waypoint = 'received')) / 1e6
    FROM stagepost_journal WHERE waypoint = :waypoint ORDER BY at
"""


@dataclass
class Order:
    number: int


app = App("bench", database=os.environ.get("BENCH_DATABASE", "sqlite:///none.db"))


@app.endpoint("bench.pay", redelivery=Redelivery(jitter=0, blocking="BENCH_BLOCKING" in os.environ))
def pay(ctx: Context, order: Order) -> None:
    if order.number < POISON:
        raise ValueError("poison")
    ctx.sql("INSERT INTO payment (number) VALUES (:number)", number=order.number)


def run(*, is_blocking: bool) -> tuple[list[float], list[float]]:
    """Return the seconds at which healthy messages committed, and at which poison died."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "bench.db"
        url = f"sqlite:///{file}"
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("CREATE TABLE payment (number INTEGER PRIMARY KEY)")
        with App("bench", database=url).initiate() as out:
            for number in range(POISON + HEALTHY):
                out.send(pay, Order(number), flow_id=f"order:{number}")
        command = ["worker", "benchmarks.blocking_redelivery:app", "--drain", "--log-level", "CRITICAL"]
        sizes = ["--processes", str(PROCESSES), "--threads", str(THREADS)]
        settings = {"BENCH_DATABASE": url} | ({"BENCH_BLOCKING": "1"} if is_blocking else {})
        line = [sys.executable, "-m", "stagepost", *command, *sizes]
        done = subprocess.run(line, env=os.environ | settings, check=False)
        assert done.returncode == 0
        with closing(sqlite3.connect(file)) as connection:
            committed, dead = ([at for (at,) in connection.execute(COUNTS, (each,))] for each in ("committed", "dead"))
        assert (len(committed), len(dead)) == (HEALTHY, POISON)
        return committed, dead


def main() -> None:
    for is_blocking in (False, True):
        committed, dead = run(is_blocking=is_blocking)
        counts = ", ".join(f"{moment} s: {sum(at <= moment for at in committed):,}" for moment in MOMENTS)
        print(f"{'blocking' if is_blocking else 'not blocking'}: healthy messages committed after {counts}")
        print(f"  the last healthy one after {committed[-1]:.1f} s, the last dead letter after {dead[-1]:.1f} s")


if __name__ == "__main__":
    main()
