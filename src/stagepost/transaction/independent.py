"""Move the flows that stages started independently to the store, which accepts them.

Such a flow is committed in ``Store.apart`` while its stage has the store's one writing transaction open. The move is
two commits: the store accepts the flow, and then the outbox of ``Store.apart`` forgets it. If a process dies between
the two, the store recognises the id.
"""

from __future__ import annotations

from collections.abc import Callable

from stagepost.ports.session import Session
from stagepost.transaction.queue_commit import QueueCommit, committing
from stagepost.transaction.relay import BATCH, LEASE, Relay


class IndependentRelay:
    """The relay of one thread.

    ``apart``  returns a session of ``Store.apart``; None if no flow was ever started there
    ``work``   the session of the store in which flows start
    """

    def __init__(self, apart: Callable[[], Session | None], work: Session, queue_commit: QueueCommit) -> None:
        self._apart = apart
        self._work = work
        self._queue_commit = queue_commit

    def turn(self) -> int:
        """Move the flows that are due. Returns how many. Raises ``StoreError``: they are moved later then."""
        apart = self._apart()
        if apart is None:
            return 0
        try:
            if self._work is self._queue_commit.session:
                return Relay(apart, self._queue_commit).send()
            return self._pass_on(apart)
        except BaseException:
            apart.rollback()
            self._work.rollback()
            raise

    def _pass_on(self, apart: Session) -> int:
        """Move flows to the outbox of the stages' database. Another id's content goes along: the queue refuses it."""
        now = self._queue_commit.clock.now()
        next_at = apart.outbox.next_at()
        if next_at is None or next_at > now:
            return 0
        with committing(apart):
            leased = apart.outbox.lease(now, now + LEASE, BATCH)
        with committing(self._work):
            verdicts = self._work.accepted.accept([each.acceptance for each in leased])
            for each, verdict in zip(leased, verdicts, strict=True):
                if verdict.outcome != "repeated":
                    self._work.outbox.hold([each.acceptance], each.acceptance.outgoing.envelope.sent_at, each.node)
        with committing(apart):
            for each in leased:
                apart.outbox.remove(each.id)
        return len(leased)
