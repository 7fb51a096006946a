"""The guard of a message's own id: an inbox row for each message that was handled, with the bytes that it sent.

A stage's guard says when the row is inserted: before the handler (``proactive``), after it (``reactive``), or after it
and only with something to send (``none``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.codec import decode_envelope, digest, joined
from stagepost.flow.envelope import Message
from stagepost.flow.errors import IdConflict, StoreUnavailable
from stagepost.flow.initiation import Outgoing
from stagepost.flow.produced import Produced, encode_produced
from stagepost.ports.inbox import AlreadyHandled, InboxRow
from stagepost.ports.session import Session
from stagepost.transaction.stage import Guard, Stage

# A row that is unmarked for longer belongs to a process that died, or that waits for the queue's database.
LEASE = 60 * SECOND


class InboxGuard:
    """The inbox of one thread, on the session of the stages' data. Writes happen in its open transaction."""

    def __init__(self, session: Session, clock: Clock, stages: Mapping[str, Stage]) -> None:
        self._session = session
        self._clock = clock
        self._stages = stages

    def guard_of(self, claim: Claim) -> Guard:
        return self._stages[claim.stage].guard_of(claim) or "proactive"

    def recognise(self, claim: Claim) -> None:
        """Raise ``AlreadyHandled`` if the message has a row, and ``IdConflict`` if the row is of other content.

        Where a stage derived the id, that stage has run again, and its first content counts.
        """
        found = self._session.inbox.find(claim.stage, claim.message_id)
        if found is None:
            return
        envelope = decode_envelope(claim.envelope)
        content = _digest(envelope.messages)
        if found.digest != content and envelope.cause_id is None:
            raise IdConflict(claim.stage, claim.message_id, found.digest, content, flow_id=claim.flow_id)
        raise AlreadyHandled(found)

    def begin(self, claim: Claim) -> None:
        """Insert the row of a ``proactive`` stage. Raises as ``recognise`` does, and ``StoreContention``."""
        if self.guard_of(claim) == "proactive":
            self._admit(claim)

    def record(self, claim: Claim, outgoing: Sequence[Outgoing], stored: Produced | None) -> None:
        """Insert the row of a run that ends, if it has none. Keep what must still be sent; None marks it as sent.

        Raises as ``begin`` does.
        """
        if not self.is_remembered(claim, outgoing):
            return
        if self.guard_of(claim) != "proactive":
            self._admit(claim)
        if stored is None:
            self.mark(claim)
        else:
            self._session.inbox.keep(claim.stage, claim.message_id, encode_produced(stored))

    def mark(self, claim: Claim) -> None:
        self._session.inbox.mark(claim.stage, claim.message_id)

    def is_remembered(self, claim: Claim, outgoing: Sequence[object]) -> bool:
        """Say whether a run has an inbox row. A stage without a guard may repeat one that sent nothing."""
        return bool(outgoing) or self.guard_of(claim) != "none"

    def _admit(self, claim: Claim) -> None:
        now = self._clock.now()
        content = _digest(decode_envelope(claim.envelope).messages)
        row = InboxRow(claim.stage, claim.message_id, content, now, leased_until=now + LEASE)
        if not self._session.inbox.admit(row):
            self._session.rollback()
            self.recognise(claim)
            # The row can only have been purged from the inbox in between.
            raise StoreUnavailable(f"the inbox row of {claim.message_id} at {claim.stage} was purged meanwhile")


def _digest(messages: Sequence[Message]) -> str:
    return digest(joined([each.type for each in messages], [each.body for each in messages]))
