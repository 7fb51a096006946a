"""Processing on Spark: executors are claim loops around the same stage transaction that a worker runs.

The queue is the truth, so there is no offset to keep: a task that dies is a redelivery, workers may run the same app at
the same time, and a job that is run again goes on where the last one stopped. The driver does three things: it starts
rounds of tasks until the queue is drained, runs suspects alone when all else is done, and says what it waits for.
"""

from __future__ import annotations

import logging
import os
import threading
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
from stagepost.app.running import check_places, modes_of, stage_transaction
from stagepost.app.settings import Place
from stagepost.flow.errors import StagepostError, StoreContention, StoreError, StoreUnavailable
from stagepost.flow.queue import Pending
from stagepost.liveness.declarations import declare_stages
from stagepost.liveness.draining import Draining
from stagepost.liveness.housekeeper import Housekeeper
from stagepost.liveness.intake import Intake
from stagepost.liveness.isolation import EXIT_STUCK, AppToRun, Isolation
from stagepost.liveness.proof import incarnate, survey_of
from stagepost.liveness.relaying import Relaying
from stagepost.liveness.takeover import Takeover
from stagepost.liveness.undeclared import UndeclaredStages
from stagepost.liveness.vigil import Vigil
from stagepost.liveness.watch import ThreadWatch
from stagepost.liveness.working import work
from stagepost.pipeline.failures import SPARK_ERRORS, explained, is_cancelled
from stagepost.pipeline.session import break_off, require_one_host, slots
from stagepost.recovery.pausing import Streak
from stagepost.transaction.callbacks import CallbackPool

logger = logging.getLogger(__name__)
T = TypeVar("T")

WAIT_SECONDS = 0.2
# What the relay gets to finish what it sends; the rest comes again.
RELAY_SECONDS = 10.0
# What tasks get to finish what they run, once the job was told to stop.
GRACE_SECONDS = 30.0
# How long the tasks that were ended after that are looked for, to give back what they held.
LEFT_SECONDS = 10.0
# Rounds in a row that fail while nothing moves, after which the job gives up.
FRUITLESS_ROUNDS_MAX = 3

RAN = "node string, ran bigint"
RAN_ARROW = pa.schema([("node", pa.string()), ("ran", pa.int64())])


class ProcessingFailed(StagepostError):
    """The tasks fail and nothing moves, or the job was cancelled; the cause is Spark's own error."""

    code = "processing-failed"


class ProcessingStopped(StagepostError):
    """The job was told to stop. What is left is there for the next one."""

    code = "processing-stopped"


@dataclass(frozen=True, slots=True)
class Processing:
    """What the tasks are told. ``driver`` is the owner without which they stop."""

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
    """``committed``: how many messages each executor committed, by the journal. ``rounds`` of tasks, ``failed`` of them
    ended by an error."""

    committed: dict[str, int]
    rounds: int
    failed: int


