"""The mode ``two_phase``: the queue's PostgreSQL and the stages' are two, and both commit or neither does.

The queue's side is prepared: the message taken, what was produced put, the journal, all of it sure to be committed
whatever happens, and not committed yet. Then the stages' database commits the work, and in the same commit the decision
that the queue's side is to follow. Then it follows. What is in doubt meanwhile is the queue's row, never the stages'
tables. Whoever finds it in doubt asks for the decision; where there is none it decides against it, by a row that the
late coordinator would have to insert too, and so fails instead of disagreeing.

See Gray and Lamport, "Consensus on Transaction Commit" (2004), section 2, and PostgreSQL's manual, PREPARE TRANSACTION.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.flow.errors import CommitUnknown, StoreContention, StoreError, StoreUnavailable
from stagepost.flow.inbox import AlreadyHandled, Handled
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.transaction.initiating import hold_acceptances
from stagepost.transaction.outcome import Completed
from stagepost.transaction.post import Post
from stagepost.transaction.seams import DecidingSession, PreparingSession
from stagepost.transaction.steps import Step

# What is in doubt for so long has a coordinator that died, or that is too slow and may be overruled.
DOUBT_SECONDS = 15.0
# Where nobody forgot it: a decision to commit once nothing is prepared under its id any more, one against it when no
# coordinator, however late, can come with it.
KEPT_COMMITTED = 60 * SECOND
KEPT_OVERRULED = 24 * 3600 * SECOND
SWEPT_MAX = 100

logger = logging.getLogger(__name__)


class Doubts:
    """Settles what is prepared in the queue's database by what the stages' database decided.

    ``coordinator`` names the latter: others prepare in the same server.
    """

    def __init__(self, work: DecidingSession, queue: PreparingSession, post: Post, coordinator: str) -> None:
        self._work = work
        self._queue = queue
        self._post = post
        self._prefix = f"stagepost:{coordinator}:"

    def gid_of(self, claim: Claim, number: int) -> str:
        """Of this attempt at this message, and no other: ``number`` tells those of one claim apart."""
        return f"{self._about(claim)}{claim.row}.{claim.deliveries}.{number}"

    def settle_attempts_at(self, claim: Claim) -> bool:
        """Whether an attempt at this message was decided to be committed, and so is by now; all others are undone."""
        settled = [self.settle(each.gid) for each in self._queue.in_doubt(self._about(claim))]
        return any(settled)

    def settle_old(self, seconds: float | None = None) -> int:
        """Settle all that has been in doubt for too long; returns how many. Raises ``StoreError`` where a database
        does not answer. What may not be settled from here keeps nobody from settling the rest."""
        limit = DOUBT_SECONDS if seconds is None else seconds
        old = [each.gid for each in self._queue.in_doubt(self._prefix) if each.age_seconds >= limit]
        return sum(self._try_to_settle(gid) for gid in old)

    def _try_to_settle(self, gid: str) -> bool:
        try:
            is_commit = self.settle(gid)
        except (StoreUnavailable, StoreContention, CommitUnknown):
            raise
        except StoreError as error:
            logger.warning(
                "%s is in doubt and could not be settled; settle it as the user who prepared it: %s",
                gid,
                error,
                extra={"event": "in-doubt-stays"},
            )
            return False
        logger.warning(
            "%s was in doubt, and is %s", gid, "committed" if is_commit else "undone", extra={"event": "in-doubt"}
        )
        return True

    def forget_old(self) -> None:
        """Decisions that whoever made them did not live to forget. Raises ``StoreError``."""
        decisions = self._work.decisions
        kept = [
            *decisions.kept(KEPT_COMMITTED, SWEPT_MAX, is_commit=True),
            *decisions.kept(KEPT_OVERRULED, SWEPT_MAX, is_commit=False),
        ]
        # In this order: a transaction is prepared before it is decided, so one that is not prepared now is carried out.
        prepared = {each.gid for each in self._queue.in_doubt(self._prefix)}
        gids = [gid for gid in kept if gid not in prepared]
        if gids:
            self._work.begin(is_durable=False)
            decisions.forget(gids)
            self._work.commit()

    def settle(self, gid: str) -> bool:
        """Carry out the decision, or make it: against."""
        is_commit = self._decided(gid)
        if is_commit:
            self._queue.commit_prepared(gid)
        else:
            self._queue.rollback_prepared(gid)
        return is_commit

    def _decided(self, gid: str) -> bool:
        decision = self._work.decisions.find(gid)
        if decision is not None:
            return decision
        self._work.begin()
        try:
            # Waits for a coordinator that is just committing its own.
            is_ours = self._work.decisions.decide(gid, is_commit=False)
            self._work.commit()
        except CommitUnknown as error:
            self._work.reconnect()
            raise StoreUnavailable(f"whether {gid} was decided is not known yet: {error}") from error
        finally:
            self._work.rollback()
        return False if is_ours else self._work.decisions.find(gid) is True

    def _about(self, claim: Claim) -> str:
        name = hashlib.sha256(f"{claim.stage}\0{claim.message_id}".encode()).hexdigest()[:32]
        return f"{self._prefix}{name}:"


class TwoPhase:
    """Implements ``demarcation.Demarcation``."""

    def __init__(self, work: DecidingSession, queue: PreparingSession, post: Post, doubts: Doubts) -> None:
        self._work = work
        self._queue = queue
        self._post = post
        self._doubts = doubts
        self._number = 0
        self._decided: tuple[Claim, str] | None = None
        self._carried_out: list[str] = []

    @property
    def session(self) -> DecidingSession:
        return self._work

    def recognise(self, claim: Claim) -> None:
        """Settles all earlier attempts first."""
        is_committed = self._doubts.settle_attempts_at(claim)
        # Decided, and not in doubt any more: it was carried out, and only the answer is missing.
        if is_committed or (self._decided is not None and self._decided[0] == claim):
            self._done()
            raise AlreadyHandled(Handled("", None))

    def begin(self, claim: Claim) -> None:
        self._work.begin()

    def accept(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        return hold_acceptances(self._work, acceptances, self._post.clock.now(), self._post.node)

    def complete(self, claim: Claim, completed: Completed, begin: Callable[[], None]) -> None:
        begin()
        self._number += 1
        gid = self._doubts.gid_of(claim, self._number)
        self._prepare(claim, completed, gid)
        self._post.listener(Step.PREPARED, claim)
        self._decide(claim, gid)
        self._post.listener(Step.DECIDED, claim)
        self._queue.commit_prepared(gid)
        self._done()
        self._post.listener(Step.COMMITTED, claim)

    def conclude(self, claim: Claim, handled: Handled) -> None:
        """The message was taken by the attempt that was settled."""

    def rollback(self) -> None:
        self._work.rollback()
        self._queue.rollback()

    def close(self) -> None:
        """Forget what was carried out; what cannot be forgotten now is swept."""
        if self._carried_out:
            with suppress(StoreError):
                self._work.begin(is_durable=False)
                self._forget()
                self._work.commit()
        self._work.rollback()

    def _prepare(self, claim: Claim, completed: Completed, gid: str) -> None:
        self._queue.begin_to_prepare()
        self._post.transport.take(claim)
        self._post.put(claim, self._post.produced(claim, completed.outgoing, completed.ms))
        self._post.listener(Step.RECORDED, claim)
        self._post.listener(Step.COMMITTING, claim)
        self._queue.prepare(gid)

    def _decide(self, claim: Claim, gid: str) -> None:
        try:
            if not self._work.decisions.decide(gid, is_commit=True):
                raise StoreUnavailable(f"{gid} was taken for abandoned, and decided against")
            self._forget()
            self._work.commit()
        except CommitUnknown as error:
            self._work.reconnect()
            if self._work.decisions.find(gid) is not True:
                raise StoreUnavailable(f"the commit of {claim.message_id} at {claim.stage} did not stand") from error
        except StoreError:
            # There is no decision, and nobody will make one but against: what follows finds the message free.
            self._work.rollback()
            self._queue.rollback_prepared(gid)
            raise
        self._decided = claim, gid

    def _done(self) -> None:
        if self._decided is not None:
            self._carried_out.append(self._decided[1])
        self._decided = None

    def _forget(self) -> None:
        """With the next commit that there is anyway."""
        if self._carried_out:
            self._work.decisions.forget(self._carried_out)
            self._carried_out = []
