"""Claims on the messages of a queue: taking them, probing paused stages, and giving claims back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import ClaimUnknown, CommitUnknown, StoreUnavailable
from stagepost.ports.circuits import CircuitBreaker, Probe
from stagepost.ports.queue import Pending
from stagepost.ports.session import Session
from stagepost.recovery.pausing import next_end, with_probe
from stagepost.transaction.enqueueing import line_of_claim, row_again
from stagepost.transaction.queue_commit import committing

logger = logging.getLogger(__name__)


class Claimer:
    """One thread's claims, each made or given back in a transaction of its own.

    ``next_held_at``  returns the moment at which the outbox of another database has messages to send to this queue;
                      None if it has none
    """

    def __init__(self, session: Session, clock: Clock, next_held_at: Callable[[], int | None]) -> None:
        self.queue = session.queue
        self._session = session
        self._clock = clock
        self._next_held_at = next_held_at

    def claim(self, stages: Sequence[str], limit: int, owner: str, node: str) -> list[Claim]:
        """Claim up to ``limit`` due messages of these stages, of the oldest flows first, and journal it.

        Raises ``StoreError``, and ``ClaimUnknown`` if the outcome of the commit cannot be read.
        """
        found = self.queue.look(stages, self._clock.now())
        if not any(found):
            return []
        claims: list[Claim] = []
        resumed: list[CircuitBreaker] = []
        try:
            with committing(self._session, is_durable=False):
                now = self._clock.now()
                if found.probes:
                    self._probe(stages, limit, owner, now, claims, resumed)
                claims += self.queue.claim(stages, limit - len(claims), owner, now)
                self._session.journal.record([line_of_claim("received", each, now, node) for each in claims])
        except CommitUnknown:
            claims = self._still_ours(claims)
        for each in resumed:
            logger.warning("%s is no longer paused: a probe succeeded", each.stage, extra={"event": "stage-resumed"})
        # RETURNING guarantees no order.
        return sorted(claims, key=lambda claim: (claim.origin_at, claim.row))

    def claim_suspect(self, stages: Sequence[str], owner: str, node: str) -> Claim | None:
        """Claim the due suspect with the fewest deaths, to be run alone. Raises as ``claim`` does."""
        due_at = self.queue.pending(stages).next_suspect_at
        if due_at is None or due_at > self._clock.now():
            return None
        claim = None
        try:
            with committing(self._session):
                now = self._clock.now()
                claim = self.queue.claim_suspect(stages, now, owner)
                if claim is not None:
                    self._session.journal.record([line_of_claim("received", claim, now, node, "alone")])
        except CommitUnknown:
            return next(iter(self._still_ours([claim] if claim else [])), None)
        return claim

    def release(self, claims: Sequence[Claim], node: str) -> None:
        """Give untried messages back, uncounted. Skips messages that another owner has claimed."""
        if not claims:
            return
        with committing(self._session):
            now = self._clock.now()
            returned = [each for each in claims if self._give_back(each, now)]
            self._session.journal.record([line_of_claim("returned", each, now, node) for each in returned])

    def pending(self, stages: Sequence[str]) -> Pending:
        """Say what is left to do for these stages, including the messages in the outbox of another database."""
        pending = self.queue.pending(stages)
        held_at = self._next_held_at()
        moments = [each for each in (pending.next_due_at, held_at) if each is not None]
        stalled_probes = pending.stalled_probes if held_at is None else None
        return replace(pending, next_due_at=min(moments, default=None), stalled_probes=stalled_probes)

    def _probe(
        self,
        stages: Sequence[str],
        limit: int,
        owner: str,
        now: int,
        claims: list[Claim],
        resumed: list[CircuitBreaker],
    ) -> None:
        """Resume each paused stage whose last probe succeeded, and claim a probe of the others that are due."""
        circuits = self._session.circuits
        for breaker in circuits.due(stages, now)[:limit]:
            pause = breaker.pause
            assert pause is not None, "only paused stages are probed"
            probe = pause.probe
            if probe is not None and circuits.is_claimed(probe.row):
                continue
            if probe is not None and self._session.journal.has_committed(breaker.stage, probe.message_id):
                circuits.forget(breaker.stage)
                resumed.append(breaker)
                continue
            claim = circuits.claim_probe(breaker.stage, owner, next_end(pause), now)
            if claim is not None:
                claims.append(claim)
            circuits.keep(with_probe(breaker, pause, None if claim is None else Probe(claim.row, claim.message_id)))

    def _still_ours(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims whose rows belong to this owner. A forgotten one would stay claimed."""
        try:
            self._session.reconnect()
            return [claim for claim in claims if self.queue.holds(claim)]
        except StoreUnavailable as error:
            raise ClaimUnknown(str(error), claims) from error

    def _give_back(self, claim: Claim, now: int) -> bool:
        if claim.deaths == 0:
            return self.queue.release(claim)
        if not self.queue.remove(claim):
            return False
        self.queue.enqueue([row_again(claim, now, claim.failures, claim.deaths)])
        return True
