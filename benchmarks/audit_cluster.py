"""Measure ``stagepost audit`` on a standalone cluster of two cores beside ``local[*]``, on the same PostgreSQL store.

``python -m benchmarks.audit_cluster LINES ROUNDS`` takes another size. The times are those of the whole commands. Three
planted losses and two planted doubles must be found.
"""

from __future__ import annotations

import sys

from benchmarks.audit_growth import DOUBLED, LOST, Filled, filled
from benchmarks.cluster_site import ClusterSite, running_cluster
from benchmarks.machine import watched
from benchmarks.result import Durations

LINES = 3_000_000
ROUNDS = 3
CORES = (1, 1)
MORE_MAX = 10.0
# The exit code of an audit that finds something.
FOUND = 1


def measure(lines: int = LINES, rounds: int = ROUNDS) -> Durations:
    ours: list[float] = []
    local: list[float] = []
    with filled("postgres", lines) as journal, running_cluster(CORES) as site, watched(*journal.servers) as quiet:
        for _ in range(rounds):
            ours.append(_audited(site, journal, is_local=False))
            local.append(_audited(site, journal, is_local=True))
    return Durations(
        name=f"the command audit of {journal.rows:,} waypoints, PostgreSQL, standalone cluster of two cores",
        ours=ours,
        other=local,
        other_name="the same on local[*]",
        others=quiet.others,
        more_max=MORE_MAX,
    )


def _audited(site: ClusterSite, journal: Filled, *, is_local: bool) -> float:
    """Return the seconds of the command."""
    run = site.run(["audit", "--json"], journal.url, is_local=is_local, codes=[FOUND])
    report = run.answer.json
    found = (report["waypoints"], report["lost_count"], report["doubled_count"])
    assert found == (journal.rows, LOST, DOUBLED), report
    return run.seconds


if __name__ == "__main__":
    print("\n".join(measure(*map(int, sys.argv[1:])).lines()))
