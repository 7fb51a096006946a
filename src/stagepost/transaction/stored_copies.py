"""The messages that a store handles for a stage with a guard in the mode ``best_effort``.

A stored copy of a delivery, a replay and a message of a sibling run in ``single``. The inbox shows first whether the
stage handled the message directly. Then no handler runs, and the bytes that may not have left go out by a dispatcher.
"""

from __future__ import annotations

from stagepost.flow.claim import Claim
from stagepost.flow.produced import Produced, decode_produced
from stagepost.flow.target import OUTBOUND_PREFIX
from stagepost.ports.inbox import Handled
from stagepost.transaction.enqueueing import new_row
from stagepost.transaction.inbox_guard import LEASE, InboxGuard
from stagepost.transaction.outcome import Completed
from stagepost.transaction.queue_commit import QueueCommit, Single, committing
from stagepost.transaction.steps import EdgeListener, EdgeStep, Step

# The sweep looks at so many rows in one turn.
SWEEP = 100


class GuardedSingle(Single):
    """The mode ``single`` for what the store runs of a stage with a guard. Implements ``mode.TransactionMode``.

    Its runs have inbox rows too, because a broker may still bring a copy. The rows are marked at once.
    """

    has_inbox = True
    looks_first = True

    def __init__(self, queue_commit: QueueCommit, inbox: InboxGuard) -> None:
        super().__init__(queue_commit)
        self._inbox = inbox

    def recognise(self, claim: Claim) -> None:
        self._inbox.recognise(claim)

    def begin(self, claim: Claim) -> None:
        super().begin(claim)
        self._inbox.begin(claim)

    def complete(self, claim: Claim, completed: Completed) -> Produced:
        self._inbox.record(claim, completed.outgoing, None)
        return super().complete(claim, completed)

    def conclude(self, claim: Claim, handled: Handled) -> None:
        queue_commit = self._queue_commit
        queue_commit.take(claim)
        note_copy(queue_commit, claim)
        queue_commit.listener(Step.RECORDED, claim)
        queue_commit.listener(Step.COMMITTING, claim)
        queue_commit.commit(claim)
        queue_commit.listener(Step.COMMITTED, claim)


class InboxSweep:
    """Sends what direct runs of stages with a guard could not send, or could not mark as sent. One thread has it.

    The broker delivers such a message again, and its stored copy sends the bytes. The sweep is for a broker that lost
    the message, and for a lost mark. The copies have the same ids.
    """

    def __init__(self, queue_commit: QueueCommit, listener: EdgeListener) -> None:
        self._queue_commit = queue_commit
        self._listener = listener

    def turn(self) -> int:
        """Turn the bytes of rows whose lease has ended into rows of the queue. Returns how many. Raises ``StoreError``.

        The row of a stage whose queue is in another database has no line ``committed`` here. A relay sweeps it.
        """
        session = self._queue_commit.session
        now = self._queue_commit.clock.now()
        done = 0
        for stage, message_id in session.inbox.unsent(now, SWEEP):
            is_ours = session.journal.has_committed(stage, message_id)
            with committing(session):
                if is_ours:
                    done += send_stored(self._queue_commit, stage, message_id)
                else:
                    session.inbox.postpone(stage, message_id, now + LEASE)
                self._listener(EdgeStep.RESENDING, [message_id])
            self._listener(EdgeStep.RESENT, [message_id])
        return done


def note_copy(queue_commit: QueueCommit, claim: Claim) -> None:
    """Journal a copy of a handled message in the open transaction, and send what its run may not have sent."""
    is_sent_again = send_stored(queue_commit, claim.stage, claim.message_id)
    queue_commit.note(
        claim,
        "duplicate",
        "it was handled before, and its stored messages are sent now"
        if is_sent_again
        else "it was handled before, and its messages have been sent",
    )


def send_stored(queue_commit: QueueCommit, stage: str, message_id: str) -> bool:
    """Turn the bytes that a direct run stored into rows of the queue, and mark them, in the open transaction.

    They may have left at the time of the run. The journal has their lines ``sent`` already. Returns False where they
    were sent, or another transaction does this.
    """
    session = queue_commit.session
    handled = session.inbox.find(stage, message_id)
    if handled is None or handled.produced is None or not session.inbox.take_unsent(stage, message_id):
        return False
    session.inbox.mark(stage, message_id)
    produced = decode_produced(handled.produced)
    places = queue_commit.routing.places(session, [outgoing for outgoing, _ in produced.sends])
    rows = [new_row(each, data, place) for (each, data), place in zip(produced.sends, places, strict=True)]
    session.queue.enqueue(rows)
    left = [
        Claim(0, "", 0, row.stage, row.message_id, row.flow_id, 0, 0, row.origin_at, row.envelope)
        for row in rows
        if row.stage.startswith(OUTBOUND_PREFIX)
    ]
    session.edge.stamp(left, produced.at)
    return True
