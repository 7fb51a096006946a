"""The part of ``process`` that runs in Spark's tasks: one claim loop a slot, around the same transaction as a worker.

Each attempt of a task is an incarnation of its own, so its claims end with it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

from pyspark import TaskContext

from stagepost.app.logs import configure
from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.errors import DeclarationError, StagepostError, StoreUnavailable
from stagepost.flow.ids import node_name
from stagepost.flow.texts import as_sentence
from stagepost.flow.urls import shown_url
from stagepost.pipeline.task_plan import TaskPlan
from stagepost.ports.queue import Pending
from stagepost.ports.registry import driver_of
from stagepost.runtime.assembly import attempt_runner
from stagepost.runtime.engine import Engine
from stagepost.runtime.housekeeper import Housekeeper
from stagepost.runtime.isolation import EXIT_STUCK
from stagepost.runtime.loop import work
from stagepost.runtime.prefetch import Draining, Prefetcher
from stagepost.runtime.service import NeverStops
from stagepost.runtime.watchdog import ThreadWatch, Watchdog
from stagepost.transaction.callbacks import CallbackPool

logger = logging.getLogger(__name__)

# Tasks end after this time, and the driver starts others: Spark counts the failures of a task as long as it runs.
ROUND_SECONDS = 300.0
# The connections of one claim loop to the queue's database: its stages, its housekeeper, its lock, and the look at
# other processes. One more goes to the database of the stages' data, if that is another one.
LOOP_CONNECTIONS_MAX = 4
# The connections of the driver, of its progress, and of the child that runs suspects.
DRIVER_CONNECTIONS_MAX = 8


@dataclass(frozen=True, slots=True)
class ProcessingPlan(TaskPlan):
    """The plan of one job. Its tasks stop when the owner ``driver`` is gone.

    ``is_continuous``  the tasks wait for more messages when none is left
    ``round_seconds``  how long a task takes messages
    ``round_ends_at``  the moment of the round's end, by the driver's clock
    """

    log_level: str = "WARNING"
    driver: str | None = None
    is_continuous: bool = False
    round_seconds: float = ROUND_SECONDS
    round_ends_at: int = 0


@dataclass(frozen=True, slots=True)
class LoopFailure:
    """Why a claim loop could not begin. The task returns it, because Spark runs a task again that raises it."""

    code: str
    text: str

    def as_error(self) -> StagepostError:
        kinds: tuple[type[StagepostError], ...] = (DeclarationError, StoreUnavailable)
        return next(each for each in kinds if each.code == self.code)(self.text)


def seconds_of_attempt(plan: ProcessingPlan, clock: Clock) -> float:
    """Return how long an attempt of a task takes messages. One that follows a death has the rest of the round."""
    context = TaskContext.get()
    if context is None or context.attemptNumber() == 0:
        # A clock of an executor that is wrong must not end each task at its begin.
        return plan.round_seconds
    return min(max((plan.round_ends_at - clock.now()) / SECOND, 0.0), plan.round_seconds)


def run_claim_loop(plan: ProcessingPlan, numbers: Iterable[int]) -> Iterator[LoopFailure]:
    """Run one claim loop to its end. Yield a failure if it could not begin. ``numbers`` holds that of the loop."""
    configure(plan.log_level, as_json=False)
    try:
        task = Task(plan.load(), plan)
    except DeclarationError as error:
        yield LoopFailure(DeclarationError.code, str(error))
    except StoreUnavailable as error:
        yield LoopFailure(StoreUnavailable.code, _unreachable(plan, error))
    else:
        with closing(task):
            task.run()


def _unreachable(plan: ProcessingPlan, error: StoreUnavailable) -> str:
    if "shared" not in driver_of(plan.place.database).capabilities:
        # It is a file of this machine, so the advice on connections would mislead.
        return str(error)
    return (
        f"the executor on {socket.gethostname()} cannot reach the database, and the driver can: {as_sentence(error)} "
        "Each executor "
        f"connects to {shown_url(plan.place.database)} by itself. Name a host that all executors can reach, let its "
        "firewall and pg_hba.conf admit them, and put password and service files on each of their machines."
    )


class Task:
    """One attempt of a Spark task. It is an incarnation with one slot."""

    def __init__(self, engine: Engine, plan: ProcessingPlan) -> None:
        self._engine = engine
        self._is_continuous = plan.is_continuous
        self.node = node_name("spark")
        self._access = engine.access()
        self._draining = Draining()
        try:
            self._incarnation = engine.incarnate(self.node)
        except BaseException:
            # Spark keeps this process for other tasks.
            self._access.close()
            raise
        self._prefetcher = Prefetcher(
            engine.batches(), self._incarnation.owner, self.node, 1, engine.clock, is_done=self._is_done
        )
        self._watch = ThreadWatch(self._incarnation, 0, engine.clock, self._access.work.interrupt)
        self._callbacks = CallbackPool()
        self._housekeeper = Housekeeper(
            engine, [self._prefetcher], self._incarnation, self.node, needs=plan.driver, on_alone=self._end_early
        )
        self._watchdog = Watchdog(
            self._incarnation,
            [self._watch],
            on_stuck=self._end_stuck,
            on_orphaned=lambda _: os._exit(1),
            parent=os.getppid(),
        )
        self._end_of_round = threading.Timer(seconds_of_attempt(plan, engine.clock), self._prefetcher.stop)
        self._end_of_round.daemon = True
        self._watchdog.start()
        self._housekeeper.start()
        self._end_of_round.start()

    def run(self) -> None:
        # Spark stops a task by ending its process.
        stop = NeverStops()
        runner = attempt_runner(
            self._engine,
            self._access,
            node=self.node,
            monitor=self._watch,
            stop=stop,
            after_commit=self._callbacks,
        )
        with closing(runner):
            work(self._prefetcher, self._access, runner, self._engine.clock, stop)

    def close(self) -> None:
        """Release every claim of this attempt, after success and after an error."""
        self._end_of_round.cancel()
        self._prefetcher.stop()
        self._housekeeper.finish()
        if self._housekeeper.error is not None:
            logger.error(
                "claims of this task not given back, another process takes them over: %s",
                self._housekeeper.error,
                extra={"event": "not-given-back"},
            )
        self._callbacks.close()
        self._watchdog.close()
        self._access.close()

    def _is_done(self, pending: Pending) -> bool:
        """Return whether no message is left for tasks. Suspects do not count, because the driver runs them."""
        if self._is_continuous:
            return False
        return self._draining.is_stalled(pending) or pending.is_drained_but_for_suspects

    def _end_early(self) -> None:
        """Take no more messages, because the driver has ended. A running message that is cut off counts no death."""
        self._prefetcher.stop()
        self._incarnation.abandon()

    def _end_stuck(self, stuck: object) -> None:
        self._watch.mark_timed_out()
        os._exit(EXIT_STUCK)
