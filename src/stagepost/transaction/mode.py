"""A transaction mode: how a stage's work, its message and the messages it sends commit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stagepost.flow.claim import Claim
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.flow.produced import Produced
from stagepost.ports.inbox import Handled
from stagepost.ports.session import Session
from stagepost.transaction.enqueueing import hold_acceptances
from stagepost.transaction.outcome import Completed
from stagepost.transaction.queue_commit import QueueCommit


class TransactionMode(Protocol):
    """The transaction mode of one thread. Handlers work on ``session``."""

    @property
    def session(self) -> Session: ...

    @property
    def has_database(self) -> bool:
        """Say whether handlers may use the database."""

    @property
    def has_inbox(self) -> bool:
        """Say whether handled messages have rows in the inbox."""

    @property
    def looks_first(self) -> bool:
        """Say whether a message may have been handled before its first attempt in this mode."""

    def recognise(self, claim: Claim) -> None:
        """Check whether a message was handled before. It is called before an attempt that is not the first one.

        Raises ``AlreadyHandled``, ``IdConflict`` if its id was handled with other content, and ``StoreError``.
        """

    def begin(self, claim: Claim) -> None:
        """Open the handler's transaction, and admit the message.

        Raises as ``recognise`` does. Raises ``LeaseLost`` here or with the commit.
        """

    def accept(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        """Start flows in the open transaction. Raises ``IdConflict``."""

    def complete(self, claim: Claim, completed: Completed) -> Produced:
        """Commit the work of the begun transaction, and with it what it produced, which is returned.

        Raises as ``begin`` does. Nothing is settled then, and the attempt may be repeated.
        """

    def deliver(self, claim: Claim, produced: Produced) -> None:
        """Do what follows the commit of the work: a queue in another database takes the message and what it produced.

        Raises ``LeaseLost`` and ``StoreError``. The work stays committed, and the next attempt recognises it.
        """

    def conclude(self, claim: Claim, handled: Handled) -> None:
        """Settle a message that was handled before. Raises as ``deliver`` does."""

    def rollback(self) -> None:
        """Roll back the open transactions."""

    def idle(self) -> None:
        """Do what a busy thread puts off: the thread has no message at hand."""

    def close(self) -> None:
        """End the use of this mode; no more attempts follow."""


class TwoDatabases:
    """The common part of the modes whose queue is in another database than the stages' data.

    ``work`` is the session in the stages' own database. Flows that a stage starts go to the outbox there.
    """

    has_database = True
    has_inbox = False
    looks_first = False

    def __init__(self, work: Session, queue_commit: QueueCommit) -> None:
        self._work = work
        self._queue_commit = queue_commit

    @property
    def session(self) -> Session:
        return self._work

    def accept(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        return hold_acceptances(self._work, acceptances, self._queue_commit.clock.now(), self._queue_commit.node)

    def idle(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        self._work.rollback()
        self._queue_commit.session.rollback()
