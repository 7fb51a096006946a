"""Processing on Spark: executors run claim loops around the same stage transaction as a worker.

The queue holds all state, so the job keeps no offset. A task that dies causes a redelivery, workers may run the same
app at the same time, and a repeated job continues with the rest. The driver does three things: it starts rounds of
tasks until the queue is drained, runs suspects alone when all else is done, and reports the messages it waits for.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from stagepost.app.logs import configure
from stagepost.flow.errors import StagepostError, StoreError
from stagepost.flow.ids import node_name
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error, is_cancelled
from stagepost.pipeline.session import TaskPlan, cancel_jobs, require_one_host, slots
from stagepost.ports.queue import Pending
from stagepost.runtime.assembly import attempt_runner, check_databases, takeover_of
from stagepost.runtime.declarations import UndeclaredStages, declare_stages
from stagepost.runtime.engine import Engine
from stagepost.runtime.housekeeper import Housekeeper
from stagepost.runtime.isolation import EXIT_STUCK, AppToRun, Isolation
from stagepost.runtime.loop import work
from stagepost.runtime.prefetch import Draining, Prefetcher
from stagepost.runtime.relay_service import RelayService
from stagepost.runtime.service import NeverStops, Service, StopFlag
from stagepost.runtime.watchdog import ThreadWatch, Watchdog
from stagepost.transaction.callbacks import CallbackPool
from stagepost.transaction.database_wait import retried

logger = logging.getLogger(__name__)
T = TypeVar("T")

WAIT_SECONDS = 0.2
# The time that the relay gets to finish. Later starts send the rest, perhaps a second time.
RELAY_SECONDS = 10.0
# The time that tasks get to finish their messages after a request to stop.
GRACE_SECONDS = 30.0
# The time after that in which the driver takes over the claims of ended tasks.
LEFT_SECONDS = 10.0
# The number of failed rounds in a row without progress after which the job fails.
FRUITLESS_ROUNDS_MAX = 3

# Spark needs a schema of the tasks' result, which has no rows.
RAN = "task int"


class ProcessingFailed(StagepostError):
    """Rounds of tasks failed without progress, or the job was cancelled. The cause is Spark's own error."""

    code = "processing-failed"


class ProcessingStopped(StagepostError):
    """A request stopped the job. The next job continues with the remaining messages."""

    code = "processing-stopped"


@dataclass(frozen=True, slots=True)
class ProcessingPlan(TaskPlan):
    """The plan of one job. Its tasks stop when the owner ``driver`` is gone."""

    log_level: str = "WARNING"
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessingReport:
    """The result of a job.

    ``committed`` counts the commits of each executor, from the journal. ``rounds`` counts the rounds of tasks, and
    ``failed`` those that ended with an error.
    """

    committed: dict[str, int]
    rounds: int
    failed: int


def process(
    spark: SparkSession,
    plan: ProcessingPlan,
    *,
    stop: StopFlag | None = None,
) -> ProcessingReport:
    """Run the app's stages on the executors until no message is left for them, neither ready nor delayed.

    When ``stop`` is set, the tasks take no more messages, finish those that run, and release the others.
    ``ProcessingStopped`` is raised then. Raises ``ProcessingFailed`` if rounds fail without progress, or the job was
    cancelled in Spark.
    """
    require_one_host(spark, plan.place)
    with closing(Driver(spark, plan.load(), plan, stop or StopFlag())) as driver:
        return driver.run()


