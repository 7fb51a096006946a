"""Count a failure against its stage, and pause the stage after enough of them in a row."""

from __future__ import annotations

import logging

from stagepost.flow.claim import Claim
from stagepost.flow.errors import ConsumerRefused
from stagepost.ports.circuits import CircuitBreaker, Pause
from stagepost.ports.dead_letters import Selection
from stagepost.recovery.deadletter import causes_of
from stagepost.recovery.pausing import (
    STAGE_REASONS,
    counts_failures,
    is_probe,
    is_provisional,
    opened,
    with_failed_probe,
    with_failure,
)
from stagepost.transaction.enqueueing import line_of_letter
from stagepost.transaction.outcome import Buried, Redelivered, Returned
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.stage import Stage
from stagepost.transaction.undoing import open_effects

logger = logging.getLogger(__name__)

Failure = Redelivered | Buried


def count_failure(
    queue_commit: QueueCommit, stage: Stage, claim: Claim, failure: Failure
) -> tuple[Failure | Returned, CircuitBreaker | None]:
    """Count a failure in the stage's row, in the open transaction.

    Returns the outcome for the message, and the row if this failure makes the stage pause. A failure that another
    attempt cannot help is the message's own, and does not count against the stage.
    """
    if not stage.pause_after:
        return failure, None
    if isinstance(failure, Buried) and failure.reason not in STAGE_REASONS:
        if isinstance(failure.error, ConsumerRefused):
            _note_answer(queue_commit, stage)
        return failure, None
    error = causes_of(failure.error)[0].summary
    breaker = queue_commit.session.circuits.lock(stage.address)
    if breaker.pause is not None:
        return _count_while_paused(queue_commit, claim, failure, breaker, breaker.pause, error), None
    after = _with_failure(queue_commit, claim, breaker, error)
    if len(after.messages) < stage.pause_after:
        queue_commit.session.circuits.keep(after)
        return failure, None
    after = opened(after, queue_commit.clock.now())
    queue_commit.session.circuits.keep(after)
    _revive_letters(queue_commit, stage, after)
    if isinstance(failure, Buried) and is_provisional(failure.reason, claim.failures + 1, stage.redelivery):
        return Redelivered(0, failure.error, failure.ms), after
    return failure, after


def _note_answer(queue_commit: QueueCommit, stage: Stage) -> None:
    """Forget the failures in a row, and end a pause: a consumer that refuses a message is there, and answers."""
    is_paused = queue_commit.session.circuits.lock(stage.address).pause is not None
    if queue_commit.session.circuits.forget(stage.address) and is_paused:
        logger.warning("%s is no longer paused: its consumer answers", stage.address, extra={"event": "stage-resumed"})


def _with_failure(queue_commit: QueueCommit, claim: Claim, breaker: CircuitBreaker, error: str) -> CircuitBreaker:
    circuits = queue_commit.session.circuits
    has_succeeded = bool(breaker.messages) and circuits.has_succeeded(breaker.stage, breaker.line)
    line = circuits.last_line()
    return with_failure(breaker, claim.message_id, error, line, has_succeeded=has_succeeded)


def _count_while_paused(
    queue_commit: QueueCommit, claim: Claim, failure: Failure, breaker: CircuitBreaker, pause: Pause, error: str
) -> Failure | Returned:
    now = queue_commit.clock.now()
    probed = is_probe(pause, claim.row)
    # A suspect runs alone even if its stage is paused, so its failure counts as a probe's.
    if probed or claim.deaths:
        breaker = with_failed_probe(breaker, pause, error, now)
        queue_commit.session.circuits.keep(breaker)
    if counts_failures(pause, now):
        return failure
    until = breaker.pause.next_probe_at - now if claim.deaths and breaker.pause is not None else 0
    what = "a probe of its paused stage failed" if probed else "it failed at a paused stage"
    return Returned(max(until, 0), f"{what}: {error}")


def _revive_letters(queue_commit: QueueCommit, stage: Stage, breaker: CircuitBreaker) -> None:
    """Put the messages that died of the stage's failures back into the queue, for one more attempt."""
    dead_letters = queue_commit.session.dead_letters
    buried = [kept for message_id in breaker.messages for kept in dead_letters.select(Selection("message", message_id))]
    # A replay takes letters in the same order, by id, so that the two cannot deadlock.
    for kept in sorted(buried, key=lambda kept: kept.id):
        letter = kept.letter
        if letter.stage != stage.address or not is_provisional(letter.reason, letter.failures, stage.redelivery):
            continue
        if open_effects(queue_commit.effects, letter):
            # Its effects are being undone. Afterwards a replay brings it back.
            continue
        if dead_letters.remove(kept.id):
            queue_commit.revive(letter, failures=letter.failures)
            line = line_of_letter(
                "replayed", letter, queue_commit.clock.now(), queue_commit.node, "its stage is paused"
            )
            queue_commit.session.journal.record([line])


def log_pause(breaker: CircuitBreaker) -> None:
    logger.error(
        "%s is paused: %d messages failed one after the other, the last one with: %s. Until one succeeds, they are "
        "tried one at a time",
        breaker.stage,
        len(breaker.messages),
        breaker.error,
        extra={"event": "stage-paused", "stage": breaker.stage},
    )
