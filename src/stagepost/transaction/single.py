"""The mode ``single``: queue and data are in one database, so one commit has it all.

The queue row is the inbox: the transaction's first statement removes it where message, owner and token match, and
whoever cannot remove it has no right to commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagepost.flow.claim import Claim
from stagepost.flow.inbox import Handled
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.transaction.initiating import write_acceptances
from stagepost.transaction.outcome import Completed
from stagepost.transaction.post import Post
from stagepost.transaction.seams import Session
from stagepost.transaction.steps import Step


class Single:
    """Implements ``demarcation.Demarcation``."""

    def __init__(self, post: Post) -> None:
        self.session: Session = post.session
        self._post = post

    def recognise(self, claim: Claim) -> None:
        """A message that was handled is not there any more."""

    def begin(self, claim: Claim) -> None:
        self._post.take(claim)

    def accept(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        post = self._post
        return write_acceptances(post.session, post.transport, acceptances, post.clock.now(), post.node)

    def complete(self, claim: Claim, completed: Completed, begin: Callable[[], None]) -> None:
        begin()
        self._post.put(claim, self._post.produced(claim, completed.outgoing, completed.ms))
        self._post.listener(Step.RECORDED, claim)
        self._post.listener(Step.COMMITTING, claim)
        self._post.commit_completed([claim])
        self._post.listener(Step.COMMITTED, claim)

    def conclude(self, claim: Claim, handled: Handled) -> None:
        raise AssertionError("nothing is recognised")

    def rollback(self) -> None:
        self._post.session.rollback()

    def close(self) -> None:
        """The session is the caller's."""
