"""Who has a connection to the stages' database at this moment, since when and for what, and who waits for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """``who`` is a thread's name, ``since`` is in microseconds since the epoch. Of a stage's thread it is also said
    what it runs, and the last ``step`` that it passed."""

    who: str
    since: int
    stage: str | None = None
    step: str | None = None
    message_id: str | None = None
    flow_id: str | None = None

    def __str__(self) -> str:
        if self.stage is None:
            return self.who
        return f"{self.who}, which runs {self.message_id} of flow {self.flow_id} at {self.stage}, after {self.step!s}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """
    ``size``     how many are open, in use or not
    ``most``     how many there may be for starting flows; None where that is not bounded
    ``waiting``  callers for whom none is free, the first of them for ``longest_wait_ms``
    ``holders``  one for each that is in use, the one that holds longest first
    """

    size: int
    most: int | None
    waiting: int
    longest_wait_ms: float
    holders: Sequence[Holder]

    @property
    def in_use(self) -> int:
        return len(self.holders)


def longest_first(holders: Sequence[Holder]) -> list[Holder]:
    return sorted(holders, key=lambda each: each.since)
