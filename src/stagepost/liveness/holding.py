"""What a stage's thread has of the stages' database: kept by the thread for whoever asks."""

from __future__ import annotations

from stagepost.app.connections import Holder
from stagepost.app.stores import StoreSession
from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.liveness.watch import ThreadWatch
from stagepost.transaction.steps import Step, StepListener, unobserved

# When something else begins to be held: also by one that waits until its transaction may begin.
BEGINNINGS = (Step.CLAIMED, Step.BEGUN)


class Holding:
    """``hear`` is a step listener, and passes on what it hears. It needs no lock: its thread alone writes, and writes
    at once."""

    def __init__(
        self, who: str, session: StoreSession, watch: ThreadWatch, clock: Clock, listener: StepListener
    ) -> None:
        self._who = who
        self._session = session
        self._watch = watch
        self._clock = clock
        self._pass_on = None if listener is unobserved else listener
        self._last: tuple[Step, int] = (Step.CLAIMED, 0)

    def hear(self, step: Step, claim: Claim) -> None:
        since = self._clock.now() if step in BEGINNINGS else self._last[1]
        self._last = (step, since)
        if self._pass_on is not None:
            self._pass_on(step, claim)

    def holder(self) -> Holder | None:
        """For any thread. None while no transaction for a message is open there."""
        claim = self._watch.claim
        if claim is None or not self._session.is_begun:
            return None
        step, since = self._last
        return Holder(
            who=self._who,
            since=since,
            stage=claim.stage,
            step=step,
            message_id=claim.message_id,
            flow_id=claim.flow_id,
        )
