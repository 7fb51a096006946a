"""Divide the journal into ranges of ids that hold about the same number of rows, wherever ids are missing.

Ids alone do not tell how many rows lie between them, because old rows are deleted. Counting them would read the whole
journal. So the driver looks at some ids, sees how dense the rows are there, and looks again where most rows seem to be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from stagepost.ports.export import Sample
from stagepost.ports.journal import Bounds

# The number of ids that one round looks at.
POINTS = 64
ROUNDS = 3
# ``Sample.later`` is that many rows after ``Sample.first``.
NEIGHBOURS = 63
# A task that reads fewer rows takes longer to start than to read.
ROWS_MIN = 20_000
# A task that reads more rows is a long one to repeat.
ROWS_MAX = 250_000
# More tasks than this cost more than they free.
TASKS_MAX = 1_000

SampleJournal = Callable[[Sequence[int]], Sequence[Sample]]


class Stretch(NamedTuple):
    """Ids from ``low`` up to, but without, ``high``, and about how many of them are rows."""

    low: int
    high: int
    rows: float


def divide(bounds: Bounds, sample: SampleJournal, parts: int | None, slots: int) -> list[Bounds]:
    """Return ranges that cover the bounds; at most ``parts``, else as many as follow from the rows and the slots."""
    low, high = bounds.low, bounds.high
    stretches = _stretches(low, high, sample) if low < high else []
    wanted = parts or tasks_for(sum(each.rows for each in stretches), slots)
    edges = [low, *_edges(stretches, wanted), max(low, high)]
    return [bounds._replace(low=begin, high=end) for begin, end in itertools.pairwise(edges)]


def tasks_for(rows: float, slots: int, rows_max: int = ROWS_MAX) -> int:
    """Return the number of tasks: one a slot, or a multiple of it for many rows, or fewer for few rows.

    A task has at most about ``rows_max`` rows, unless there are more than ``TASKS_MAX`` times as many.
    """
    rounds = max(math.ceil(rows / (slots * rows_max)), 1)
    return max(min(slots * rounds, math.ceil(rows / ROWS_MIN), TASKS_MAX), 1)


def _stretches(low: int, high: int, sample: SampleJournal) -> list[Stretch]:
    step = max((high - low) / POINTS, 1)
    points = {low + int(number * step) for number in range(POINTS) if low + int(number * step) < high}
    points.add(max(high - NEIGHBOURS - 1, low))
    samples: dict[int, Sample] = {}
    found: list[Stretch] = []
    for _ in range(ROUNDS):
        samples |= {each.point: each for each in sample(sorted(points - samples.keys()))}
        found = _estimated(samples, high)
        points = set(_edges(found, POINTS))
    return found


def _estimated(samples: Mapping[int, Sample], high: int) -> list[Stretch]:
    """Return the stretches between the samples, without those that have no row."""
    points = sorted(samples)
    densities = [_density(samples[point]) for point in points]
    # Between two samples the density is about the mean of both.
    densities.append(densities[-1])
    ends = [*(samples[point].before for point in points[1:]), high - 1]
    found = []
    for at, last in enumerate(ends):
        first = samples[points[at]].first
        if first is not None and last is not None and first <= last:
            width = last + 1 - first
            found.append(Stretch(first, last + 1, (densities[at] + densities[at + 1]) / 2 * width))
    return found


def _density(sample: Sample) -> float:
    if sample.first is None:
        return 0.0
    # Fewer rows than neighbours follow, so their number matters little.
    return 1.0 if sample.later is None else NEIGHBOURS / (sample.later - sample.first)


def _edges(stretches: Sequence[Stretch], parts: int) -> list[int]:
    """Return the ids between parts of about as many rows, in order, each once."""
    total = sum(each.rows for each in stretches)
    edges: dict[int, None] = {}
    number, before = 1, 0.0
    for low, high, rows in stretches:
        while number < parts and before + rows > (goal := total * number / parts):
            edge = low + round((goal - before) * (high - low) / rows)
            if stretches[0].low < edge < stretches[-1].high:
                edges[edge] = None
            number += 1
        before += rows
    return list(edges)
