"""How long a session on a cluster waits for its executors. Spark is not needed."""

from __future__ import annotations

import pytest

from stagepost.pipeline.session import JOIN_SECONDS, LOOK_SECONDS, SETTLED_SECONDS, wait_for_slots


class Joining:
    """Executors that join at these seconds, each with so many slots."""

    def __init__(self, joins: dict[float, int]) -> None:
        self.seconds = 0.0
        self._joins = joins

    def slots(self) -> int:
        return sum(slots for at, slots in self._joins.items() if at <= self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.mark.parametrize(
    ("joins", "slots", "waited"),
    [
        ({2.5: 4, 3.0: 4, 3.8: 2}, 10, 3.8 + SETTLED_SECONDS),
        ({0.0: 3}, 3, SETTLED_SECONDS),
        ({2.0: 4, 9.0: 4}, 4, 2.0 + SETTLED_SECONDS),
        ({}, 0, JOIN_SECONDS),
    ],
    ids=["one after the other", "there at once", "one later", "none"],
)
def test_a_job_is_divided_when_no_further_executor_joins(joins: dict[float, int], slots: int, waited: float) -> None:
    cluster = Joining(joins)
    wait_for_slots(cluster.slots, cluster.monotonic, cluster.sleep)
    assert cluster.slots() == slots
    assert cluster.seconds == pytest.approx(waited, abs=2 * LOOK_SECONDS)
