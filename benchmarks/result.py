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
            return [head, f"  not measured: other processes used {self.others:.0%} of a core; run it again"]
        goal = "" if self.goal is None else f", goal {self.goal:g}: {'reached' if self.is_reached else 'MISSED'}"
        return [
            head,
            f"  ours   {_spread(self.ours)} {self.unit}",
            f"  limit  {_spread(self.limit)} {self.unit}  {self.limit_name}",
            f"  ratio  {self.ratio:.2f}{goal}",
        ]


@dataclass(frozen=True, slots=True)
class Ratios:
    """Several ratios of one benchmark."""

    each: Sequence[Ratio]

    @property
    def is_valid(self) -> bool:
        return all(ratio.is_valid for ratio in self.each)

    @property
    def is_reached(self) -> bool:
        return all(ratio.is_reached for ratio in self.each)

    def lines(self) -> list[str]:
        return [line for ratio in self.each for line in ratio.lines()]


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):>10,.0f}  ({min(values):,.0f} to {max(values):,.0f})"
