"""The loop of whoever runs stages: take the next message, run it, look what came of it. Worker threads and Spark's
tasks are this loop."""

from __future__ import annotations

import logging

from stagepost.app.stores import Access
from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import StoreContention, StoreUnavailable
from stagepost.liveness.intake import Intake
from stagepost.liveness.telling import log_outcome
from stagepost.transaction.attempt import StageTransaction
from stagepost.transaction.outcome import AnsweredWithFailure, Completed, Duplicate
from stagepost.transaction.seams import Patience

STORE_PAUSE_SECONDS = 1.0

SETTLED_WELL = (Completed, AnsweredWithFailure, Duplicate)

logger = logging.getLogger(__name__)


def work(intake: Intake, access: Access, transaction: StageTransaction, clock: Clock, patience: Patience) -> int:
    """Until the intake is stopped, or patience with a database that does not answer ends. Returns how many it ran."""
    ran = 0
    while claims := _next(intake, access, patience):
        begin = clock.monotonic()
        outcomes = transaction.run_batch(claims) if len(claims) > 1 else [transaction.run(claims[0])]
        intake.window.observe((clock.monotonic() - begin) / len(claims))
        for claim, outcome in zip(claims, outcomes, strict=True):
            if isinstance(outcome, SETTLED_WELL):
                intake.wakeup.ring()
            else:
                log_outcome(claim, outcome)
        ran += len(claims)
    return ran


def _next(intake: Intake, access: Access, patience: Patience) -> list[Claim]:
    while True:
        try:
            return intake.next(access.transport)
        except (StoreContention, StoreUnavailable) as error:
            logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
            if not patience.wait(STORE_PAUSE_SECONDS):
                return []
