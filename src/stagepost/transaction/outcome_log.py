"""Log the outcome of a message, unless it is a success. The journal has the successes."""

from __future__ import annotations

import logging

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.flow.errors import DeliveryFailed, MaybeDelivered
from stagepost.flow.texts import one_line
from stagepost.recovery.deadletter import causes_of, safe_text, stack_of
from stagepost.transaction.enqueueing import attempt_of
from stagepost.transaction.outcome import (
    Abandoned,
    AnsweredWithFailure,
    Buried,
    Completed,
    Died,
    Duplicate,
    Expired,
    Lost,
    Outcome,
    Redelivered,
    Returned,
)

logger = logging.getLogger(__name__)


def log_outcome(claim: Claim, outcome: Outcome) -> None:
    """Log a failed attempt as one line; the last attempt adds its stack."""
    attempt = attempt_of(claim)
    ids = {"message_id": claim.message_id, "flow_id": claim.flow_id, "stage": claim.stage, "attempt": attempt}
    match outcome:
        case Redelivered(after, error):
            logger.warning(
                "%s failed on %s of flow %s, attempt %d, and comes again in %.1f s: %s",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                attempt,
                after / SECOND,
                causes_of(error)[0].summary,
                extra={"event": "attempt-failed", **ids},
            )
        case Died(after, how):
            logger.warning(
                "%s on %s of flow %s, attempt %d: %s. It comes again in %.1f s, alone",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                attempt,
                how,
                after / SECOND,
                extra={"event": "attempt-died", **ids},
            )
        case Buried("refused", error):
            logger.warning(
                "%s refused %s of flow %s, now a dead letter: %s",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                one_line(safe_text(error)),
                extra={"event": "message-dead", **ids},
            )
        case Buried(reason, DeliveryFailed() | MaybeDelivered() as error):
            # The text has all of it: the stack is Stagepost's own.
            logger.error(
                "%s failed on %s of flow %s, attempt %d, now a dead letter (%s): %s",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                attempt,
                reason,
                one_line(safe_text(error)),
                extra={"event": "message-dead", **ids},
            )
        case Buried(reason, error):
            logger.error(
                "%s failed on %s of flow %s, attempt %d, now a dead letter (%s)",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                attempt,
                reason,
                extra={"event": "message-dead", "stack": stack_of(error), **ids},
            )
        case Returned(_, why):
            logger.warning(
                "%s of flow %s at %s was given back, uncounted: %s",
                claim.message_id,
                claim.flow_id,
                claim.stage,
                why,
                extra={"event": "given-back", **ids},
            )
        case Lost():
            logger.warning(
                "%s gave up %s of flow %s, which now belongs to another owner",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                extra={"event": "lease-lost", **ids},
            )
        case Completed() | Duplicate() | AnsweredWithFailure() | Expired() | Abandoned():
            pass
