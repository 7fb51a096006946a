"""The loop that runs stages: take the next message, run it, log what came of it. Worker threads and Spark's tasks are
this loop."""

from __future__ import annotations

import logging
import threading
from contextlib import closing

from stagepost.app.app import App
from stagepost.app.connections import ConnectionUsage
from stagepost.app.running import attempt_runner
from stagepost.app.stores import Access
from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.ports.liveness import Incarnation
from stagepost.ports.session import Session
from stagepost.runtime.prefetch import Prefetcher
from stagepost.runtime.service import Service
from stagepost.runtime.watchdog import ThreadWatch
from stagepost.transaction.attempt import AttemptRunner
from stagepost.transaction.callbacks import CallbackPool
from stagepost.transaction.database_wait import StopSignal, retried
from stagepost.transaction.outcome import AnsweredWithFailure, Completed, Duplicate
from stagepost.transaction.outcome_log import log_outcome
from stagepost.transaction.steps import Step, StepListener, unobserved

SETTLED_WELL = (Completed, AnsweredWithFailure, Duplicate)
# The steps at which a thread begins to use its connection, also if it then waits for its transaction to begin.
BEGINNINGS = (Step.CLAIMED, Step.BEGUN)

logger = logging.getLogger(__name__)


def work(prefetcher: Prefetcher, access: Access, transaction: AttemptRunner, clock: Clock, stop: StopSignal) -> int:
    """Run messages until the prefetcher is stopped, or ``stop`` is given while the database is away.

    Return how many ran.
    """
    ran = 0
    while claims := retried(logger, lambda: prefetcher.next(access.claimer), stop):
        begin = clock.monotonic()
        outcomes = transaction.run_batch(claims) if len(claims) > 1 else [transaction.run(claims[0])]
        prefetcher.window.observe((clock.monotonic() - begin) / len(claims))
        for claim, outcome in zip(claims, outcomes, strict=True):
            if isinstance(outcome, SETTLED_WELL):
                prefetcher.wakeup.ring()
            else:
                log_outcome(claim, outcome)
        ran += len(claims)
    return ran


class StageThread(Service):
    """A worker's thread that runs stages. ``stop`` ends its wait for a database; the prefetcher ends all else.

    ``watch`` is set once it is ready. It takes no message before ``go`` is set.
    """

    def __init__(
        self,
        app: App,
        slot: int,
        incarnation: Incarnation,
        prefetcher: Prefetcher,
        callbacks: CallbackPool,
        node: str,
        go: threading.Event,
    ) -> None:
        super().__init__(f"stage-{slot}", self._open_and_work)
        self._app = app
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
            with closing(self._app.access()) as access:
                self.watch = ThreadWatch(self._incarnation, self._slot, self._app.clock, access.work.interrupt)
                self._has_opened.set()
                self._go.wait()
                usage = UsageListener(self.name, access.work, self.watch, self._app.clock, self._app.listener)
                with self._app.counting(usage.current):
                    self._run_stages(access, self.watch, usage)
        finally:
            self._has_opened.set()

    def _run_stages(self, access: Access, watch: ThreadWatch, usage: UsageListener) -> None:
        transaction = attempt_runner(
            self._app,
            access,
            node=self._node,
            monitor=watch,
            stop=self,
            after_commit=self._callbacks,
            listener=usage.hear,
        )
        work(self._prefetcher, access, transaction, self._app.clock, self)
        transaction.close()


class UsageListener:
    """Keeps what a stage thread uses its connection for, so that any other thread may ask.

    ``hear`` is a step listener that passes on what it hears. It needs no lock: only its own thread writes, and writes
    one reference.
    """

    def __init__(self, who: str, session: Session, watch: ThreadWatch, clock: Clock, listener: StepListener) -> None:
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

    def current(self) -> ConnectionUsage | None:
        """Return the present usage, or None while no message's transaction is open. Any thread may ask."""
        claim = self._watch.claim
        if claim is None or not self._session.is_begun:
            return None
        step, since = self._last
        return ConnectionUsage(
            who=self._who,
            since=since,
            stage=claim.stage,
            step=step,
            message_id=claim.message_id,
            flow_id=claim.flow_id,
        )
