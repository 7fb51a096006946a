"""Poison or outage: the verdict on a group of dead letters, from the windows of its stage in which messages died."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagepost.flow.clock import SECOND
from stagepost.ports.dead_letters import LetterGroup

# Fewer ended messages than this do not tell a bad message from a bad day.
ENDED_MIN = 5
# A window with too few ended messages is judged with its neighbours at both sides.
BESIDE = 1_800 * SECOND
# A window may be wider than an outage. It is judged over the span of its deaths, and at least over this time.
SPAN_MIN = 600 * SECOND

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StageWindow:
    """The ended messages of a stage in a window of origin, and when its messages died. Moments are in microseconds."""

    begin: int
    end: int
    committed: int
    dead: int
    died_from: int | None
    died_to: int | None

    def holds_deaths_of(self, group: LetterGroup) -> bool:
        """Return whether letters of the group may be of this window."""
        if self.died_from is None or self.died_to is None:
            return False
        return self.died_from <= group.last_at and self.died_to >= group.first_at

    def ended_with(self, group: LetterGroup) -> tuple[float, int]:
        """Return about how many messages committed and died while letters of the group died.

        It takes the other messages of a wide window as spread evenly over its time.
        """
        if self.died_from is None or self.died_to is None:
            return self.committed, self.dead
        span = min(self.died_to, group.last_at) - max(self.died_from, group.first_at)
        # Most deaths of the window may be those of another group, at another time.
        dead = self.dead if 2 * span >= self.died_to - self.died_from else min(self.dead, group.count)
        if dead < ENDED_MIN:
            return self.committed, dead
        share = min(max(span, SPAN_MIN) / (self.end - self.begin), 1)
        return min(max((self.committed + self.dead) * share - dead, 0), self.committed), dead


def windows_of(ends: Sequence[Facts], width_at: Callable[[int], int]) -> list[StageWindow]:
    """Return the windows of a stage, in order, from the facts ``ends`` of ``transforms.facts.totals``."""
    names = ("committed", "dead", "died_from", "died_to")
    return [
        StageWindow(row["begin"], row["begin"] + width_at(row["begin"]), *(row[name] for name in names))
        for row in sorted(ends, key=lambda row: row["begin"])
    ]


def verdict_on(group: LetterGroup, windows: Sequence[StageWindow]) -> str:
    """Return the verdict: see ``advice.letter_rows``.

    A group may have letters in bad windows, where most messages of the stage died, and in good ones. It is an outage
    if most of its letters must be of bad windows, because fewer messages died in the good ones.
    """
    found = [each for each in windows if each.holds_deaths_of(group)]
    judged = [_judged(each, group, windows) for each in found]
    clear = [each for each in judged if each.committed + each.dead >= ENDED_MIN]
    if clear:
        died_in_good = sum(each.letters for each in clear if each.dead <= each.committed)
        return "outage" if group.count > 2 * died_in_good else "poison"
    committed, dead = sum(each.committed for each in found), sum(each.dead for each in found)
    if committed + dead < ENDED_MIN:
        return "unclear"
    return "outage" if dead > committed else "poison"


@dataclass(frozen=True, slots=True)
class _Judged:
    """The letters that a window may have of a group, and the messages that ended in the time by which it is judged."""

    letters: int
    committed: float
    dead: int


def _judged(window: StageWindow, group: LetterGroup, windows: Sequence[StageWindow]) -> _Judged:
    committed, dead = window.ended_with(group)
    if committed + dead >= ENDED_MIN:
        return _Judged(dead, committed, dead)
    near = [each for each in windows if each.end > window.begin - BESIDE and each.begin < window.end + BESIDE]
    return _Judged(dead, sum(each.committed for each in near), sum(each.dead for each in near))
