"""Decide what follows an attempt that the database, its fence or its log of effects refused."""

from __future__ import annotations

from random import Random

from stagepost.flow.claim import Claim
from stagepost.flow.clock import microseconds
from stagepost.flow.errors import (
    BrokerConnectionLost,
    ConnectionLost,
    DocumentFull,
    EffectConflict,
    EffectDeferred,
    FailureUnwritable,
    IdConflict,
    LeaseLost,
    StoreContention,
    StoreExhausted,
    StoreUnavailable,
)
from stagepost.ports.inbox import AlreadyHandled
from stagepost.recovery.deadletter import safe_text
from stagepost.recovery.suspicion import is_death
from stagepost.transaction.outcome import Buried, Duplicate, Lost, Outcome, Redelivered, Returned, death, failure
from stagepost.transaction.stage import Stage

# A database that answers, and still refuses after this time, is a fault that an operator must see.
UNCOUNTED_SECONDS_MAX = 600.0


def outcome_of_interruption(stage: Stage, claim: Claim, error: Exception, random: Random, ms: float) -> Outcome | None:
    """Return the outcome of a run whose transaction ended, or None if the error is its failure.

    Raises the error where the run counts against no message.
    """
    match error:
        case LeaseLost():
            return Lost()
        case AlreadyHandled():
            return Duplicate(error.handled)
        case EffectDeferred() | DocumentFull():
            return Returned(microseconds(error.seconds), str(error))
        case IdConflict() | EffectConflict():
            return failure(stage, claim, error, random, ms)
        case StoreContention() | StoreUnavailable():
            raise error
    return None


def outcome_of_refusal(
    stage: Stage,
    claim: Claim,
    error: Exception,
    outcome: Outcome | None,
    seconds: float,
    lost: int,
    random: Random,
) -> Outcome | None:
    """Return the outcome of an attempt that could not be settled, or None if waiting may help.

    ``lost`` is the number of connections that the server ended without a message during this attempt.
    """
    failed = outcome if isinstance(outcome, Redelivered | Buried) else None
    match error:
        case AlreadyHandled():
            return Duplicate(error.handled)
        case LeaseLost() | BrokerConnectionLost():
            return Lost()
        case ConnectionLost() if failed is None and is_death(lost, claim.deaths):
            return death(claim, "the server ended its connection without a message during its own statements")
        case StoreContention() | StoreExhausted() if failed is not None or seconds <= UNCOUNTED_SECONDS_MAX:
            return None
        case StoreUnavailable() if not isinstance(error, StoreExhausted):
            return None
    if failed is None:
        return failure(stage, claim, error, random)
    if isinstance(failed.error, FailureUnwritable):
        # The replacement cannot be written either, so the failure's text is not the reason.
        raise error
    unwritable = FailureUnwritable(f"the attempt failed, and its failure cannot be written: {safe_text(error)}")
    return failure(stage, claim, unwritable, random)
