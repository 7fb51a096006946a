"""What carries the outbox to the queue, and marks what nobody marked.

A flow that is started in the stages' own database is let in there, and held until the queue's database has it. That
one lets it in too, under the same key: so whoever dies between the two commits leaves it to be sent again, and it is
there already. Nothing waits for the queue with a transaction open in the other database.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import suppress

from stagepost.flow.clock import SECOND
from stagepost.flow.errors import CommitUnknown, IdConflict, StoreContention, StoreError, StoreUnavailable
from stagepost.flow.inbox import Held
from stagepost.flow.initiation import Verdict
from stagepost.recovery.deadletter import DeadLetter
from stagepost.recovery.letters import Selection
from stagepost.transaction.initiating import accepted, judge_acceptances
from stagepost.transaction.post import Post
from stagepost.transaction.seams import Session
from stagepost.transaction.two_phase import Doubts

BATCH = 100
# How long others leave alone what one has leased.
LEASE = 30 * SECOND
# What cannot be sent, though the queue's database answers, is tried so often, a second apart at first.
ATTEMPTS_MAX = 6
PAUSE = SECOND
# How often it looks for what is in doubt.
LOOK_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Relay:
    """One thread's. Several may run at once: each has leased what it sends."""

    def __init__(self, work: Session, post: Post, doubts: Doubts | None = None) -> None:
        self._work = work
        self._post = post
        self._doubts = doubts
        self._looked_at = -math.inf

    def turn(self) -> int:
        """Send what is due, once; returns how many were done with. Raises ``StoreError``; what was leased comes
        again."""
        try:
            return self._send() + self._sweep() + self._settle()
        except BaseException:
            self._work.rollback()
            self._post.session.rollback()
            raise

    def _settle(self) -> int:
        """What is in doubt: at once when it begins, and then now and again."""
        now = self._post.clock.monotonic()
        if self._doubts is None or now - self._looked_at < LOOK_SECONDS:
            return 0
        settled = self._doubts.settle_old()
        self._doubts.forget_old()
        self._looked_at = now
        return settled

    def _send(self) -> int:
        done = 0
        while leased := self._lease():
            try:
                settled = self._dispatch(leased)
            except StoreError:
                self._give_back(leased)
                raise
            self._forget(settled)
            done += len(settled)
            if len(leased) < BATCH:
                break
        return done

    def _lease(self) -> list[Held]:
        now = self._post.clock.now()
        next_at = self._work.outbox.next_at()
        if next_at is None or next_at > now:
            return []
        self._work.begin()
        leased = self._work.outbox.lease(now, now + LEASE, BATCH)
        self._work.commit()
        return leased

    def _give_back(self, leased: Sequence[Held]) -> None:
        """The queue's database does not answer: whoever finds that it does need not wait for the leases to end."""
        self._post.session.rollback()
        with suppress(StoreError):
            self._work.begin()
            for each in leased:
                self._work.outbox.postpone(each.id, self._post.clock.now(), each.attempts)
            self._work.commit()

    def _dispatch(self, leased: Sequence[Held]) -> list[Held]:
        """All in one commit; where that is refused, each in one of its own, so that none holds up the others."""
        try:
            self._enter(leased)
        except (StoreUnavailable, StoreContention, CommitUnknown):
            # Sent again, what was sent already is recognised.
            raise
        except StoreError as error:
            self._post.session.rollback()
            if len(leased) > 1:
                return [each for one in leased for each in self._dispatch([one])]
            return list(leased) if self._refused(leased[0], error) else []
        return list(leased)

    def _enter(self, leased: Sequence[Held]) -> None:
        post = self._post
        post.session.begin()
        for each in leased:
            if each.attempts == ATTEMPTS_MAX - 1 and self._is_buried(each):
                # By one who died before he had removed it.
                continue
            # By whom, and when, it was let in first.
            at = each.acceptance.outgoing.envelope.sent_at
            (verdict,) = judge_acceptances(post.session, post.transport, [each.acceptance], at, each.node)
            if verdict.outcome == "conflict" and not self._is_buried(each):
                # Its id is another message's, whose history the journal has.
                self._bury(each, _conflict(each, verdict))
        post.session.commit()

    def _refused(self, held: Held, error: StoreError) -> bool:
        """Whether that was the last attempt: it is a dead letter then."""
        attempts = held.attempts + 1
        if attempts < ATTEMPTS_MAX:
            logger.warning(
                "%s to %s cannot be sent: %s",
                held.acceptance.key,
                held.acceptance.scope,
                error,
                extra={"event": "unsendable"},
            )
            self._work.begin()
            self._work.outbox.postpone(held.id, self._post.clock.now() + PAUSE * 2**held.attempts, attempts)
            self._work.commit()
            return False
        post = self._post
        post.session.begin()
        letter = self._bury(held, error)
        envelope = held.acceptance.outgoing.envelope
        post.session.record([accepted(envelope, held.acceptance.run_id, len(held.data), envelope.sent_at, held.node)])
        post.session.record([post.dead_on_its_way(letter)])
        post.session.commit()
        return True

    def _bury(self, held: Held, error: Exception) -> DeadLetter:
        return self._post.bury(held.acceptance.outgoing.envelope, held.data, error)

    def _is_buried(self, held: Held) -> bool:
        letters = self._post.session.reader.letters(Selection("message", held.acceptance.outgoing.envelope.message_id))
        return any(each.letter.reason == "unsendable" and each.letter.envelope == held.data for each in letters)

    def _forget(self, settled: Sequence[Held]) -> None:
        if not settled:
            return
        self._work.begin()
        for each in settled:
            self._work.outbox.remove(each.id)
        self._work.commit()

    def _sweep(self) -> int:
        """Mark what was sent by somebody who could not mark it; the queue's journal says that it was."""
        now = self._post.clock.now()
        found = self._work.inbox.unsent(now, BATCH)
        if not found:
            return 0
        sent = {each for each in found if self._post.session.reader.has_committed(*each)}
        self._work.begin()
        for stage, message_id in found:
            if (stage, message_id) in sent:
                self._work.inbox.mark(stage, message_id)
            else:
                # Its message is in the queue still, and brings it along when it comes again.
                self._work.inbox.postpone(stage, message_id, now + LEASE)
        self._work.commit()
        return len(sent)


def _conflict(held: Held, verdict: Verdict) -> IdConflict:
    each = held.acceptance
    return IdConflict(each.scope, each.key, verdict.digest, each.digest, flow_id=each.outgoing.envelope.flow_id)
