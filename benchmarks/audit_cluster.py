"""Measure ``stagepost audit`` on a standalone cluster of two cores beside ``local[*]``, on the same PostgreSQL store.

``python -m benchmarks.audit_cluster LINES ROUNDS`` takes another size. The times are those of the whole commands. Three
planted losses and two planted doubles must be found. The executors share the processors with the driver, so the second
comparison starts their Java with the options that ``docs/pipeline.md`` names for this.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.audit_growth import DOUBLED, LOST, Filled, filled
from benchmarks.cluster_site import ClusterSite, running_cluster
from benchmarks.machine import watched
from benchmarks.result import Durations, Results

LINES = 3_000_000
ROUNDS = 3
CORES = (1, 1)
MORE_MAX = 10.0
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
FOR_FEW_PROCESSORS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# The exit code of an audit that finds something.
FOUND = 1


def measure(lines: int = LINES, rounds: int = ROUNDS) -> Results:
    ours: dict[str, list[float]] = {"": [], FOR_FEW_PROCESSORS: []}
    local: list[float] = []
    with filled("postgres", lines) as journal, running_cluster(CORES) as site, watched(*journal.servers) as quiet:
        for _ in range(rounds):
            for options, seconds in ours.items():
                seconds.append(_audited(site, journal, ["--conf", f"{EXECUTOR_OPTIONS}={options}"] if options else []))
            local.append(_audited(site, journal, is_local=True))
    return Results(
        [
            Durations(
                name=f"the command audit of {journal.rows:,} waypoints, PostgreSQL, standalone cluster of two cores"
                f"{options and f', executors with {options}'}",
                ours=seconds,
                other=local,
                other_name="the same on local[*]",
                others=quiet.others,
                more_max=MORE_MAX,
            )
            for options, seconds in ours.items()
        ]
    )


def _audited(site: ClusterSite, journal: Filled, words: Sequence[str] = (), *, is_local: bool = False) -> float:
    """Return the seconds of the command."""
    run = site.run(["audit", "--json", *words], journal.url, is_local=is_local, codes=[FOUND])
    report = run.answer.json
    found = (report["waypoints"], report["lost_count"], report["doubled_count"])
    assert found == (journal.rows, LOST, DOUBLED), report
    return run.seconds


if __name__ == "__main__":
    print("\n".join(measure(*map(int, sys.argv[1:])).lines()))
