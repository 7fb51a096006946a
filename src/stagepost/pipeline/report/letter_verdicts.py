"""Poison or outage: the verdict on a group of dead letters, from the messages of its stage that began when they did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stagepost.flow.clock import SECOND

MINUTE = 60 * SECOND
HOUR = 3_600 * SECOND
# Fewer ended messages than this do not tell a bad message from a bad day.
ENDED_MIN = 5

# A stage, and the begin of an hour of origin in microseconds.
StageHour = tuple[str, int]
# How many messages that began in a minute ended well, and how many died, by the minute's begin.
Minutes = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The ended messages of each stage and hour in which messages died.

    ``partial``  the hours whose messages a series of audits has forgotten in part. They may have ended well
    """

    hours: Mapping[StageHour, Minutes] = field(default_factory=dict)
    partial: frozenset[StageHour] = frozenset()

    def is_bad(self, stage: str, minute: int) -> bool | None:
        """Return whether most messages that began with those of ``minute`` died; None if too few ended to tell.

        If fewer than ``ENDED_MIN`` messages of the minute have ended, its neighbours within the hour count too.
        """
        hour = minute - minute % HOUR
        minutes = self.hours.get((stage, hour), {})
        well = died = 0
        for distance in range(HOUR // MINUTE):
            for each in {minute - distance * MINUTE, minute + distance * MINUTE}:
                more_well, more_died = minutes.get(each, (0, 0))
                well, died = well + more_well, died + more_died
            if well + died >= ENDED_MIN:
                if died <= well:
                    return False
                return None if (stage, hour) in self.partial else True
        return None

    def ended_in(self, stage: str, hour: int) -> tuple[int, int]:
        """Return how many messages of an hour ended well, and how many died. Nothing is known of a partial hour."""
        if (stage, hour) in self.partial:
            return 0, 0
        ended = self.hours.get((stage, hour), {}).values()
        return sum(well for well, _ in ended), sum(died for _, died in ended)


NO_EVIDENCE = Evidence()


def verdict_on(stage: str, count: int, letters: Mapping[int, int], evidence: Evidence) -> str:
    """Return the verdict on ``count`` letters of one failure: see ``advice.letter_rows``.

    ``letters`` has the number of letters by minute of origin. The verdict is that of more than half of the letters.
    Letters that began in hours with few messages are judged together.
    """
    bad = good = seldom = 0
    hours = set()
    for minute, number in letters.items():
        match evidence.is_bad(stage, minute):
            case True:
                bad += number
            case False:
                good += number
            case None:
                seldom += number
                hours.add(minute - minute % HOUR)
    ended = [evidence.ended_in(stage, hour) for hour in hours]
    well, died = sum(each for each, _ in ended), sum(each for _, each in ended)
    if well + died >= ENDED_MIN:
        bad, good = (bad + seldom, good) if died > well else (bad, good + seldom)
    if 2 * bad > count:
        return "outage"
    return "poison" if 2 * good > count else "unclear"
