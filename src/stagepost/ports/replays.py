"""Capability: replays of dead letters, each with a frozen set that survives a crash of the process at work on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stagepost.flow.clock import to_datetime
from stagepost.ports.dead_letters import KeptLetter, LetterGroup, Selection

TIME_MAX = 2**62


@dataclass(frozen=True, slots=True)
class Period:
    """Letters that died from ``since`` on and before ``until`` (microseconds, UTC)."""

    since: int = 0
    until: int = TIME_MAX

    def __str__(self) -> str:
        since = f"since {_moment(self.since)}" if self.since > 0 else ""
        until = f"until {_moment(self.until)}" if self.until < TIME_MAX else ""
        return " ".join(["dead", since, until]).strip()


Selections = Sequence[Selection | Period]


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that was asked for, and its progress.

    ``selection``  the letters that were asked for, as text
    ``rate``       messages a second, at most; None for no limit
    ``letters``    size of the frozen set
    ``gone``       letters of the set that were replayed or edited otherwise before their turn
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
    """Ids taken off a frozen set; ``letters`` are those of them that were still dead letters."""

    ids: Sequence[int]
    letters: Sequence[KeptLetter]

    @property
    def gone(self) -> int:
        return len(self.ids) - len(self.letters)


class Replays(Protocol):
    """The replays' part of a session. Writes happen in its open transaction."""

    def freeze(self, wanted: Selections, *, who: str, at: int, rate: float | None) -> Replay:
        """Keep a replay of all letters that match any of ``wanted``, each letter once."""

    def take(self, replay_id: int, after: int, limit: int) -> Chunk:
        """Take the first letters with ids beyond ``after`` off the set, up to ``limit``, and remove the dead letters.

        Skips, or waits for, the letters that another session is taking off the same set.
        """

    def advance(self, replay_id: int, replayed: int, gone: int) -> None:
        """Add to the counts of a replay."""

    def find(self, replay_id: int) -> Replay | None:
        """Return a replay; None where there is none of that id."""

    def listed(self) -> list[Replay]:
        """Return all replays, the oldest first."""

    def groups(self, replay_id: int) -> list[LetterGroup]:
        """Return the groups of the letters that are left of its set and still dead letters."""


def describe(wanted: Selections) -> str:
    return ", ".join(map(str, wanted))


def _moment(at: int) -> str:
    return to_datetime(at).replace(tzinfo=None).isoformat() + "Z"