def process(
    spark: SparkSession,
    plan: Processing,
    *,
    on_wait: Callable[[Pending], None] = lambda pending: None,
    stop: threading.Event | None = None,
) -> Processed:
    """Run the app's stages on the executors until nothing is left to do for them, now or later.

    ``on_wait`` is told what is pending whenever the driver waits for something to come due. When ``stop`` is set, the
    tasks take no more, finish what runs, and give back what they hold.
    Raises ``ProcessingStopped`` then, and ``ProcessingFailed`` when rounds fail and nothing moves, or Spark was told to
    cancel the job.
    """
    require_one_host(spark, plan.place)
    app = plan.load()
    driver = Driver(spark, app, plan, on_wait, stop or threading.Event())
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
        stop: threading.Event,
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
        self._vigil = Vigil(self._incarnation, [], on_stuck=lambda _: None, on_orphaned=lambda _: os._exit(1))
        self._vigil.start()
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
        self._survey = survey_of(app.store, app.name, app.clock)
        self._takeover = Takeover(app, self._access, node, self._survey)
        self._relaying = Relaying(app, node) if app.transport is not None else None
        if self._relaying is not None:
            self._relaying.start()

    def run(self) -> Processed:
        reader = self._access.session.reader
        begin = self._patiently(reader.position)
        self._draining.is_stalled(self._patiently(self._pending))
        rounds = failed = fruitless = 0
        while True:
            self._check_stop()
            has_moved = partial(reader.has_ended_since, self._patiently(reader.position))
            rounds += 1
            self._patiently(self._undeclared.look)
            failure = self._round_fails()
            self._patiently(lambda: self._takeover.sweep([self._incarnation.owner]))
            if failure is not None:
                failed += 1
                # A death and a dead letter are movement too: each message has only so many of them.
                fruitless = 0 if self._patiently(has_moved) else fruitless + 1
                if fruitless == FRUITLESS_ROUNDS_MAX:
                    raise ProcessingFailed(
                        f"{fruitless} rounds of tasks failed and nothing moved: {explained(failure)}"
                    ) from failure
                logger.warning("a round of tasks failed: %s", explained(failure), extra={"event": "round-failed"})
                time.sleep(WAIT_SECONDS)
            pending = self._finish_suspects()
            self._check_stop()
            if self._draining.is_stalled(pending):
                paused = "; ".join(f"{each.stage}: {each.error}" for each in self._patiently(self._paused))
                raise ProcessingFailed(f"nothing is left but what waits at stages that are paused: {paused}")
            if pending.is_drained:
                return Processed(self._patiently(lambda: reader.committed_since(begin)), rounds, failed)

    def close(self) -> None:
        self._stop.set()
        if self._relaying is not None:
            self._relaying.stop(RELAY_SECONDS)
        try:
            self._isolation.close()
        except StoreError as error:
            # Whoever takes over does it: the lock is let go below.
            logger.warning("what was claimed could not be given back: %s", error, extra={"event": "not-given-back"})
        finally:
            self._leave()
            self._survey.close()
            self._access.close()

    def _round_fails(self) -> Exception | None:
        try:
            self._round()
        except SPARK_ERRORS as error:
            if is_cancelled(error):
                raise ProcessingFailed("the job was cancelled; what is left is there for the next one") from error
            return error
        return None

    def _patiently(self, step: Callable[[], T]) -> T:
        """A database that somebody else keeps, or that is away for a while, is waited for, as in the tasks."""
        while True:
            try:
                return step()
            except (StoreContention, StoreUnavailable) as error:
                logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
                self._stop.wait(WAIT_SECONDS)
                self._check_stop()

    def _round(self) -> None:
        tasks = slots(self._spark)
        frame = self._spark.range(0, tasks, 1, tasks).mapInArrow(_claim_loop(self._plan), RAN)
        errors: list[Exception] = []

        def collect() -> None:
            try:
                frame.collect()
            except Exception as error:  # noqa: BLE001 - raised again below, in the thread that asked
                errors.append(error)

        thread = threading.Thread(target=collect, name="round", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(WAIT_SECONDS)
            if self._stop.is_set():
                self._end_round(thread)
        self._check_stop()
        if errors:
            raise errors[0]

    def _end_round(self, thread: threading.Thread) -> None:
        """The tasks see that their driver has left. Those that do not end for that are ended by Spark."""
        self._leave()
        thread.join(GRACE_SECONDS)
        if not thread.is_alive():
            return
        while thread.is_alive():
            break_off(self._spark)
            thread.join(WAIT_SECONDS)
        # Spark ends their processes a little later.
        deadline = self._clock.monotonic() + LEFT_SECONDS
        while self._clock.monotonic() < deadline and self._is_work_left():
            self._takeover.sweep()
            time.sleep(WAIT_SECONDS)

    def _is_work_left(self) -> bool:
        return any(each.record.header.node.startswith("spark@") for each in self._survey.look())

    def _leave(self) -> None:
        if self._is_present:
            self._is_present = False
            self._vigil.stop()
            self._incarnation.close()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise ProcessingStopped("the job was told to stop; what is left is there for the next one")

    def _pending(self) -> Pending:
        return self._access.transport.pending(self._stages)

    def _paused(self) -> list[Streak]:
        return [each for each in self._access.session.streaks.paused() if each.stage in self._stages]

    def _finish_suspects(self) -> Pending:
        """Run them one by one, waiting for the next one's turn, while nothing else is there for a round of tasks."""
        while True:
            while not self._stop.is_set() and self._patiently(self._isolation.run_next):
                pass
            pending = self._patiently(self._pending)
            if (
                self._stop.is_set()
                or self._draining.is_stalled(pending)
                or not pending.is_drained_but_for_suspects
                or pending.next_suspect_at is None
            ):
                return pending
            self._on_wait(pending)
            self._stop.wait(WAIT_SECONDS)


# In the tasks


class TaskPatience:
    """Waits for the database as long as it takes; Spark ends a task by ending its process."""

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return True


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
        self._intake = Intake(app.batches(), self._incarnation.owner, self.node, 1, app.clock, is_done=self._is_done)
        self._watch = ThreadWatch(self._incarnation, 0, app.clock, self._access.work.interrupt)
        self._callbacks = CallbackPool()
        self._housekeeper = Housekeeper(
            app, self._intake, self._incarnation, self.node, needs=driver, on_alone=self._end_early
        )
        self._vigil = Vigil(
            self._incarnation,
            [self._watch],
            on_stuck=self._end_stuck,
            on_orphaned=lambda _: os._exit(1),
            parent=os.getppid(),
        )
        self._vigil.start()
        self._housekeeper.start()

    def run(self) -> int:
        patience = TaskPatience()
        transaction = stage_transaction(
            self._app,
            self._access,
            node=self.node,
            watch=self._watch,
            patience=patience,
            after_commit=self._callbacks,
        )
        try:
            return work(self._intake, self._access, transaction, self._app.clock, patience)
        finally:
            transaction.close()

    def close(self) -> None:
        """Everything this attempt held is given back, whatever ended it."""
        self._intake.stop()
        self._housekeeper.finish()
        if self._housekeeper.error is not None:
            logger.error(
                "what this task held is given back by whoever takes over: %s",
                self._housekeeper.error,
                extra={"event": "not-given-back"},
            )
        self._callbacks.close()
        self._vigil.stop()
        self._access.close()
        self._incarnation.close()

    def _is_done(self, pending: Pending) -> bool:
        """Suspects are left to the driver."""
        return self._draining.is_stalled(pending) or pending.is_drained_but_for_suspects

    def _end_early(self) -> None:
        """The driver has left: take no more. What runs on for too long is ended with its process, and is no death."""
        self._intake.stop()
        self._incarnation.abandon()

    def _end_stuck(self, stuck: object) -> None:
        self._watch.mark_timed_out()
        os._exit(EXIT_STUCK)
