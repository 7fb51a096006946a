"""The outcomes of a claimed message. ``Settlement.settle`` writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from stagepost.flow.claim import Claim
from stagepost.flow.errors import WorkerDied
from stagepost.flow.initiation import Outgoing
from stagepost.ports.dead_letters import DeathReason
from stagepost.ports.inbox import Handled
from stagepost.recovery.redelivery import Again, Bury
from stagepost.recovery.suspicion import is_deadly, pause_after_death
from stagepost.transaction.stage import Stage


class Completed(msgspec.Struct, frozen=True):
    """The stage's work, its message and ``outgoing`` commit together.

    ``ms`` is how long the handler ran, ``detail`` its text for the journal.
    """

    outgoing: Sequence[Outgoing]
    callbacks: Sequence[Callable[[], object]]
    ms: float
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The message was handled before. Its produced envelopes are sent now, unless they were sent."""

    handled: Handled


@dataclass(frozen=True, slots=True)
class AnsweredWithFailure:
    """The handler called ``ctx.fail_with``: the work is rolled back; the message and the reply commit."""

    reply: Outgoing
    ms: float


@dataclass(frozen=True, slots=True)
class Redelivered:
    """The attempt failed: it is rolled back and counted, and the message comes again ``after`` microseconds.

    ``kept`` is the claim of the next attempt, if the redelivery is blocking: the caller waits, and runs it.
    """

    after: int
    error: BaseException
    ms: float = 0.0
    kept: Claim | None = None


@dataclass(frozen=True, slots=True)
class Died:
    """The process died while it ran the message. This is counted apart from failures.

    The message comes again ``after`` microseconds, alone.
    """

    after: int
    how: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The attempt did not start or end, and the message is not at fault, so nothing is counted.

    The message comes again ``after`` microseconds.
    """

    after: int
    why: str


@dataclass(frozen=True, slots=True)
class Buried:
    """The attempt is rolled back, and the message becomes a dead letter. The same commit sends the ``report``."""

    reason: DeathReason
    error: BaseException
    ms: float = 0.0
    report: Outgoing | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """The message is a reply that no request waits for any more. It is removed."""

    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The attempt is rolled back. The message belongs to another owner, which settles it."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The attempt is rolled back and uncounted: the worker had to stop while the database refused the outcome."""


def failure(stage: Stage, claim: Claim, error: BaseException, random: Random, ms: float = 0.0) -> Redelivered | Buried:
    """Decide the outcome of a failed attempt by the stage's redelivery policy. No other code decides this."""
    match stage.redelivery.decide(claim.failures + 1, error, random):
        case Again(after):
            return Redelivered(after, error, ms)
        case Bury(reason):
            return Buried(reason, error, ms)


def death(claim: Claim, how: str) -> Died | Buried:
    """Decide the outcome of a death that a living process saw. ``how`` names the process and the cause."""
    deaths = claim.deaths + 1
    if is_deadly(deaths):
        return Buried("worker-died", WorkerDied(f"{how}, for the {claim.deaths}. time"))
    return Died(pause_after_death(deaths), how)


Outcome = (
    Completed | Duplicate | AnsweredWithFailure | Redelivered | Died | Returned | Buried | Expired | Lost | Abandoned
)
