"""The loop that runs stages, in worker threads and Spark's tasks: take the next message, run it, log its outcome."""

from __future__ import annotations

import logging
import threading
from contextlib import closing

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.ports.liveness import Incarnation
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import attempt_runner
from stagepost.runtime.blocking import BlockedThread
from stagepost.runtime.engine import Engine
from stagepost.runtime.prefetch import Prefetcher
from stagepost.runtime.service import Service
from stagepost.runtime.watchdog import ThreadWatch, UsageListener
from stagepost.transaction.attempt import AttemptRunner
from stagepost.transaction.callbacks import CallbackPool
from stagepost.transaction.database_wait import StopSignal, retried
from stagepost.transaction.outcome import AnsweredWithFailure, Completed, Duplicate
from stagepost.transaction.outcome_log import log_outcome

SETTLED_WELL = (Completed, AnsweredWithFailure, Duplicate)

logger = logging.getLogger(__name__)


def work(prefetcher: Prefetcher, access: Access, transaction: AttemptRunner, clock: Clock, stop: StopSignal) -> int:
    """Run messages until the prefetcher is stopped, or ``stop`` is given while the database is away.

    Return how many ran.
    """
    ran = 0
    blocked = BlockedThread(prefetcher, access, transaction, stop)

    def next_claims() -> list[Claim]:
        if not prefetcher.has_some:
            transaction.idle()
        return prefetcher.next(access.claimer)

    while claims := blocked.wait() or retried(logger, next_claims, stop):
        begin = clock.monotonic()
        outcomes = transaction.run_batch(claims) if len(claims) > 1 else [transaction.run(claims[0])]
        prefetcher.window.observe((clock.monotonic() - begin) / len(outcomes))
        for claim, outcome in zip(claims, outcomes, strict=False):
            if isinstance(outcome, SETTLED_WELL):
                prefetcher.wakeup.ring()
            else:
                log_outcome(claim, outcome)
        ran += len(outcomes)
        blocked.observe(outcomes[-1], claims[len(outcomes) :])
    return ran


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
