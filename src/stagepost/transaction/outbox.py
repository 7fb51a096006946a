"""The mode ``outbox``: the queue is in another database than the stages' data, and each has a commit of its own.

1. The stage's own database commits the inbox row, the handler's work, and the produced envelopes as bytes.
2. One commit of the queue's database takes the message, puts the produced envelopes, and writes the journal.
3. The inbox row is marked as sent, in one of three ways: see ``sent_marks``.

If a process dies in between, the message comes again. The inbox recognises it before any handler runs, and the next
attempt sends the stored bytes. The commit that takes the message puts them. Only one commit can take it, so they are
put once. See docs/decisions/021.
"""

from __future__ import annotations

from msgspec import structs

from stagepost.flow.claim import Claim
from stagepost.flow.errors import CommitUnknown, StoreContention, StoreError, StoreUnavailable
from stagepost.flow.produced import Produced, decode_produced
from stagepost.ports.inbox import Handled
from stagepost.ports.session import Session
from stagepost.transaction.inbox_guard import InboxGuard
from stagepost.transaction.mode import TwoDatabases
from stagepost.transaction.outcome import Completed
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.sent_marks import SentMarks
from stagepost.transaction.steps import Step


class InboxOutbox(TwoDatabases):
    """Implements ``mode.TransactionMode``.

    ``inbox`` is on the session of the stages' data, ``work``. ``marks`` marks its rows whose messages were sent.
    """

    has_inbox = True

    def __init__(self, work: Session, queue_commit: QueueCommit, inbox: InboxGuard, marks: SentMarks) -> None:
        super().__init__(work, queue_commit)
        self._inbox = inbox
        self._marks = marks

    def recognise(self, claim: Claim) -> None:
        self._inbox.recognise(claim)

    def begin(self, claim: Claim) -> None:
        self._work.begin()
        self._inbox.begin(claim)

    def complete(self, claim: Claim, completed: Completed) -> Produced:
        produced = self._queue_commit.produced(claim, completed.outgoing, completed.ms, completed.detail)
        self._inbox.record(claim, completed.outgoing, produced)
        self._queue_commit.listener(Step.RECORDED, claim)
        self._queue_commit.listener(Step.COMMITTING, claim)
        self._commit(claim)
        return produced

    def deliver(self, claim: Claim, produced: Produced) -> None:
        self._queue_commit.listener(Step.COMMITTED, claim)
        self._dispatch(claim, produced)

    def conclude(self, claim: Claim, handled: Handled) -> None:
        """Settle a message that was handled before: send its stored envelopes, unless they were sent."""
        self._work.rollback()
        if handled.produced is not None:
            self._dispatch(claim, decode_produced(handled.produced))
            return
        self._queue_commit.take(claim)
        self._queue_commit.note(claim, "duplicate", "it was handled before, and its messages have been sent")
        self._queue_commit.commit(claim)
        self._queue_commit.listener(Step.SETTLED, claim)

    def idle(self) -> None:
        self._marks.flush()

    def close(self) -> None:
        """Write the last marks. The sessions are the caller's."""
        self._marks.flush()

    def _commit(self, claim: Claim) -> None:
        try:
            self._work.commit()
        except CommitUnknown:
            # The inbox row shows whether the commit took effect. If so, the next attempt sends the stored bytes. Work
            # that has no row may be repeated.
            self._work.reconnect()
            if self._work.inbox.find(claim.stage, claim.message_id) is None:
                raise StoreUnavailable(
                    f"the commit of {claim.message_id} at {claim.stage} did not take effect"
                ) from None

    def _dispatch(self, claim: Claim, produced: Produced) -> None:
        """Send the produced envelopes, with no transaction of the stage's own database open."""
        is_remembered = self._inbox.is_remembered(claim, produced.sends)
        if is_remembered:
            produced = self._marks.with_mark(claim, produced)
        try:
            self._queue_commit.take(claim)
            self._queue_commit.put(claim, produced)
            self._queue_commit.commit_completed([claim])
        except (StoreUnavailable, StoreContention):
            raise
        except StoreError:
            self._queue_commit.session.rollback()
            self._dispatch_one_by_one(claim, produced)
        for step in (Step.DISPATCHED, Step.CONFIRMED):
            self._queue_commit.listener(step, claim)
        if is_remembered:
            self._marks.sent(claim)
        self._queue_commit.listener(Step.SETTLED, claim)

    def _dispatch_one_by_one(self, claim: Claim, produced: Produced) -> None:
        """Send each envelope under its own savepoint, and bury those that the queue refuses."""
        queue_commit = self._queue_commit
        queue_commit.take(claim)
        queue_commit.put(claim, structs.replace(produced, sends=[]))
        for outgoing, data in queue_commit.addressed(produced).sends:
            try:
                with queue_commit.session.atomic():
                    queue_commit.put_one(outgoing, data, produced)
            except (StoreUnavailable, StoreContention):
                raise
            except StoreError as error:
                queue_commit.bury_unsendable(outgoing, data, produced, error)
        queue_commit.commit_completed([claim])
