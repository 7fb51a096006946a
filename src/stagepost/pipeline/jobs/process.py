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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from stagepost.app.app import App
from stagepost.app.loading import load_app
from stagepost.app.logs import configure
from stagepost.app.running import attempt_runner, check_places, modes_of, queue_commit_of
from stagepost.app.settings import Place
from stagepost.flow.errors import StagepostError, StoreError
from stagepost.liveness.detector import FailureDetector
from stagepost.liveness.takeover import Takeover
from stagepost.pipeline.failures import SPARK_ERRORS, explained, is_cancelled
from stagepost.pipeline.session import break_off, require_one_host, slots
from stagepost.ports.circuits import CircuitBreaker
from stagepost.ports.queue import Pending
from stagepost.runtime.declarations import UndeclaredStages, declare_stages
from stagepost.runtime.housekeeper import Housekeeper
from stagepost.runtime.isolation import EXIT_STUCK, AppToRun, Isolation
from stagepost.runtime.loop import work
from stagepost.runtime.prefetch import Draining, Prefetcher
from stagepost.runtime.relay_service import RelayService
from stagepost.runtime.service import NeverStops, Service, StopFlag
from stagepost.runtime.watchdog import ThreadWatch, Watchdog, incarnate
from stagepost.transaction.callbacks import CallbackPool
from stagepost.transaction.database_wait import retried

logger = logging.getLogger(__name__)
T = TypeVar("T")

WAIT_SECONDS = 0.2
# The time that the relay gets to finish; the rest is sent later, perhaps a second time.
RELAY_SECONDS = 10.0
# The time that tasks get to finish their messages, after the job was told to stop.
GRACE_SECONDS = 30.0
# How long after that the driver looks for ended tasks, to give back their claims.
LEFT_SECONDS = 10.0
# The job gives up after so many failed rounds in a row without progress.
FRUITLESS_ROUNDS_MAX = 3

RAN = "node string, ran bigint"
RAN_ARROW = pa.schema([("node", pa.string()), ("ran", pa.int64())])


class ProcessingFailed(StagepostError):
    """The tasks fail without progress, or the job was cancelled. The cause is Spark's own error."""

    code = "processing-failed"


class ProcessingStopped(StagepostError):
    """The job was told to stop. The next job continues with the messages that are left."""

    code = "processing-stopped"


@dataclass(frozen=True, slots=True)
class Processing:
    """The orders for the tasks. They stop when the owner ``driver`` is gone."""

    app: str
    folder: str
    place: Place
    log_level: str = "WARNING"
    driver: str | None = None

    def load(self) -> App:
        app = load_app(self.app, Path(self.folder))
        app.place = self.place
        return app


@dataclass(frozen=True, slots=True)
class Processed:
    """The result of a job. ``committed`` counts the commits of each executor, from the journal. ``rounds`` counts the
    rounds of tasks, and ``failed`` those that ended with an error."""

    committed: dict[str, int]
    rounds: int
    failed: int


def process(
    spark: SparkSession,
    plan: Processing,
    *,
    on_wait: Callable[[Pending], None] = lambda pending: None,
    stop: StopFlag | None = None,
) -> Processed:
    """Run the app's stages on the executors until nothing is left to do for them, now or later.

    ``on_wait`` gets the pending messages whenever the driver waits for one to come due. When ``stop`` is set, the tasks
    take no more messages, finish those that run, and give back the others. ``ProcessingStopped`` is raised then.
    Raises ``ProcessingFailed`` if rounds fail without progress, or the job was cancelled in Spark.
    """
    require_one_host(spark, plan.place)
    app = plan.load()
    driver = Driver(spark, app, plan, on_wait, stop or StopFlag())
    try:
        return driver.run()
    finally:
        driver.close()


