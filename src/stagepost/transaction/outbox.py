"""The mode ``outbox``: the queue is in another database, and no commit has both.

First the stage's own database commits: that the message was handled (its inbox), the handler's work, and what it
produced, as bytes. Then one commit of the queue's database has the message taken, what was produced put, and the
journal. Then the inbox is marked. Whoever dies in between leaves a message that comes again, is recognised by the inbox
before any handler sees it, and has its bytes sent from there. They are put by the commit that takes the message, which
only one can: so they are put once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence

from msgspec import structs

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.flow.errors import CommitUnknown, IdConflict, StoreContention, StoreError, StoreUnavailable
from stagepost.flow.inbox import AlreadyHandled, Handled, InboxRow
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.flow.produced import Produced, decode_produced, encode_produced
from stagepost.transaction.initiating import hold_acceptances
from stagepost.transaction.outcome import Completed
from stagepost.transaction.post import Post
from stagepost.transaction.seams import Session
from stagepost.transaction.steps import Step

# What was not marked for so long was handled by somebody who died or waits for the queue's database.
LEASE = 60 * SECOND

logger = logging.getLogger(__name__)


class InboxOutbox:
    """Implements ``demarcation.Demarcation``."""

    def __init__(self, work: Session, post: Post) -> None:
        self._work = work
        self._post = post

    @property
    def session(self) -> Session:
        return self._work

    def recognise(self, claim: Claim) -> None:
        found = self._work.inbox.find(claim.stage, claim.message_id)
        if found is None:
            return
        digest = digest_of(claim)
        if found.digest != digest:
            raise IdConflict(claim.stage, claim.message_id, found.digest, digest, flow_id=claim.flow_id)
        raise AlreadyHandled(found)

    def begin(self, claim: Claim) -> None:
        self._work.begin()
        now = self._post.clock.now()
        if not self._work.inbox.admit(
            InboxRow(claim.stage, claim.message_id, digest_of(claim), now, leased_until=now + LEASE)
        ):
            self._work.rollback()
            self.recognise(claim)
            # Only a purge of the inbox could have come in between.
            raise StoreUnavailable(f"{claim.message_id} was handled by {claim.stage}, and is forgotten there")

    def accept(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        return hold_acceptances(self._work, acceptances, self._post.clock.now(), self._post.node)

    def complete(self, claim: Claim, completed: Completed, begin: Callable[[], None]) -> None:
        begin()
        produced = self._post.produced(claim, completed.outgoing, completed.ms)
        self._work.inbox.keep(claim.stage, claim.message_id, encode_produced(produced))
        self._post.listener(Step.RECORDED, claim)
        self._post.listener(Step.COMMITTING, claim)
        self._commit(claim)
        self._post.listener(Step.COMMITTED, claim)
        self._dispatch(claim, produced)

    def conclude(self, claim: Claim, handled: Handled) -> None:
        """Settle a message that was handled before: what it produced then is sent now, if it was not."""
        self._work.rollback()
        if handled.produced is not None:
            self._dispatch(claim, decode_produced(handled.produced))
            return
        self._post.take(claim)
        self._post.note(claim, "duplicate", "it was handled before, and what it produced has been sent")
        self._post.commit(claim)
        self._post.listener(Step.SETTLED, claim)

    def rollback(self) -> None:
        self._work.rollback()
        self._post.session.rollback()

    def close(self) -> None:
        """The sessions are the caller's."""

    def _commit(self, claim: Claim) -> None:
        try:
            self._work.commit()
        except CommitUnknown:
            # The inbox knows. What it was is recognised, and sent, by the attempt that follows this one.
            self._work.reconnect()
            if self._work.inbox.find(claim.stage, claim.message_id) is None:
                raise StoreUnavailable(f"the commit of {claim.message_id} at {claim.stage} did not stand") from None

    def _dispatch(self, claim: Claim, produced: Produced) -> None:
        """From here on no transaction of the stage's own database is open, however long the queue's takes."""
        try:
            self._post.take(claim)
            self._post.put(claim, produced)
            self._post.commit_completed([claim])
        except (StoreUnavailable, StoreContention):
            raise
        except StoreError:
            self._post.session.rollback()
            self._dispatch_what_can_be_sent(claim, produced)
        for step in (Step.DISPATCHED, Step.CONFIRMED):
            self._post.listener(step, claim)
        self._mark(claim)
        self._post.listener(Step.MARKED, claim)
        self._post.listener(Step.SETTLED, claim)

    def _dispatch_what_can_be_sent(self, claim: Claim, produced: Produced) -> None:
        """One that the queue will never take holds up neither its siblings nor the message that it came from."""
        post = self._post
        post.take(claim)
        post.put(claim, structs.replace(produced, sends=[]))
        for outgoing, data in post.addressed(produced).sends:
            try:
                with post.session.atomic():
                    post.put_one(outgoing, data, produced)
            except (StoreUnavailable, StoreContention):
                raise
            except StoreError as error:
                post.bury_unsendable(outgoing, data, produced, error)
        post.commit_completed([claim])

    def _mark(self, claim: Claim) -> None:
        try:
            # Lost, it is found unmarked, and marked, by the sweep.
            self._work.begin(is_durable=False)
            self._work.inbox.mark(claim.stage, claim.message_id)
            self._work.commit()
        except StoreError as error:
            self._work.rollback()
            logger.warning(
                "%s at %s was settled and could not be marked as sent yet: %s",
                claim.message_id,
                claim.stage,
                error,
                extra={"event": "not-marked"},
            )


def digest_of(claim: Claim) -> str:
    return hashlib.sha256(claim.envelope).hexdigest()
