"""What became of a claimed message: data, decided in one place and settled by one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from stagepost.flow.claim import Claim
from stagepost.flow.errors import WorkerDied
from stagepost.flow.inbox import Handled
from stagepost.flow.initiation import Outgoing
from stagepost.recovery.redelivery import DeathReason
from stagepost.recovery.suspicion import is_deadly, pause_after_death


class Completed(msgspec.Struct, frozen=True):
    """The stage's work, its message and ``outgoing`` commit together. ``ms``: how long the handler ran."""

    outgoing: Sequence[Outgoing]
    callbacks: Sequence[Callable[[], object]]
    ms: float


@dataclass(frozen=True, slots=True)
class Duplicate:
    """It was handled before; what it produced then is sent now, if it was not."""

    handled: Handled


@dataclass(frozen=True, slots=True)
class AnsweredWithFailure:
    """``ctx.fail_with``: the work is undone; the message and the reply commit."""

    reply: Outgoing
    ms: float


@dataclass(frozen=True, slots=True)
class Redelivered:
    """The attempt failed: undone and counted; the message comes again ``after`` microseconds."""

    after: int
    error: BaseException
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Died:
    """The process died while it ran the message: counted apart from failures; it comes again ``after`` microseconds,
    alone."""

    after: int
    how: str


@dataclass(frozen=True, slots=True)
class Returned:
    """Not tried, or not to its end, and through no fault of its own: uncounted; it comes again ``after``
    microseconds."""

    after: int
    why: str


@dataclass(frozen=True, slots=True)
class Buried:
    """Undone; the message becomes a dead letter."""

    reason: DeathReason
    error: BaseException
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Expired:
    """A reply that nobody waits for any more: removed."""

    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Undone: the message belongs to another owner, who settles it."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Undone and uncounted: the database did not let us in, and the one who waits was told to stop."""


def death(claim: Claim, how: str) -> Died | Buried:
    """What a death before the eyes of somebody who lives on comes to; ``how`` says what died, and of what."""
    deaths = claim.deaths + 1
    if is_deadly(deaths):
        return Buried("worker-died", WorkerDied(f"{how}, for the {claim.deaths}. time"))
    return Died(pause_after_death(deaths), how)


Outcome = (
    Completed | Duplicate | AnsweredWithFailure | Redelivered | Died | Returned | Buried | Expired | Lost | Abandoned
)