class Driver:
    def __init__(
        self,
        spark: SparkSession,
        app: App,
        plan: Processing,
        on_wait: Callable[[Pending], None],
        stop: StopFlag,
    ) -> None:
        self._spark = spark
        self._on_wait = on_wait
        self._stop = stop
        self._stages = list(modes_of(app))
        check_places(app)
        declare_stages(app)
        self._clock = app.clock
        self._access = app.access()
        node = app.node("driver")
        self._incarnation = incarnate(app, node)
        self._is_present = True
        self._plan = replace(plan, driver=self._incarnation.owner)
        self._watchdog = Watchdog(self._incarnation, on_orphaned=lambda _: os._exit(1))
        self._watchdog.start()
        self._draining = Draining()
        self._isolation = Isolation(
            app,
            AppToRun(plan.app, plan.folder, plan.log_level),
            self._access,
            self._incarnation,
            node,
            self._stop,
        )
        self._undeclared = UndeclaredStages(app, self._access.session)
        self._detector = FailureDetector(app.store.liveness(app.clock), app.name, app.clock)
        self._takeover = Takeover(
            app.name,
            app.stages(),
            self._access.claimer,
            queue_commit_of(app, self._access, node),
            self._detector,
            app.random,
        )
        self._relays = [RelayService(app, node)] if app.queue is not None else []
        for relay in self._relays:
            relay.start()

    def run(self) -> Processed:
        journal = self._access.session.journal
        begin = self._patiently(journal.position)
        self._draining.is_stalled(self._patiently(self._pending))
        rounds = failed = fruitless = 0
        while True:
            self._check_stop()
            round_begin = self._patiently(journal.position)
            rounds += 1
            self._patiently(self._undeclared.look)
            failure = self._round_fails()
            self._patiently(lambda: self._takeover.sweep([self._incarnation.owner]))
            if failure is not None:
                failed += 1
                # A death and a dead letter count as progress too, because each message has only so many of them.
                fruitless = 0 if self._patiently(partial(journal.since, round_begin)).has_ended else fruitless + 1
                if fruitless == FRUITLESS_ROUNDS_MAX:
                    raise ProcessingFailed(
                        f"{fruitless} rounds of tasks failed and nothing moved: {explained(failure)}"
                    ) from failure
                logger.warning("round of tasks failed: %s", explained(failure), extra={"event": "round-failed"})
                time.sleep(WAIT_SECONDS)
            pending = self._finish_suspects()
            self._check_stop()
            if self._draining.is_stalled(pending):
                paused = "; ".join(f"{each.stage}: {each.error}" for each in self._patiently(self._paused))
                raise ProcessingFailed(f"the messages that are left wait at paused stages: {paused}")
            if pending.is_drained:
                return Processed(self._patiently(lambda: journal.since(begin)).committed, rounds, failed)

    def close(self) -> None:
        self._stop.stop()
        for relay in self._relays:
            relay.stop()
            relay.join(RELAY_SECONDS)
        try:
            self._isolation.close()
        except StoreError as error:
            # The lock is freed below, so a process that takes over gives them back.
            logger.warning("claims not given back: %s", error, extra={"event": "not-given-back"})
        finally:
            self._leave()
            self._detector.close()
            self._access.close()

    def _round_fails(self) -> Exception | None:
        try:
            self._round()
        except SPARK_ERRORS as error:
            if is_cancelled(error):
                raise ProcessingFailed("the job was cancelled; the next job continues with the rest") from error
            return error
        return None

    def _patiently(self, step: Callable[[], T]) -> T:
        """Run a step, and wait while the database is locked or unavailable. Raises ``ProcessingStopped``."""
        results: list[T] = []
        retried(logger, lambda: results.append(step()), self._stop)
        if not results:
            self._check_stop()
        return results[0]

    def _round(self) -> None:
        tasks = slots(self._spark)
        frame = self._spark.range(0, tasks, 1, tasks).mapInArrow(_claim_loop(self._plan), RAN)
        tasks_run = Service("round", frame.collect)
        tasks_run.start()
        while not tasks_run.join(WAIT_SECONDS):
            if self._stop.is_stopped:
                self._end_round(tasks_run)
        self._check_stop()
        if tasks_run.error is not None:
            raise tasks_run.error

    def _end_round(self, tasks_run: Service) -> None:
        """End the driver's incarnation, so that its tasks stop. Spark ends those that do not stop in time."""
        self._leave()
        if tasks_run.join(GRACE_SECONDS):
            return
        while tasks_run.is_alive:
            break_off(self._spark)
            tasks_run.join(WAIT_SECONDS)
        # Spark ends the processes of these tasks a little later.
        deadline = self._clock.monotonic() + LEFT_SECONDS
        while self._clock.monotonic() < deadline and self._is_work_left():
            self._takeover.sweep()
            time.sleep(WAIT_SECONDS)

    def _is_work_left(self) -> bool:
        return any(each.record.node.startswith("spark@") for each in self._detector.look())

    def _leave(self) -> None:
        if self._is_present:
            self._is_present = False
            self._watchdog.close()

    def _check_stop(self) -> None:
        if self._stop.is_stopped:
            raise ProcessingStopped("the job was told to stop; the next job continues with the rest")

    def _pending(self) -> Pending:
        return self._access.claimer.pending(self._stages)

    def _paused(self) -> list[CircuitBreaker]:
        return [each for each in self._access.session.circuits.paused() if each.stage in self._stages]

    def _finish_suspects(self) -> Pending:
        """Run suspects one by one, and wait for the next one, until there is other work for a round of tasks."""
        while True:
            while not self._stop.is_stopped and self._patiently(self._isolation.run_next):
                pass
            pending = self._patiently(self._pending)
            if (
                self._stop.is_stopped
                or self._draining.is_stalled(pending)
                or not pending.is_drained_but_for_suspects
                or pending.next_suspect_at is None
            ):
                return pending
            self._on_wait(pending)
            self._stop.wait(WAIT_SECONDS)


