"""The mode ``two_phase``: queue and data are in two PostgreSQL databases, and either both commit or neither does.

1. The queue's database prepares a transaction that takes the message, puts the produced envelopes and writes the
   journal. A prepared transaction can commit even after a crash.
2. The stages' database commits the work, and with it the decision to commit the prepared transaction.
3. The queue's database commits the prepared transaction.

Between prepare and commit, a row of the queue is in doubt, but never the stages' tables. A process that finds a
transaction in doubt reads the decision. If there is none, it inserts a decision against. A late coordinator must insert
the same row, so it fails instead of deciding otherwise. See docs/decisions/023.

See Gray and Lamport, "Consensus on Transaction Commit" (2004), section 2, and PostgreSQL's manual, PREPARE TRANSACTION.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.flow.errors import CommitUnknown, StoreContention, StoreError, StoreUnavailable
from stagepost.flow.produced import Produced
from stagepost.ports.inbox import AlreadyHandled, Handled
from stagepost.ports.session import Session
from stagepost.transaction.mode import TwoDatabases
from stagepost.transaction.outcome import Completed
from stagepost.transaction.queue_commit import QueueCommit, committing
from stagepost.transaction.steps import Step

# After this time in doubt, the coordinator has died, or it is too slow and may be overruled.
DOUBT_SECONDS = 15.0
# The ages at which the sweep deletes left-over decisions. A decision to commit can go once its transaction is no longer
# prepared, and a decision against once its coordinator cannot be running any more.
KEPT_COMMITTED = 60 * SECOND
KEPT_OVERRULED = 24 * 3600 * SECOND
SWEPT_MAX = 100

logger = logging.getLogger(__name__)


class InDoubtResolver:
    """Settles the transactions prepared in the queue's database by the decisions in the stages' database.

    ``coordinator`` names the stages' database, because other databases' transactions are prepared in the same server.
    """

    def __init__(self, work: Session, queue: Session, coordinator: str) -> None:
        self._work = work
        self._queue = queue
        self._prefix = f"stagepost:{coordinator}:"

    def gid_of(self, claim: Claim, number: int) -> str:
        """Return the gid of one attempt at a message. ``number`` distinguishes the attempts of one claim."""
        return f"{self._about(claim)}{claim.row}.{claim.deliveries}.{number}"

    def settle_attempts_at(self, claim: Claim) -> bool:
        """Settle all attempts at this message. Returns whether one of them is committed."""
        settled = [self.settle(each.gid) for each in self._queue.prepared.in_doubt(self._about(claim))]
        return any(settled)

    def settle_old(self, seconds: float | None = None) -> int:
        """Settle the transactions that have been in doubt for too long. Returns how many.

        Logs and skips a transaction that this user may not settle. Raises ``StoreError`` if a database does not answer.
        """
        limit = DOUBT_SECONDS if seconds is None else seconds
        old = [each.gid for each in self._queue.prepared.in_doubt(self._prefix) if each.age_seconds >= limit]
        return sum(self._try_to_settle(gid) for gid in old)

    def _try_to_settle(self, gid: str) -> bool:
        try:
            is_commit = self.settle(gid)
        except (StoreUnavailable, StoreContention, CommitUnknown):
            raise
        except StoreError as error:
            logger.warning(
                "%s is in doubt and cannot be settled; settle it as the user that prepared it: %s",
                gid,
                error,
                extra={"event": "in-doubt-stays"},
            )
            return False
        logger.warning(
            "%s was in doubt, now %s", gid, "committed" if is_commit else "rolled back", extra={"event": "in-doubt"}
        )
        return True

    def forget_old(self) -> None:
        """Delete decisions left behind by crashed coordinators. Raises ``StoreError``."""
        decisions = self._work.decisions
        kept = [
            *decisions.kept(KEPT_COMMITTED, SWEPT_MAX, is_commit=True),
            *decisions.kept(KEPT_OVERRULED, SWEPT_MAX, is_commit=False),
        ]
        # Read the prepared ones second. A transaction is prepared before its decision, so an absent one is carried out.
        prepared = {each.gid for each in self._queue.prepared.in_doubt(self._prefix)}
        gids = [gid for gid in kept if gid not in prepared]
        if gids:
            with committing(self._work, is_durable=False):
                decisions.forget(gids)

    def settle(self, gid: str) -> bool:
        """Carry out the decision on a prepared transaction; without one, decide against. Returns whether it is to
        commit."""
        is_commit = self._decided(gid)
        if is_commit:
            self._queue.prepared.commit_prepared(gid)
        else:
            self._queue.prepared.rollback_prepared(gid)
        return is_commit

    def _decided(self, gid: str) -> bool:
        decision = self._work.decisions.find(gid)
        if decision is not None:
            return decision
        self._work.begin()
        try:
            # The insert waits for a coordinator that is committing the same row.
            is_ours = self._work.decisions.decide(gid, is_commit=False)
            self._work.commit()
        except CommitUnknown as error:
            self._work.reconnect()
            raise StoreUnavailable(f"the decision on {gid} is not known yet: {error}") from error
        finally:
            self._work.rollback()
        return False if is_ours else self._work.decisions.find(gid) is True

    def _about(self, claim: Claim) -> str:
        name = hashlib.sha256(f"{claim.stage}\0{claim.message_id}".encode()).hexdigest()[:32]
        return f"{self._prefix}{name}:"


class TwoPhase(TwoDatabases):
    """Implements ``mode.TransactionMode``."""

    def __init__(self, work: Session, queue_commit: QueueCommit, resolver: InDoubtResolver) -> None:
        super().__init__(work, queue_commit)
        self._queue = queue_commit.session
        self._resolver = resolver
        self._number = 0
        self._decided: tuple[Claim, str] | None = None
        self._carried_out: list[str] = []

    def recognise(self, claim: Claim) -> None:
        """Settle all earlier attempts at the message. Raises ``AlreadyHandled`` if one of them is committed."""
        is_committed = self._resolver.settle_attempts_at(claim)
        # A decided transaction that is no longer in doubt was committed, and only the answer was lost.
        if is_committed or (self._decided is not None and self._decided[0] == claim):
            self._done()
            raise AlreadyHandled(Handled("", None))

    def begin(self, claim: Claim) -> None:
        self._work.begin()

    def complete(self, claim: Claim, completed: Completed) -> Produced:
        self._number += 1
        gid = self._resolver.gid_of(claim, self._number)
        produced = self._prepare(claim, completed, gid)
        self._queue_commit.listener(Step.PREPARED, claim)
        self._decide(claim, gid)
        self._queue_commit.listener(Step.DECIDED, claim)
        return produced

    def deliver(self, claim: Claim, produced: Produced) -> None:
        """Carry the decision out."""
        assert self._decided is not None
        self._queue.prepared.commit_prepared(self._decided[1])
        self._done()
        self._queue_commit.listener(Step.COMMITTED, claim)

    def conclude(self, claim: Claim, handled: Handled) -> None:
        """Do nothing: the settled attempt took the message."""

    def close(self) -> None:
        """Delete the decisions that were carried out. After an error, the sweep deletes them later."""
        if self._carried_out:
            with suppress(StoreError), committing(self._work, is_durable=False):
                self._forget()
        self._work.rollback()

    def _prepare(self, claim: Claim, completed: Completed, gid: str) -> Produced:
        produced = self._queue_commit.produced(claim, completed.outgoing, completed.ms, completed.detail)
        self._queue.prepared.begin_to_prepare()
        self._queue.queue.take(claim)
        self._queue_commit.put(claim, produced)
        self._queue_commit.listener(Step.RECORDED, claim)
        self._queue_commit.listener(Step.COMMITTING, claim)
        self._queue.prepared.prepare(gid)
        return produced

    def _decide(self, claim: Claim, gid: str) -> None:
        try:
            if not self._work.decisions.decide(gid, is_commit=True):
                raise StoreUnavailable(f"{gid} was taken for abandoned, so another process decided against it")
            self._forget()
            self._work.commit()
        except CommitUnknown as error:
            self._work.reconnect()
            if self._work.decisions.find(gid) is not True:
                raise StoreUnavailable(
                    f"the commit of {claim.message_id} at {claim.stage} did not take effect"
                ) from error
        except StoreError:
            # No process will decide to commit. The rollback frees the message for the next attempt.
            self._work.rollback()
            self._queue.prepared.rollback_prepared(gid)
            raise
        self._decided = claim, gid

    def _done(self) -> None:
        if self._decided is not None:
            self._carried_out.append(self._decided[1])
        self._decided = None

    def _forget(self) -> None:
        """Delete carried-out decisions in the open transaction, which saves a commit of their own."""
        if self._carried_out:
            self._work.decisions.forget(self._carried_out)
            self._carried_out = []
