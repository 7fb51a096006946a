"""The one place where the outcome of a claimed message is written, whoever found it out.

A worker's own attempt comes here, and so do those who clean up after the dead: nothing else ends a claim.
"""

from __future__ import annotations

from typing import Protocol

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.errors import LeaseLost, StoreError
from stagepost.flow.inbox import Handled
from stagepost.recovery.deadletter import DeadLetter, causes_of, describe, fingerprint, stack_of
from stagepost.recovery.pausing import Streak
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
from stagepost.transaction.pausing import log_pause, weigh
from stagepost.transaction.post import Post
from stagepost.transaction.seams import Session, Transport
from stagepost.transaction.single import Single
from stagepost.transaction.stage import Stage
from stagepost.transaction.steps import Step, StepListener

# What leaves nothing of the handler's work.
Undone = AnsweredWithFailure | Redelivered | Died | Returned | Buried | Expired


class Work(Protocol):
    """What an attempt did in its stage's own transaction."""

    def complete(self, completed: Completed) -> None: ...

    def conclude(self, handled: Handled) -> None: ...

    def rollback(self) -> None: ...


class Settlement:
    def __init__(self, session: Session, transport: Transport, clock: Clock, node: str, listener: StepListener) -> None:
        self._post = Post(session, transport, clock, node, listener)

    def settle(self, stage: Stage | None, claim: Claim, outcome: Outcome, work: Work | None = None) -> Outcome:
        """Write the outcome, and commit; returns ``Lost`` where the claim turned out to be somebody else's by now.

        ``work`` is what the attempt did, committed where it completed and else undone. Who settles without having
        worked has none, and what completes then is but taken. Without a ``stage``, at an address that is none, nothing
        can be buried. Raises ``StoreError``; nothing is written then.
        """
        post = self._post
        paused: Streak | None = None
        try:
            if isinstance(outcome, Completed | Duplicate):
                self._conclude(claim, outcome, work)
                return outcome
            if work is not None:
                work.rollback()
            if isinstance(outcome, Lost | Abandoned):
                return outcome
            post.session.begin()
            if isinstance(outcome, Redelivered | Buried):
                assert stage is not None, "only at a stage something fails"
                outcome, paused = weigh(post, stage, claim, outcome)
            self._write(stage, claim, outcome)
            post.listener(Step.COMMITTING, claim)
            post.commit(claim)
        except LeaseLost:
            self._undo(work)
            return Lost()
        except StoreError:
            self._undo(work)
            raise
        post.listener(Step.COMMITTED, claim)
        if paused is not None:
            log_pause(paused)
        return outcome

    def _conclude(self, claim: Claim, outcome: Completed | Duplicate, work: Work | None) -> None:
        if isinstance(outcome, Duplicate):
            assert work is not None, "only an attempt recognises what was handled before"
            work.rollback()
            work.conclude(outcome.handled)
        elif work is None:
            Single(self._post).complete(claim, outcome, lambda: self._post.take(claim))
        else:
            work.complete(outcome)

    def _write(self, stage: Stage | None, claim: Claim, outcome: Undone) -> None:
        post = self._post
        match outcome:
            case AnsweredWithFailure(reply, ms):
                post.transport.take(claim)
                post.put(claim, post.produced(claim, [reply], ms, "fail_with"))
                post.listener(Step.RECORDED, claim)
            case Redelivered(after, error, ms):
                self._defer(claim, after, claim.failures + 1, claim.deaths)
                post.note(claim, "failed", describe(causes_of(error)[0]), ms)
                post.note(claim, "delayed", f"{after / SECOND:.3f} s")
            case Died(after, how):
                self._defer(claim, after, claim.failures, claim.deaths + 1)
                post.note(claim, "died", how)
                post.note(claim, "delayed", f"{after / SECOND:.3f} s, then alone")
            case Returned(after, why):
                self._defer(claim, after, claim.failures, claim.deaths)
                post.note(claim, "returned", why)
            case Buried(reason, error, ms):
                assert stage is not None
                post.transport.take(claim)
                letter = dead_letter(stage, claim, outcome, post.clock.now(), post.node)
                post.session.bury(letter)
                post.note(claim, "died" if reason == "worker-died" else "failed", letter.summary, ms)
                post.note(claim, "dead", f"{reason} {letter.fingerprint}")
            case Expired(why):
                post.transport.take(claim)
                post.note(claim, "expired", why)

    def _defer(self, claim: Claim, after: int, failures: int, deaths: int) -> None:
        post = self._post
        due_at = post.clock.now() + after
        if not post.transport.defer(claim, due_at=due_at, failures=failures, deaths=deaths):
            raise LeaseLost(claim.message_id)

    def _undo(self, work: Work | None) -> None:
        self._post.session.rollback()
        if work is not None:
            work.rollback()


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
