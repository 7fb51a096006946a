"""The loop that runs stages, in worker threads and Spark's tasks: take the next message, run it, log its outcome."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import closing, suppress

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND, Clock, microseconds
from stagepost.flow.errors import StoreError
from stagepost.ports.liveness import Incarnation
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import attempt_runner
from stagepost.runtime.engine import Engine
from stagepost.runtime.prefetch import Prefetcher
from stagepost.runtime.service import Service
from stagepost.runtime.watchdog import ThreadWatch, UsageListener
from stagepost.transaction.attempt import AttemptRunner, kept_by
from stagepost.transaction.callbacks import CallbackPool
from stagepost.transaction.database_wait import StopSignal, retried
from stagepost.transaction.outcome import AnsweredWithFailure, Completed, Duplicate, Outcome, Redelivered
from stagepost.transaction.outcome_log import log_outcome

SETTLED_WELL = (Completed, AnsweredWithFailure, Duplicate)

logger = logging.getLogger(__name__)


def work(prefetcher: Prefetcher, access: Access, transaction: AttemptRunner, clock: Clock, stop: StopSignal) -> int:
    """Run messages until the prefetcher is stopped, or ``stop`` is given while the database is away.

    Return how many ran.
    """
    ran = 0
    blocked = BlockedThread(prefetcher, access, transaction, stop)
    while claims := retried(logger, lambda: prefetcher.next(access.claimer), stop):
        while claims:
            begin = clock.monotonic()
            outcomes = transaction.run_batch(claims) if len(claims) > 1 else [transaction.run(claims[0])]
            prefetcher.window.observe((clock.monotonic() - begin) / len(outcomes))
            for claim, outcome in zip(claims, outcomes, strict=False):
                if isinstance(outcome, SETTLED_WELL):
                    prefetcher.wakeup.ring()
                else:
                    log_outcome(claim, outcome)
            ran += len(outcomes)
            claims = blocked.wait_for(outcomes[-1], claims[len(outcomes) :])
    return ran


class BlockedThread:
    """Waits with a message that a blocking redelivery keeps on its thread."""

    def __init__(self, prefetcher: Prefetcher, access: Access, transaction: AttemptRunner, stop: StopSignal) -> None:
        self._prefetcher = prefetcher
        self._access = access
        self._transaction = transaction
        self._stop = stop
        self._row: int | None = None

    def wait_for(self, outcome: Outcome, rest: Sequence[Claim]) -> list[Claim]:
        """Wait until the kept message of ``outcome`` is due, and return it. Return an empty list if none is kept.

        Before the first wait all other messages are given back: ``rest``, the batch's, and those claimed ahead.
        """
        kept = kept_by(outcome)
        if kept is None:
            return []
        assert isinstance(outcome, Redelivered), "only a failed message is kept"
        if kept.row != self._row:
            self._row = kept.row
            retried(logger, lambda: self._prefetcher.give_back(self._access.claimer, beside=rest), self._stop)
        left = self._prefetcher.wait_blocked(outcome.after / SECOND)
        if left is None:
            return [kept]
        # The housekeeper gives the message back if the database is away at this moment.
        with suppress(StoreError):
            self._transaction.put_off(kept, microseconds(left), "its worker stops")
        return []


class StageThread(Service):
    """A worker's thread that runs stages. ``stop`` ends its wait for a database; the prefetcher ends all else.

    ``watch`` is set once it is ready. It takes no message before ``go`` is set.
    """

    def __init__(
        self,
        engine: Engine,
        slot: int,
        incarnation: Incarnation,
        prefetcher: Prefetcher,
        callbacks: CallbackPool,
        node: str,
        go: threading.Event,
    ) -> None:
        super().__init__(f"stage-{slot}", self._open_and_work)
        self._engine = engine
        self._slot = slot
        self._incarnation = incarnation
        self._prefetcher = prefetcher
        self._callbacks = callbacks
        self._node = node
        self._go = go
        self._has_opened = threading.Event()
        self.watch: ThreadWatch | None = None

    def opened(self) -> ThreadWatch:
        """Wait until it is ready. Raises what kept it from becoming ready."""
        self._has_opened.wait()
        if self.watch is None:
            self.join()
            assert self.error is not None
            raise self.error
        return self.watch

    @property
    def is_busy(self) -> bool:
        return self.watch is not None and self.watch.claim is not None

    @property
    def is_stuck(self) -> bool:
        return self.watch is not None and self.watch.is_stuck

    def _open_and_work(self) -> None:
        try:
            with closing(self._engine.access()) as access:
                self.watch = ThreadWatch(self._incarnation, self._slot, self._engine.clock, access.work.interrupt)
                self._has_opened.set()
                self._go.wait()
                usage = UsageListener(self.name, access.work, self.watch, self._engine.clock, self._engine.listener)
                with self._engine.counting(usage.current):
                    self._run_stages(access, self.watch, usage)
        finally:
            self._has_opened.set()

    def _run_stages(self, access: Access, watch: ThreadWatch, usage: UsageListener) -> None:
        transaction = attempt_runner(
            self._engine,
            access,
            node=self._node,
            monitor=watch,
            stop=self,
            after_commit=self._callbacks,
            listener=usage.hear,
        )
        work(self._prefetcher, access, transaction, self._engine.clock, self)
        transaction.close()
