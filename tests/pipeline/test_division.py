"""The parts of the journal that tasks read: each row is in one of them, and none is much larger than the others."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from random import Random

import pytest

from pyspark_stagepost.division import ROWS_MAX, ROWS_MIN, TASKS_MAX, divide, tasks_for
from stagepost.ports.export import Sample
from stagepost.ports.journal import Bounds


class Ids:
    """A journal of these ids, which counts how often it is looked at."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids
        self.looks = 0

    def sample(self, points: Sequence[int]) -> list[Sample]:
        self.looks += len(points)
        return [self._near(point) for point in points]

    def _near(self, point: int) -> Sample:
        at = bisect.bisect_left(self.ids, point)
        ids = self.ids[at : at + 64]
        before = self.ids[at - 1] if at else None
        return Sample(point, before, ids[0] if ids else None, ids[63] if len(ids) == 64 else None)

    def parts(self, number: int | None, slots: int = 2) -> list[int]:
        """The number of rows of each part. Each id must be in exactly one."""
        bounds = Bounds(self.ids[0], self.ids[-1] + 1) if self.ids else Bounds(0, 0)
        found = divide(bounds, self.sample, number, slots)
        assert (found[0].low, found[-1].high) == bounds[:2]
        assert all(one.high == other.low for one, other in itertools.pairwise(found))
        assert all(one.low < one.high for one in found) or not self.ids
        return [bisect.bisect_left(self.ids, each.high) - bisect.bisect_left(self.ids, each.low) for each in found]


LAYOUTS = {
    "dense": range(1, 200_001),
    "a gap of a billion ids": [*range(1, 100_001), *range(10**9, 10**9 + 100_000)],
    "few rows before a gap": [*range(1, 101), *range(10**9, 10**9 + 200_000)],
    "few rows after a gap": [*range(1, 200_001), *range(10**9, 10**9 + 100)],
    "one id in a hundred, then all": [*range(0, 10_000_000, 100), *range(10_000_000, 10_100_000)],
    "islands": [island * 10**7 + at for island in range(20) for at in range(10_000)],
    "islands of all sizes": [island * 10**7 + at for island in range(17) for at in range(2**island)],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", [2, 7, 16])
def test_parts_hold_about_as_many_rows_wherever_ids_are_missing(layout: str, number: int) -> None:
    ids = Ids(list(LAYOUTS[layout]))
    parts = ids.parts(number)
    assert len(parts) == number
    assert max(parts) < 1.5 * len(ids.ids) / number
    assert ids.looks < 200


def test_every_id_is_in_one_part_whatever_ids_there_are() -> None:
    random = Random(3)
    for _ in range(300):
        count = random.randrange(0, 400)
        ids = Ids(sorted(random.sample(range(random.choice([500, 10_000, 10**12])), count)))
        number = random.randrange(1, 40)
        parts = ids.parts(number)
        assert sum(parts) == count
        assert len(parts) <= number


@pytest.mark.parametrize(
    ("rows", "slots", "tasks"),
    [
        (0, 8, 1),
        (ROWS_MIN, 8, 1),
        (ROWS_MIN + 1, 8, 2),
        (ROWS_MIN * 100, 8, 8),
        (ROWS_MAX * 8, 8, 8),
        (ROWS_MAX * 8 + 1, 8, 16),
        (3_000_000, 2, 12),
        (10**12, 8, TASKS_MAX),
    ],
)
def test_the_number_of_parts_follows_the_rows_and_the_slots(rows: int, slots: int, tasks: int) -> None:
    assert tasks_for(rows, slots) == tasks


def test_tasks_that_may_have_more_rows_are_fewer() -> None:
    assert tasks_for(3_000_000, 2, 2 * ROWS_MAX) == 6