# In the tasks


def _claim_loop(plan: Processing) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        configure(plan.log_level, as_json=False)
        task = Task(plan.load(), plan.driver)
        try:
            yield pa.RecordBatch.from_pylist([{"node": task.node, "ran": task.run()}], RAN_ARROW)
        finally:
            task.close()

    return run


class Task:
    """One Spark task attempt: an incarnation of its own, with one slot."""

    def __init__(self, app: App, driver: str | None) -> None:
        self._app = app
        self.node = app.node("spark")
        self._access = app.access()
        self._draining = Draining()
        self._incarnation = incarnate(app, self.node)
        self._prefetcher = Prefetcher(
            app.batches(), self._incarnation.owner, self.node, 1, app.clock, is_done=self._is_done
        )
        self._watch = ThreadWatch(self._incarnation, 0, app.clock, self._access.work.interrupt)
        self._callbacks = CallbackPool()
        self._housekeeper = Housekeeper(
            app, self._prefetcher, self._incarnation, self.node, needs=driver, on_alone=self._end_early
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

    def run(self) -> int:
        # Spark stops a task by ending its process.
        stop = NeverStops()
        transaction = attempt_runner(
            self._app,
            self._access,
            node=self.node,
            watch=self._watch,
            stop=stop,
            after_commit=self._callbacks,
        )
        try:
            return work(self._prefetcher, self._access, transaction, self._app.clock, stop)
        finally:
            transaction.close()

    def close(self) -> None:
        """Give back every claim of this attempt, after success and after an error."""
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
        """Return whether nothing is left for tasks. Suspects do not count, because the driver runs them."""
        return self._draining.is_stalled(pending) or pending.is_drained_but_for_suspects

    def _end_early(self) -> None:
        """Take no more messages, because the driver has left. A running message that is cut off counts no death."""
        self._prefetcher.stop()
        self._incarnation.abandon()

    def _end_stuck(self, stuck: object) -> None:
        self._watch.mark_timed_out()
        os._exit(EXIT_STUCK)
