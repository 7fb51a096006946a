"""Send the outbox to the queue, and mark inbox rows that their stages could not mark.

The stages' own database accepts a flow that is started there, and its outbox holds the envelope until the queue's
database has it. The queue's database accepts it under the same key. If a process dies between the two commits, the
relay sends the envelope again, and the queue's database recognises the key. No transaction of the stages' database is
open while the relay waits for the queue's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import suppress

from stagepost.flow.clock import SECOND
from stagepost.flow.errors import CommitUnknown, StoreContention, StoreError, StoreUnavailable
from stagepost.ports.dead_letters import DeadLetter, Selection
from stagepost.ports.outbox import HeldMessage
from stagepost.ports.session import Session
from stagepost.transaction.enqueueing import accepted_line, judge_acceptances
from stagepost.transaction.queue_commit import QueueCommit, committing
from stagepost.transaction.two_phase import InDoubtResolver

BATCH = 100
# How long a leased envelope belongs to one relay alone.
LEASE = 30 * SECOND
# Attempts at an envelope that the queue's database refuses, and the first pause between them.
ATTEMPTS_MAX = 6
PAUSE = SECOND
# How often the relay looks for transactions in doubt.
LOOK_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Relay:
    """The relay of one thread. Several may run at once, because each leases the envelopes that it sends."""

    def __init__(self, work: Session, queue_commit: QueueCommit, resolver: InDoubtResolver | None = None) -> None:
        self._work = work
        self._queue_commit = queue_commit
        self._resolver = resolver
        self._looked_at = -math.inf

    def turn(self) -> int:
        """Send the due envelopes, sweep the inbox and settle transactions in doubt, once. Returns how many.

        Raises ``StoreError``. Leased envelopes are sent again later then.
        """
        try:
            return self.send() + self._sweep() + self._settle()
        except BaseException:
            self._work.rollback()
            self._queue_commit.session.rollback()
            raise

    def _settle(self) -> int:
        """Settle transactions in doubt, in the first turn and then every ``LOOK_SECONDS``."""
        now = self._queue_commit.clock.monotonic()
        if self._resolver is None or now - self._looked_at < LOOK_SECONDS:
            return 0
        settled = self._resolver.settle_old()
        self._resolver.forget_old()
        self._looked_at = now
        return settled

    def send(self) -> int:
        """Send the due envelopes. Returns how many. Raises ``StoreError``, and leaves the transaction open then."""
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

    def _lease(self) -> list[HeldMessage]:
        now = self._queue_commit.clock.now()
        next_at = self._work.outbox.next_at()
        if next_at is None or next_at > now:
            return []
        with committing(self._work):
            return self._work.outbox.lease(now, now + LEASE, BATCH)

    def _give_back(self, leased: Sequence[HeldMessage]) -> None:
        """End the leases when the queue's database does not answer, so that a relay can resend once it answers."""
        self._queue_commit.session.rollback()
        with suppress(StoreError), committing(self._work):
            for each in leased:
                self._work.outbox.postpone(each.id, self._queue_commit.clock.now(), each.attempts)

    def _dispatch(self, leased: Sequence[HeldMessage]) -> list[HeldMessage]:
        """Send the leased envelopes in one commit. If it is refused, give each a commit of its own.

        Returns the envelopes that are settled. So a refused envelope does not delay the others.
        """
        try:
            self._enter(leased)
        except (StoreUnavailable, StoreContention, CommitUnknown):
            # The queue's database recognises envelopes that were sent already.
            raise
        except StoreError as error:
            if len(leased) > 1:
                return [each for one in leased for each in self._dispatch([one])]
            return list(leased) if self._refused(leased[0], error) else []
        return list(leased)

    def _enter(self, leased: Sequence[HeldMessage]) -> None:
        session = self._queue_commit.session
        with committing(session):
            for each in leased:
                if each.attempts == ATTEMPTS_MAX - 1 and self._is_buried(each):
                    # A relay buried it, and died before removing it from the outbox.
                    continue
                # The journal has the node and the time of the first acceptance.
                at = each.acceptance.outgoing.envelope.sent_at
                (verdict,) = judge_acceptances(session, [each.acceptance], at, each.node, self._queue_commit.routing)
                if verdict.outcome == "conflict" and not self._is_buried(each):
                    # The id belongs to another message, and so does its history in the journal.
                    self._bury(each, each.acceptance.conflict(verdict))

    def _refused(self, held: HeldMessage, error: StoreError) -> bool:
        """Count a refused attempt. Returns True after the last one, which makes the envelope a dead letter."""
        attempts = held.attempts + 1
        if attempts < ATTEMPTS_MAX:
            logger.warning(
                "%s to %s cannot be sent: %s",
                held.acceptance.key,
                held.acceptance.scope,
                error,
                extra={"event": "unsendable"},
            )
            with committing(self._work):
                self._work.outbox.postpone(held.id, self._queue_commit.clock.now() + PAUSE * 2**held.attempts, attempts)
            return False
        queue_commit = self._queue_commit
        with committing(queue_commit.session):
            letter = self._bury(held, error)
            envelope = held.acceptance.outgoing.envelope
            line = accepted_line(
                envelope, letter.stage, held.acceptance.run_id, len(held.data), envelope.sent_at, held.node
            )
            queue_commit.session.journal.record([line, queue_commit.dead_line(letter)])
        return True

    def _bury(self, held: HeldMessage, error: Exception) -> DeadLetter:
        return self._queue_commit.bury(held.acceptance.outgoing, held.data, error)

    def _is_buried(self, held: HeldMessage) -> bool:
        letters = self._queue_commit.session.dead_letters.select(
            Selection("message", held.acceptance.outgoing.envelope.message_id)
        )
        return any(each.letter.reason == "unsendable" and each.letter.envelope == held.data for each in letters)

    def _forget(self, settled: Sequence[HeldMessage]) -> None:
        if not settled:
            return
        with committing(self._work):
            for each in settled:
                self._work.outbox.remove(each.id)

    def _sweep(self) -> int:
        """Mark inbox rows as sent if the queue's journal says that their messages committed. Returns how many."""
        now = self._queue_commit.clock.now()
        found = self._work.inbox.unsent(now, BATCH)
        if not found:
            return 0
        sent = {each for each in found if self._queue_commit.session.journal.has_committed(*each)}
        with committing(self._work):
            for stage, message_id in found:
                if (stage, message_id) in sent:
                    self._work.inbox.mark(stage, message_id)
                elif not self._work.journal.has_committed(stage, message_id):
                    # The message is still in the queue. Its next attempt sends the stored bytes. A row whose run is in
                    # this journal is of a stage that consumes directly, and a dispatcher sweeps it.
                    self._work.inbox.postpone(stage, message_id, now + LEASE)
        return len(sent)
