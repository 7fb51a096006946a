"""The one place where the outcome of a claimed message is written, whoever found it out.

A worker's own attempt comes here, and so do those who clean up after the dead: nothing else ends a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.envelope import Envelope, encode_envelope
from stagepost.flow.errors import CommitUnknown, LeaseLost, StoreError, StoreUnavailable
from stagepost.flow.initiation import Outgoing
from stagepost.flow.waypoint import Waypoint, WaypointName
from stagepost.recovery.deadletter import DeadLetter, causes_of, describe, fingerprint, stack_of
from stagepost.transaction.outcome import (
    Abandoned,
    AnsweredWithFailure,
    Buried,
    Completed,
    Died,
    Lost,
    Outcome,
    Redelivered,
    Returned,
)
from stagepost.transaction.seams import Session, Transport
from stagepost.transaction.stage import Stage
from stagepost.transaction.steps import Step, StepListener


class Settlement:
    def __init__(self, session: Session, transport: Transport, clock: Clock, node: str, listener: StepListener) -> None:
        self._session = session
        self._transport = transport
        self._clock = clock
        self._node = node
        self._listener = listener

    def settle(self, stage: Stage, claim: Claim, outcome: Outcome, begin: Callable[[], None] | None = None) -> Outcome:
        """Write the outcome, and commit; returns ``Lost`` where the claim turned out to be somebody else's by now.

        ``begin`` opens the stage's own transaction, or finds it open, with the message taken: what completed commits
        in that one, all else in a new one after a rollback. Raises ``StoreError``; nothing is written then.
        """
        if not isinstance(outcome, Completed):
            self._session.rollback()
        try:
            match outcome:
                case Completed(outgoing, _, ms):
                    (begin or self._begin_for(claim))()
                    self._produce(claim, outgoing, ms, None)
                case AnsweredWithFailure(reply, ms):
                    self._begin_for(claim)()
                    self._produce(claim, [reply], ms, "fail_with")
                case Redelivered(after, error, ms):
                    self._defer(claim, after, claim.failures + 1, claim.deaths)
                    self._note(claim, "failed", describe(causes_of(error)[0]), ms)
                    self._note(claim, "delayed", f"{after / SECOND:.3f} s")
                case Died(after, how):
                    self._defer(claim, after, claim.failures, claim.deaths + 1)
                    self._note(claim, "died", how)
                    self._note(claim, "delayed", f"{after / SECOND:.3f} s, then alone")
                case Returned(after, why):
                    self._defer(claim, after, claim.failures, claim.deaths)
                    self._note(claim, "returned", why)
                case Buried(reason, error, ms):
                    self._begin_for(claim)()
                    letter = dead_letter(stage, claim, outcome, self._clock.now(), self._node)
                    self._session.bury(letter)
                    self._note(claim, "died" if reason == "worker-died" else "failed", letter.summary, ms)
                    self._note(claim, "dead", f"{reason} {letter.fingerprint}")
                case Lost() | Abandoned():
                    return outcome
            self._commit(claim)
        except LeaseLost:
            self._session.rollback()
            return Lost()
        except StoreError:
            self._session.rollback()
            raise
        self._listener(Step.COMMITTED, claim)
        return outcome

    def _begin_for(self, claim: Claim) -> Callable[[], None]:
        def begin() -> None:
            self._session.begin()
            self._transport.take(claim)

        return begin

    def _defer(self, claim: Claim, after: int, failures: int, deaths: int) -> None:
        self._session.begin()
        due_at = self._clock.now() + after
        if not self._transport.defer(claim, due_at=due_at, failures=failures, deaths=deaths):
            raise LeaseLost(claim.message_id)

    def _produce(self, claim: Claim, outgoing: Sequence[Outgoing], ms: float, detail: str | None) -> None:
        now = self._clock.now()
        waypoints = [self._waypoint(claim, now, "committed", detail, ms)]
        if outgoing:
            encoded = [(each, encode_envelope(each.envelope)) for each in outgoing]
            waypoints += [_sent(each.envelope, len(data), now, self._node) for each, data in encoded]
            self._transport.put(encoded)
        self._session.record(waypoints)
        self._listener(Step.RECORDED, claim)

    def _note(self, claim: Claim, name: WaypointName, detail: str, ms: float | None = None) -> None:
        self._session.record([self._waypoint(claim, self._clock.now(), name, detail, ms)])

    def _commit(self, claim: Claim) -> None:
        self._listener(Step.COMMITTING, claim)
        try:
            self._session.commit()
        except CommitUnknown:
            # The row itself knows: gone, or no longer as we claimed it, means that the commit stood.
            self._session.reconnect()
            if self._transport.holds(claim):
                raise StoreUnavailable(f"the commit of {claim.message_id} at {claim.stage} did not stand") from None

    def _waypoint(self, claim: Claim, now: int, name: WaypointName, detail: str | None, ms: float | None) -> Waypoint:
        return Waypoint(
            name,
            now,
            self._node,
            claim.stage,
            claim.message_id,
            claim.flow_id,
            claim.attempt,
            claim.origin_at,
            ms=ms,
            detail=detail,
        )


def dead_letter(stage: Stage, claim: Claim, buried: Buried, now: int, node: str) -> DeadLetter:
    died = buried.reason == "worker-died"
    return DeadLetter(
        message_id=claim.message_id,
        flow_id=claim.flow_id,
        stage=claim.stage,
        reason=buried.reason,
        causes=causes_of(buried.error),
        stack=stack_of(buried.error),
        fingerprint=fingerprint(buried.error),
        failures=claim.failures + (0 if died else 1),
        deaths=claim.deaths + (1 if died else 0),
        deliveries=claim.deliveries,
        origin_at=claim.origin_at,
        dead_at=now,
        node=node,
        declared_at=stage.declared_at,
        envelope=claim.envelope,
    )


def _sent(envelope: Envelope, size: int, now: int, node: str) -> Waypoint:
    return Waypoint(
        "sent",
        now,
        node,
        envelope.to,
        envelope.message_id,
        envelope.flow_id,
        0,
        envelope.origin_at,
        envelope.cause_id,
        envelope.kind,
        envelope.ordinal,
        None,
        size,
        envelope.sender,
    )
