"""Replays as they are kept: who asked for which dead letters, and how far each has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagepost.flow.clock import to_datetime
from stagepost.recovery.letters import KeptLetter, Selection

TIME_MAX = 2**62


@dataclass(frozen=True, slots=True)
class Period:
    """The letters that died from ``since`` on, and before ``until`` (microseconds, UTC)."""

    since: int = 0
    until: int = TIME_MAX

    def __str__(self) -> str:
        since = f"since {_moment(self.since)}" if self.since > 0 else ""
        until = f"until {_moment(self.until)}" if self.until < TIME_MAX else ""
        return " ".join(["dead", since, until]).strip()


Wanted = Sequence[Selection | Period]


@dataclass(frozen=True, slots=True)
class Replay:
    """
    ``selection``  which letters were asked for, for people
    ``rate``       messages a second, at most; None for as fast as it goes
    ``letters``    how many the frozen set held
    ``gone``       those of them that somebody else had replayed or edited when their turn came
    """

    id: int
    who: str
    asked_at: int
    selection: str
    rate: float | None
    letters: int
    replayed: int = 0
    gone: int = 0

    @property
    def left(self) -> int:
        return self.letters - self.replayed - self.gone


@dataclass(frozen=True, slots=True)
class Chunk:
    """What was taken off a frozen set, by id: ``letters`` are those of ``ids`` that were still there."""

    ids: Sequence[int]
    letters: Sequence[KeptLetter]

    @property
    def gone(self) -> int:
        return len(self.ids) - len(self.letters)


def told(wanted: Wanted) -> str:
    return ", ".join(map(str, wanted))


def _moment(at: int) -> str:
    return to_datetime(at).replace(tzinfo=None).isoformat() + "Z"
