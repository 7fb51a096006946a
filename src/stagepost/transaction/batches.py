"""Run first attempts of one stage in one transaction.

If any of them fails, the whole transaction is rolled back, and each message is handled alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from stagepost.flow.claim import Claim
from stagepost.flow.produced import Produced
from stagepost.recovery.deadletter import safe_text
from stagepost.transaction.attempt_monitor import AttemptMonitor
from stagepost.transaction.outcome import Buried, Completed, Outcome, Redelivered
from stagepost.transaction.queue_commit import QueueCommit, Single
from stagepost.transaction.steps import Halt, Step
from stagepost.transaction.unit_of_work import StartedKeys, UnitOfWork

logger = logging.getLogger(__name__)


class Batch(Single):
    """First attempts of one stage that share one transaction, optimistically. A batch is used once.

    The first statement takes all claims, and the last ones enqueue the sent messages. Any error rolls the whole batch
    back, and then each message is handled alone, as the same attempt. ``complete`` collects them, ``commit`` commits.
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

    def complete(self, claim: Claim, completed: Completed) -> Produced:
        produced = self._queue_commit.produced(claim, completed.outgoing, completed.ms, completed.detail)
        self._completed.append((claim, produced))
        return produced

    def commit(self) -> None:
        """Commit the batch. Raises as ``Single.complete`` does."""
        assert len(self._completed) == len(self._claims), "a batch commits only after all of its messages completed"
        self._queue_commit.put_all(self._completed)
        self._report(Step.RECORDED)
        self._report(Step.COMMITTING)
        self._queue_commit.commit_completed(self._claims)

    def _report(self, step: Step) -> None:
        for claim in self._claims:
            self._queue_commit.listener(step, claim)


class BatchAttempt:
    """One attempt at the messages of a batch."""

    def __init__(self, queue_commit: QueueCommit, monitor: AttemptMonitor, claims: Sequence[Claim]) -> None:
        self._batch = Batch(queue_commit, claims)
        self._listener = queue_commit.listener
        self._monitor = monitor
        self._claims = claims
        self._units: list[UnitOfWork] = []

    def run(
        self,
        new_unit: Callable[[Claim, Batch, StartedKeys], UnitOfWork],
        handle: Callable[[Claim, UnitOfWork], Outcome],
        time_limit_seconds: float,
    ) -> list[Completed]:
        """Handle and commit the batch. Returns an empty list, and leaves no changes, if a message of it failed."""
        joined: StartedKeys = set()
        completed: list[Completed] = []
        try:
            for claim in self._claims:
                self._monitor.started(claim, time_limit_seconds)
                self._listener(Step.CLAIMED, claim)
                unit_of_work = new_unit(claim, self._batch, joined)
                self._units.append(unit_of_work)
                outcome = handle(claim, unit_of_work)
                if not isinstance(outcome, Completed):
                    self._undo(outcome.error if isinstance(outcome, Redelivered | Buried) else None)
                    return []
                unit_of_work.complete(outcome)
                completed.append(outcome)
            with self._monitor.handling(None):
                self._batch.session.catch_up()
            self._batch.commit()
        except Halt:
            self._monitor.ended(is_settled=False)
            raise
        except BaseException as raised:
            self._undo(raised)
            if not isinstance(raised, Exception):
                raise
            # The failed message reports it when it is handled alone.
            stage = self._claims[0].stage
            size, extra = len(self._claims), {"event": "batch-undone", "stage": stage}
            logger.info("batch of %d messages of %s undone: %s", size, stage, safe_text(raised), extra=extra)
            return []
        self._monitor.ended(is_settled=True)
        _deliver(self._units)
        return completed

    def _undo(self, error: BaseException | None) -> None:
        self._batch.rollback()
        for unit_of_work in self._units:
            unit_of_work.rollback(error)
        self._monitor.ended(is_settled=False)


def _deliver(units: Sequence[UnitOfWork]) -> None:
    """Deliver each unit of a committed batch, even if an interrupt comes meanwhile."""
    for place, unit_of_work in enumerate(units, start=1):
        try:
            unit_of_work.deliver()
        except Halt:
            raise
        except BaseException:
            _deliver(units[place:])
            raise
