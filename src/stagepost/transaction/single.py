"""The mode ``single``: queue and data are in one database, so one commit has the message, the work and the sends.

The queue row serves as the inbox. The transaction's first statement removes it if message, owner and fencing token
match. An owner that cannot remove it must not commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.claim import Claim
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.flow.produced import Produced
from stagepost.ports.inbox import Handled
from stagepost.ports.session import Session
from stagepost.transaction.initiating import write_acceptances
from stagepost.transaction.outcome import Completed
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.steps import Step


class Single:
    """Implements ``mode.TransactionMode``."""

    def __init__(self, queue_commit: QueueCommit) -> None:
        self.session: Session = queue_commit.session
        self._queue_commit = queue_commit

    def recognise(self, claim: Claim) -> None:
        """Do nothing: the commit of a handled message removed it from the queue."""

    def begin(self, claim: Claim) -> None:
        self._queue_commit.take(claim)

    def accept(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        queue_commit = self._queue_commit
        return write_acceptances(queue_commit.session, acceptances, queue_commit.clock.now(), queue_commit.node)

    def complete(self, claim: Claim, completed: Completed) -> None:
        self._queue_commit.put(claim, self._queue_commit.produced(claim, completed.outgoing, completed.ms))
        self._queue_commit.listener(Step.RECORDED, claim)
        self._queue_commit.listener(Step.COMMITTING, claim)
        self._queue_commit.commit_completed([claim])
        self._queue_commit.listener(Step.COMMITTED, claim)

    def conclude(self, claim: Claim, handled: Handled) -> None:
        raise AssertionError("the mode single recognises no message")

    def rollback(self) -> None:
        self._queue_commit.session.rollback()

    def close(self) -> None:
        """Do nothing: the session is the caller's."""


def may_share(claim: Claim) -> bool:
    """Say whether a message may be part of a batch. A redelivered one may undo the batch, or kill its process."""
    return claim.deliveries == 1 and not claim.failures


class Batch(Single):
    """First attempts of one stage that share one transaction, optimistically. A batch is used once.

    The first statement takes all claims, and the last ones enqueue the sent messages. Any error rolls the whole batch
    back, and then each message is handled alone, as the same attempt. ``commit`` completes them.
    """

    def __init__(self, queue_commit: QueueCommit, claims: Sequence[Claim]) -> None:
        super().__init__(queue_commit)
        self._claims = claims
        self._completed: list[tuple[Claim, Produced]] = []
        self._is_begun = False

    def begin(self, claim: Claim) -> None:
        if not self._is_begun:
            self._queue_commit.session.begin()
            self._is_begun = True
            self._queue_commit.session.queue.take(*self._claims)

    def complete(self, claim: Claim, completed: Completed) -> None:
        self._completed.append((claim, self._queue_commit.produced(claim, completed.outgoing, completed.ms)))

    def commit(self) -> None:
        """Commit the batch. Raises as ``Single.complete`` does."""
        assert len(self._completed) == len(self._claims), "a batch commits only after all of its messages completed"
        self._queue_commit.put_all(self._completed)
        self._tell(Step.RECORDED)
        self._tell(Step.COMMITTING)
        self._queue_commit.commit_completed(self._claims)
        self._tell(Step.COMMITTED)

    def _tell(self, step: Step) -> None:
        for claim in self._claims:
            self._queue_commit.listener(step, claim)
