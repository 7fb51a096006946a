"""The loop of whoever runs stages: take the next message, run it, look what came of it. Worker threads and Spark's
tasks are this loop."""

from __future__ import annotations

import logging

from stagepost.app.stores import Access
from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.errors import StoreContention, StoreUnavailable
from stagepost.liveness.intake import Intake
from stagepost.recovery.deadletter import causes_of, describe, handler_traceback
from stagepost.transaction.attempt import StageTransaction
from stagepost.transaction.outcome import Abandoned, AnsweredWithFailure, Buried, Completed, Lost, Outcome, Redelivered
from stagepost.transaction.seams import Patience

STORE_PAUSE_SECONDS = 1.0

SETTLED_WELL = (Completed, AnsweredWithFailure)

logger = logging.getLogger(__name__)


def work(intake: Intake, access: Access, transaction: StageTransaction, clock: Clock, patience: Patience) -> int:
    """Until the intake is stopped, or patience with a database that does not answer ends. Returns how many it ran."""
    ran = 0
    while (claim := _next(intake, access, patience)) is not None:
        begin = clock.monotonic()
        outcome = transaction.run(claim)
        intake.window.observe(clock.monotonic() - begin)
        if isinstance(outcome, SETTLED_WELL):
            intake.wakeup.ring()
        else:
            log_outcome(claim, outcome)
        ran += 1
    return ran


def _next(intake: Intake, access: Access, patience: Patience) -> Claim | None:
    while True:
        try:
            return intake.next(access.transport)
        except (StoreContention, StoreUnavailable) as error:
            logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
            if not patience.wait(STORE_PAUSE_SECONDS):
                return None


def log_outcome(claim: Claim, outcome: Outcome) -> None:
    """A failed attempt is one line; the last one brings its stack. What went well is in the journal."""
    ids = {"message_id": claim.message_id, "flow_id": claim.flow_id, "stage": claim.stage, "attempt": claim.attempt}
    match outcome:
        case Redelivered(after, error):
            logger.warning(
                "%s failed on %s of flow %s, attempt %d, and comes again in %.1f s: %s",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                claim.attempt,
                after / SECOND,
                describe(causes_of(error)[0]),
                extra={"event": "attempt-failed", **ids},
            )
        case Buried("refused", error):
            logger.warning(
                "%s refused %s of flow %s, now a dead letter: %s",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                error,
                extra={"event": "message-dead", **ids},
            )
        case Buried(reason, error):
            logger.error(
                "%s failed on %s of flow %s, attempt %d, now a dead letter (%s)",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                claim.attempt,
                reason,
                exc_info=(type(error), error, handler_traceback(error)),
                extra={"event": "message-dead", **ids},
            )
        case Lost():
            logger.warning(
                "%s gave up %s of flow %s, which another owner holds by now",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                extra={"event": "lease-lost", **ids},
            )
        case Abandoned():
            pass
        case _:
            raise AssertionError(f"an attempt cannot end as {outcome!r}")