class Driver:
    """The driver's part of a job: it runs rounds of tasks and suspects, and takes over from dead tasks."""

    def __init__(
        self,
        spark: SparkSession,
        engine: Engine,
        plan: ProcessingPlan,
        stop: StopFlag,
    ) -> None:
        self._spark = spark
        self._stop = stop
        self._stages = list(engine.modes())
        check_databases(engine)
        declare_stages(engine)
        self._clock = engine.clock
        self._access = engine.access()
        node = node_name("driver")
        self._incarnation = engine.incarnate(node)
        self._is_present = True
        self._plan = replace(plan, driver=self._incarnation.owner)
        self._watchdog = Watchdog(self._incarnation, on_orphaned=lambda _: os._exit(1))
        self._watchdog.start()
        self._draining = Draining()
        self._isolation = Isolation(
            engine,
            AppToRun(plan.app, plan.folder, plan.log_level),
            self._access,
            self._incarnation,
            node,
            self._stop,
        )
        self._undeclared = UndeclaredStages(engine, self._access.session)
        self._detector = engine.detector()
        self._takeover = takeover_of(engine, self._access, node, self._detector)
        self._relays = [RelayService(engine, node)] if engine.databases.queue is not None else []
        for relay in self._relays:
            relay.start()

    def run(self) -> ProcessingReport:
        journal = self._access.session.journal
        begin = self._with_retries(journal.position)
        self._draining.is_stalled(self._with_retries(self._pending))
        rounds = failed = fruitless = 0
        while True:
            self._check_stop()
            round_begin = self._with_retries(journal.position)
            rounds += 1
            self._with_retries(self._undeclared.look)
            failure = self._run_round()
            self._with_retries(lambda: self._takeover.sweep([self._incarnation.owner]))
            if failure is not None:
                failed += 1
                # A death and a dead letter count as progress too, because each message has a limited number of them.
                fruitless = 0 if self._with_retries(partial(journal.since, round_begin)).has_ended else fruitless + 1
                if fruitless == FRUITLESS_ROUNDS_MAX:
                    raise ProcessingFailed(
                        f"{fruitless} rounds of tasks failed without progress: {describe_error(failure)}"
                    ) from failure
                logger.warning("round of tasks failed: %s", describe_error(failure), extra={"event": "round-failed"})
                time.sleep(WAIT_SECONDS)
            pending = self._finish_suspects()
            self._check_stop()
            if self._draining.is_stalled(pending):
                paused = self._with_retries(self._access.session.circuits.paused)
                errors = [f"{each.stage}: {each.error}" for each in paused if each.stage in self._stages]
                raise ProcessingFailed(f"the remaining messages wait at paused stages: {'; '.join(errors)}")
            if pending.is_drained:
                return ProcessingReport(self._with_retries(lambda: journal.since(begin)).committed, rounds, failed)

    def close(self) -> None:
        self._stop.stop()
        for relay in self._relays:
            relay.stop()
            relay.join(RELAY_SECONDS)
        try:
            self._isolation.close()
        except StoreError as error:
            # The lock is freed below, so another process takes these claims over.
            logger.warning("claims not given back: %s", error, extra={"event": "not-given-back"})
        finally:
            self._leave()
            self._detector.close()
            self._access.close()

    def _with_retries(self, step: Callable[[], T]) -> T:
        """Run a step, and wait while the database is locked or unavailable. Raises ``ProcessingStopped``."""
        results: list[T] = []
        retried(logger, lambda: results.append(step()), self._stop)
        if not results:
            self._check_stop()
        return results[0]

    def _round(self) -> None:
        tasks = slots(self._spark)
        frame = self._spark.range(0, tasks, 1, tasks).mapInArrow(partial(_run_task, self._plan), RAN)
        tasks_run = Service("round", frame.collect)
        tasks_run.start()
        while not tasks_run.join(WAIT_SECONDS):
            if self._stop.is_stopped:
                self._end_round(tasks_run)
        self._check_stop()
        if tasks_run.error is not None:
            raise tasks_run.error

    def _run_round(self) -> Exception | None:
        """Run a round of tasks. Return Spark's error if it failed."""
        try:
            self._round()
        except SPARK_ERRORS as error:
            if is_cancelled(error):
                raise ProcessingFailed("the job was cancelled; the next job continues with the rest") from error
            return error
        return None

    def _end_round(self, tasks_run: Service) -> None:
        """End the driver's incarnation, so that its tasks stop. Spark ends those that do not stop in time."""
        self._leave()
        if tasks_run.join(GRACE_SECONDS):
            return
        while tasks_run.is_alive:
            cancel_jobs(self._spark)
            tasks_run.join(WAIT_SECONDS)
        # Spark ends the processes of these tasks a little later.
        deadline = self._clock.monotonic() + LEFT_SECONDS
        while self._clock.monotonic() < deadline and self._has_tasks():
            self._takeover.sweep()
            time.sleep(WAIT_SECONDS)

    def _has_tasks(self) -> bool:
        return any(each.record.node.startswith("spark@") for each in self._detector.look())

    def _leave(self) -> None:
        if self._is_present:
            self._is_present = False
            self._watchdog.close()

    def _check_stop(self) -> None:
        if self._stop.is_stopped:
            raise ProcessingStopped("the job was stopped on request; the next job continues with the rest")

    def _pending(self) -> Pending:
        return self._access.claimer.pending(self._stages)

    def _finish_suspects(self) -> Pending:
        """Run suspects one by one, and wait for the next one, until there is other work for a round of tasks."""
        while True:
            while not self._stop.is_stopped and self._with_retries(self._isolation.run_next):
                pass
            pending = self._with_retries(self._pending)
            if (
                self._stop.is_stopped
                or self._draining.is_stalled(pending)
                or not pending.is_drained_but_for_suspects
                or pending.next_suspect_at is None
            ):
                return pending
            self._stop.wait(WAIT_SECONDS)


# In the tasks


def _run_task(plan: ProcessingPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    configure(plan.log_level, as_json=False)
    with closing(Task(plan.load(), plan.driver)) as task:
        task.run()
    return iter(())


class Task:
    """One attempt of a Spark task. It is an incarnation with one slot."""

    def __init__(self, engine: Engine, driver: str | None) -> None:
        self._engine = engine
        self.node = node_name("spark")
        self._access = engine.access()
        self._draining = Draining()
        self._incarnation = engine.incarnate(self.node)
        self._prefetcher = Prefetcher(
            engine.batches(), self._incarnation.owner, self.node, 1, engine.clock, is_done=self._is_done
        )
        self._watch = ThreadWatch(self._incarnation, 0, engine.clock, self._access.work.interrupt)
        self._callbacks = CallbackPool()
        self._housekeeper = Housekeeper(
            engine, self._prefetcher, self._incarnation, self.node, needs=driver, on_alone=self._end_early
        )
        self._watchdog = Watchdog(
            self._incarnation,
            [self._watch],
            on_stuck=self._end_stuck,
            on_orphaned=lambda _: os._exit(1),
            parent=os.getppid(),
        )
        self._watchdog.start()
        self._housekeeper.start()

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
        return self._draining.is_stalled(pending) or pending.is_drained_but_for_suspects

    def _end_early(self) -> None:
        """Take no more messages, because the driver has ended. A running message that is cut off counts no death."""
        self._prefetcher.stop()
        self._incarnation.abandon()

    def _end_stuck(self, stuck: object) -> None:
        self._watch.mark_timed_out()
        os._exit(EXIT_STUCK)
