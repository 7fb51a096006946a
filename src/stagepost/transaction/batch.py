"""Messages that share one transaction: first attempts at one stage in mode ``single``, optimistically.

All of them are taken by its first statement, and what they send is put by its last ones. Whatever goes wrong with one
of them undoes it for all, and leaves each to be handled alone, as the same attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagepost.flow.claim import Claim
from stagepost.flow.produced import Produced
from stagepost.transaction.outcome import Completed
from stagepost.transaction.post import Post
from stagepost.transaction.single import Single
from stagepost.transaction.steps import Step


def may_share(claim: Claim) -> bool:
    """What came back once may be what undoes a batch, or kills its process: it runs alone."""
    return claim.deliveries == 1 and not claim.failures


class Batch(Single):
    """For these claims, once: ``commit`` is what completes them."""

    def __init__(self, post: Post, claims: Sequence[Claim]) -> None:
        super().__init__(post)
        self._claims = claims
        self._completed: list[tuple[Claim, Produced]] = []
        self._is_begun = False

    def begin(self, claim: Claim) -> None:
        if not self._is_begun:
            self._post.session.begin()
            self._is_begun = True
            self._post.transport.take_all(self._claims)

    def complete(self, claim: Claim, completed: Completed, begin: Callable[[], None]) -> None:
        begin()
        self._completed.append((claim, self._post.produced(claim, completed.outgoing, completed.ms)))

    def commit(self) -> None:
        """Raises as ``complete`` of others does."""
        assert len(self._completed) == len(self._claims), "a batch is whole, or it is none"
        self._post.put_all(self._completed)
        self._tell(Step.RECORDED)
        self._tell(Step.COMMITTING)
        self._post.commit_completed(self._claims)
        self._tell(Step.COMMITTED)

    def _tell(self, step: Step) -> None:
        for claim in self._claims:
            self._post.listener(step, claim)
