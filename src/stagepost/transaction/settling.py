"""Write the outcome of a claimed message. No other code ends a claim.

A worker's own attempts use it, and so does the takeover from dead processes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from msgspec import structs

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.flow.errors import ConsumerRefused, LeaseLost, StoreContention, StoreError, StoreUnavailable
from stagepost.flow.initiation import Outgoing
from stagepost.flow.produced import decode_produced
from stagepost.ports.circuits import CircuitBreaker
from stagepost.ports.dead_letters import DeadLetter
from stagepost.ports.inbox import Handled
from stagepost.ports.journal import WaypointName
from stagepost.recovery.deadletter import causes_of, fingerprint, stack_of
from stagepost.transaction.departures import judge_death, unstamp
from stagepost.transaction.documents import KeptList, drop_sent, join
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
from stagepost.transaction.pausing import count_failure, log_pause
from stagepost.transaction.queue_commit import QueueCommit, Single
from stagepost.transaction.stage import Stage
from stagepost.transaction.steps import Step
from stagepost.transaction.undoing import orders_of
from stagepost.transaction.unit_of_work import UnitOfWork

# These outcomes roll the handler's work back.
Undone = AnsweredWithFailure | Redelivered | Died | Returned | Buried | Expired


class Settlement:
    """Writes outcomes for one thread, which ``queue_commit`` belongs to."""

    def __init__(self, queue_commit: QueueCommit) -> None:
        self._queue_commit = queue_commit

    def settle(self, stage: Stage | None, claim: Claim, outcome: Outcome, work: UnitOfWork | None = None) -> Outcome:
        """Write the outcome and commit. Returns ``Lost`` if the claim belongs to another owner by now.

        ``work`` is the attempt's work: it is committed if the outcome is ``Completed``, and otherwise rolled back.
        Without ``work``, as for a reply, a ``Completed`` only takes the message. Without a ``stage``, as at the address
        of a reply listener, the outcome may be neither ``Redelivered`` nor ``Buried``.

        Raises ``StoreError``. Nothing is written then.
        """
        queue_commit = self._queue_commit
        paused: CircuitBreaker | None = None
        try:
            if isinstance(outcome, Completed | Duplicate):
                self._conclude(claim, outcome, work)
                return outcome
            if work is not None:
                work.rollback(outcome.error if isinstance(outcome, Redelivered | Buried) else None)
            if isinstance(outcome, Lost | Abandoned):
                return outcome
            if work is None and stage is not None and queue_commit.effects is not None:
                queue_commit.effects.end_attempt(claim)
            queue_commit.session.begin()
            if work is not None and work.has_departed:
                unstamp(queue_commit, claim, has_ended=work.has_departure_ended)
            judged, paused = self._judged(stage, claim, outcome)
            if isinstance(judged, Duplicate):
                return judged
            outcome = judged
            if _is_kept(outcome, stage, claim, work) and paused is None:
                outcome = self._keep(claim, outcome)
            else:
                self._write(stage, claim, outcome)
            queue_commit.listener(Step.COMMITTING, claim)
            queue_commit.commit(claim)
        except LeaseLost as error:
            self._undo(work, error)
            return Lost()
        except StoreError as error:
            self._undo(work, error)
            raise
        queue_commit.listener(Step.COMMITTED, claim)
        if paused is not None:
            log_pause(paused)
        return outcome

    def _conclude(self, claim: Claim, outcome: Completed | Duplicate, work: UnitOfWork | None) -> None:
        if isinstance(outcome, Duplicate):
            assert work is not None, "only an attempt recognises a duplicate"
            work.rollback()
            work.conclude(outcome.handled)
        elif work is None:
            self._queue_commit.take(claim)
            single = Single(self._queue_commit)
            single.deliver(claim, single.complete(claim, outcome))
        else:
            work.complete(self._with_orders(claim, outcome, work))
            work.deliver()

    def _judged(
        self, stage: Stage | None, claim: Claim, outcome: Undone
    ) -> tuple[Undone | Duplicate, CircuitBreaker | None]:
        """Return the outcome in view of the store, and the circuit that it opened. A ``Duplicate`` is committed."""
        if isinstance(outcome, Died):
            outcome = judge_death(self._queue_commit.session, claim, outcome)
        if isinstance(outcome, Buried) and stage is not None:
            kept = join(stage, self._queue_commit, claim)
            if kept is not None and kept.produced is not None and self._sends(claim, kept, kept.produced):
                return Duplicate(Handled("", kept.produced)), None
        if isinstance(outcome, Redelivered | Buried):
            assert stage is not None, "only a stage has failures"
            return count_failure(self._queue_commit, stage, claim, outcome)
        return outcome, None

    def _sends(self, claim: Claim, kept: KeptList, produced: bytes) -> bool:
        """Send the list of an attempt that wrote the document, and commit. Return False if the queue refuses it."""
        queue_commit = self._queue_commit
        try:
            with queue_commit.session.atomic():
                queue_commit.session.queue.take(claim)
                queue_commit.put(claim, decode_produced(produced))
        except (StoreUnavailable, StoreContention):
            raise
        except StoreError:
            # The document keeps the id for as long as the letter lives, so a replay sends the list.
            return False
        queue_commit.listener(Step.COMMITTING, claim)
        queue_commit.commit_completed([claim])
        queue_commit.listener(Step.COMMITTED, claim)
        drop_sent(kept, claim)
        return True

    def _with_orders(self, claim: Claim, completed: Completed, work: UnitOfWork) -> Completed:
        """Add the orders to undo the effects that this commit does not keep."""
        log = self._queue_commit.effects
        if log is None or work.effects is None:
            return completed
        orders = orders_of(log, claim, work.effects.not_kept())
        return structs.replace(completed, outgoing=[*completed.outgoing, *orders]) if orders else completed

    def _orders(self, claim: Claim, token: int) -> list[Outgoing]:
        """Return the orders to undo the effects of a message that ends without any of them."""
        log = self._queue_commit.effects
        if log is None or claim.stage not in log.stages:
            return []
        return orders_of(log, claim, log.not_kept(claim, token))

    def _write(self, stage: Stage | None, claim: Claim, outcome: Undone) -> None:
        queue_commit = self._queue_commit
        match outcome:
            case AnsweredWithFailure(reply, ms):
                queue_commit.consume(claim)
                sends = [reply, *self._orders(claim, claim.deliveries)]
                queue_commit.put(claim, queue_commit.produced(claim, sends, ms, "fail_with"))
                queue_commit.listener(Step.RECORDED, claim)
            case Redelivered(after, error, ms):
                queue_commit.defer(claim, after, failures=claim.failures + 1, deaths=claim.deaths)
                queue_commit.note(claim, "failed", causes_of(error)[0].summary, ms)
                queue_commit.note(claim, "delayed", f"{after / SECOND:.3f} s")
            case Died(after, how):
                queue_commit.defer(claim, after, failures=claim.failures, deaths=claim.deaths + 1)
                queue_commit.note(claim, "died", how)
                queue_commit.note(claim, "delayed", f"{after / SECOND:.3f} s, then alone")
            case Returned(after, why):
                queue_commit.defer(claim, after, failures=claim.failures, deaths=claim.deaths)
                queue_commit.note(claim, "returned", why)
            case Buried(reason, error, ms, report):
                assert stage is not None
                queue_commit.consume(claim)
                letter = dead_letter(stage, claim, outcome, queue_commit.clock.now(), queue_commit.node)
                queue_commit.session.dead_letters.bury(letter)
                queue_commit.note(claim, _waypoint_of(outcome), letter.summary, ms)
                if report is not None:
                    produced = queue_commit.produced(claim, [report], ms)
                    queue_commit.put_one(report, produced.sends[0][1], produced)
                queue_commit.note(claim, "dead", f"{reason} {letter.fingerprint}")
                # Above its own token, so that no attempt of this claim can add an effect.
                queue_commit.send(self._orders(claim, claim.deliveries + 1))
            case Expired(why):
                queue_commit.consume(claim)
                queue_commit.note(claim, "expired", why)

    def _keep(self, claim: Claim, outcome: Redelivered) -> Redelivered:
        """Write the failure of a message that its thread keeps."""
        queue_commit = self._queue_commit
        kept = claim._replace(failures=claim.failures + 1, deliveries=claim.deliveries + 1)
        if not queue_commit.session.queue.release(claim, kept_failures=kept.failures):
            raise LeaseLost.of(claim.message_id, claim.stage)
        queue_commit.note(claim, "failed", causes_of(outcome.error)[0].summary, outcome.ms)
        queue_commit.note(claim, "delayed", f"{outcome.after / SECOND:.3f} s, kept by its thread")
        return replace(outcome, kept=kept)

    def _undo(self, work: UnitOfWork | None, error: BaseException) -> None:
        self._queue_commit.session.rollback()
        if work is not None:
            work.rollback(error)


def _is_kept(outcome: Outcome, stage: Stage | None, claim: Claim, work: UnitOfWork | None) -> TypeGuard[Redelivered]:
    """Say whether the thread keeps the message. A suspect's process may die of it, so it holds up no thread."""
    is_blocking = stage is not None and stage.redelivery.blocking
    return is_blocking and isinstance(outcome, Redelivered) and work is not None and not claim.deaths


def _waypoint_of(buried: Buried) -> WaypointName:
    if buried.reason == "worker-died":
        return "died"
    return "refused" if isinstance(buried.error, ConsumerRefused) else "failed"


def dead_letter(stage: Stage, claim: Claim, buried: Buried, now: int, node: str) -> DeadLetter:
    died = buried.reason == "worker-died"
    return DeadLetter(
        message_id=claim.message_id,
        flow_id=claim.flow_id,
        stage=claim.stage,
        reason=buried.reason,
        causes=causes_of(buried.error),
        stack=stack_of(buried.error),
        fingerprint=fingerprint(buried.error, claim.stage),
        failures=claim.failures + (0 if died else 1),
        deaths=claim.deaths + (1 if died else 0),
        deliveries=claim.deliveries,
        origin_at=claim.origin_at,
        dead_at=now,
        node=node,
        declared_at=stage.declared_at,
        envelope=claim.envelope,
    )
