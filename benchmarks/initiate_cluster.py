"""Measure ``stagepost initiate`` on a standalone cluster of two cores, against plain inserts of the same rows.

``python -m benchmarks.initiate_cluster ROWS ROUNDS`` takes another size. The time is that of the command beside a run
on a file without rows, which is mostly Spark's start. The limits are those of ``initiate_rows``.
"""

from __future__ import annotations

import sys
from statistics import median

from benchmarks.cluster_site import APP, running_cluster
from benchmarks.initiate_rows import GOAL_ON_SPARK, compare_with_inserts, new, write_items
from benchmarks.postgres_stage import running_server
from benchmarks.result import Results

ROWS = 300_000
ROUNDS = 3
CORES = (1, 1)


def measure(rows: int = ROWS, rounds: int = ROUNDS) -> Results:
    with running_server() as (server, _), running_cluster(CORES) as site:
        starts: list[float] = []

        def run(url: str, count: int) -> float:
            file = site.folder / f"items{count}.csv"
            if not file.exists():
                write_items(file, count)
            words = ["initiate", str(file), "--to", "bench.first", "--id", "n", "--app", APP, "--json"]
            found = site.run(words, url)
            assert found.answer.json["started"] == count, found.answer.out
            return found.seconds

        def start_all(url: str, number: int) -> float:
            starts.append(run(new(server, f"nothing{number}"), 0))
            return run(url, rows) - median(starts)

        return compare_with_inserts(
            f"PostgreSQL, initiate of {rows:,} rows of a CSV file, standalone cluster of two cores, beside its start",
            GOAL_ON_SPARK,
            server,
            start_all,
            rows=rows,
            rounds=rounds,
            warm_ups=0,
        )


if __name__ == "__main__":
    print("\n".join(measure(*map(int, sys.argv[1:])).lines()))
