"""Compare our figures with a limit. The runs of both alternate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.machine import BUSY_MAX


class Result(Protocol):
    """A measurement. It ``is_valid`` if the machine was quiet enough, and ``is_reached`` is true if it met its goal."""

    @property
    def is_valid(self) -> bool: ...

    @property
    def is_reached(self) -> bool: ...

    def lines(self) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The figures of both sides.

    ``others`` is the share of one core that other processes used meanwhile. Above ``BUSY_MAX`` the result is invalid.
    """

    name: str
    unit: str
    ours: Sequence[float]
    limit: Sequence[float]
    limit_name: str
    goal: float | None
    others: float
    note: str = ""

    @property
    def is_valid(self) -> bool:
        return self.others <= BUSY_MAX

    @property
    def ratio(self) -> float:
        """The median of the ratios of neighbouring runs."""
        return statistics.median(ours / limit for ours, limit in zip(self.ours, self.limit, strict=True))

    @property
    def is_reached(self) -> bool:
        return self.goal is None or self.ratio >= self.goal

    def lines(self) -> list[str]:
        head = self.name if not self.note else f"{self.name} ({self.note})"
        if not self.is_valid:
            return [head, _not_measured(self.others)]
        goal = "" if self.goal is None else f", goal {self.goal:g}: {'reached' if self.is_reached else 'MISSED'}"
        return [
            head,
            f"  ours   {_spread(self.ours)} {self.unit}",
            f"  limit  {_spread(self.limit)} {self.unit}  {self.limit_name}",
            f"  ratio  {self.ratio:.2f}{goal}",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """The seconds of both sides. Ours may take ``factor_max`` times the other, or ``more_max`` seconds more.

    ``others`` is as for ``Ratio``.
    """

    name: str
    ours: Sequence[float]
    other: Sequence[float]
    other_name: str
    others: float
    factor_max: float | None = None
    more_max: float | None = None

    @property
    def is_valid(self) -> bool:
        return self.others <= BUSY_MAX

    @property
    def factor(self) -> float:
        """The median of the ratios of neighbouring runs."""
        return statistics.median(ours / other for ours, other in self._pairs)

    @property
    def more(self) -> float:
        """The median of the differences of neighbouring runs."""
        return statistics.median(ours - other for ours, other in self._pairs)

    @property
    def is_reached(self) -> bool:
        return (self.factor_max is None or self.factor <= self.factor_max) and (
            self.more_max is None or self.more <= self.more_max
        )

    @property
    def _pairs(self) -> list[tuple[float, float]]:
        return list(zip(self.ours, self.other, strict=True))

    def lines(self) -> list[str]:
        if not self.is_valid:
            return [self.name, _not_measured(self.others)]
        reached = "reached" if self.is_reached else "MISSED"
        factor = "" if self.factor_max is None else f", goal {self.factor_max:g}: {reached}"
        more = "" if self.more_max is None else f", goal {self.more_max:g} s: {reached}"
        return [
            self.name,
            f"  ours   {_spread(self.ours, '10.1f')} s",
            f"  other  {_spread(self.other, '10.1f')} s  {self.other_name}",
            f"  ratio  {self.factor:.2f}{factor}",
            f"  more   {self.more:.1f} s{more}",
        ]


@dataclass(frozen=True, slots=True)
class Results:
    """Several results of one benchmark."""

    each: Sequence[Result]

    @property
    def is_valid(self) -> bool:
        return all(result.is_valid for result in self.each)

    @property
    def is_reached(self) -> bool:
        return all(result.is_reached for result in self.each)

    def lines(self) -> list[str]:
        return [line for result in self.each for line in result.lines()]


def _not_measured(others: float) -> str:
    return f"  not measured: other processes used {others:.0%} of a core; run it again"


def _spread(values: Sequence[float], form: str = "10,.0f") -> str:
    near = form.removeprefix("10")
    return f"{statistics.median(values):>{form}}  ({min(values):{near}} to {max(values):{near}})"
