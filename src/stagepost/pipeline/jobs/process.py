"""Processing on Spark: executors run claim loops around the same stage transaction as a worker.

The queue holds all state, so the job keeps no offset. A task that dies causes a redelivery, workers may run the same
app at the same time, and a repeated job continues with the rest. The driver does four things: it starts rounds of
tasks until the queue is drained, runs suspects one at a time beside them, receives from the app's broker and dispatches
to it, and reports the messages it waits for.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from pyspark.sql import SparkSession

from stagepost.flow.errors import StagepostError, StoreError, StoreUnavailable
from stagepost.flow.ids import node_name
from stagepost.flow.texts import as_sentence
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error, is_cancelled
from stagepost.pipeline.jobs.claim_loop import ProcessingPlan
from stagepost.pipeline.jobs.rounds import WAIT_SECONDS, Round, SparkLoops
from stagepost.pipeline.session import is_usable, refuse_speculation, require_one_host
from stagepost.ports.liveness import Incarnation
from stagepost.ports.queue import Pending
from stagepost.runtime.assembly import check_databases, takeover_of
from stagepost.runtime.declarations import UndeclaredStages, declare_stages
from stagepost.runtime.edge import check_broker
from stagepost.runtime.edge_drain import AWAY_SECONDS, EdgeDrain
from stagepost.runtime.edge_threads import EdgeThreads
from stagepost.runtime.engine import Engine
from stagepost.runtime.isolation import AppToRun, Isolation
from stagepost.runtime.prefetch import Draining
from stagepost.runtime.purge_service import PurgeService, can_purge
from stagepost.runtime.relay_service import RelayService, needs_relay
from stagepost.runtime.service import Service, StopFlag
from stagepost.runtime.watchdog import Watchdog
from stagepost.transaction.database_wait import retried
from stagepost.transaction.stage import DIRECT

logger = logging.getLogger(__name__)
T = TypeVar("T")

# The time that the relay gets to finish. Later starts send the rest, perhaps a second time.
RELAY_SECONDS = 10.0
# The time after that in which the driver takes over the claims of ended tasks.
LEFT_SECONDS = 10.0
# The number of failed rounds in a row without progress after which the job fails.
FRUITLESS_ROUNDS_MAX = 3
# The pause after the first of these rounds. Each further pause is longer by this factor.
PAUSE_SECONDS_FIRST = 1.0
PAUSE_GROWTH = 5.0


class ProcessingFailed(StagepostError):
    """Rounds of tasks failed without progress, or the job was cancelled. The cause is Spark's own error."""

    code = "processing-failed"


class ProcessingStopped(StagepostError):
    """A request stopped the job. The next job continues with the remaining messages."""

    code = "processing-stopped"


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

    With a broker, the job then ends when nothing more arrives, and when all messages for other services have left.
    Stages in the direct modes take their deliveries in workers alone.

    A continuous job ends only on request. When ``stop`` is set, the tasks take no more messages, finish those that
    run, and release the others. ``ProcessingStopped`` is raised then. Raises ``ProcessingFailed`` if rounds fail
    without progress, or the job was cancelled in Spark. Raises ``DeclarationError`` if an executor cannot import the
    app, or if the session runs copies of slow tasks.
    """
    refuse_speculation(spark, "that would count as the death of the message that runs in it")
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
        has_broker = engine.databases.broker is not None
        if has_broker:
            check_broker(engine)
            warn_of_direct_stages(engine)
        declare_stages(engine)
        self._clock = engine.clock
        self._access = engine.access()
        node = node_name("driver")
        self._incarnation = engine.incarnate(node)
        self._is_present = True
        self._plan = replace(plan, driver=self._incarnation.owner)
        self._watchdog = Watchdog(self._incarnation, on_orphaned=lambda _: os._exit(1))
        self._draining = Draining()
        self._undeclared = UndeclaredStages(engine, self._access.session)
        self._detector = engine.detector()
        self._takeover = takeover_of(engine, self._access, node, self._detector)
        # No thread has started yet: one would go on if a later line raised.
        self._edge = EdgeThreads(engine, on_orphaned=lambda _: os._exit(1)) if has_broker else None
        self._services: list[Service] = [SuspectRunner(engine, plan, self._incarnation, node)]
        if needs_relay(engine):
            self._services.append(RelayService(engine, node))
        if can_purge(engine):
            self._services.append(PurgeService(engine))
        self._watchdog.start()
        for service in self._services:
            service.start()
        if self._edge is not None:
            self._edge.start()

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
                self._stop.wait(PAUSE_SECONDS_FIRST * PAUSE_GROWTH ** (fruitless - 1) if fruitless else WAIT_SECONDS)
            pending = self._wait_for_work()
            self._check_stop()
            if self._plan.is_continuous:
                continue
            if self._draining.is_stalled(pending):
                paused = self._with_retries(self._access.session.circuits.paused)
                errors = [f"{each.stage}: {each.error}" for each in paused if each.stage in self._stages]
                raise ProcessingFailed(f"the remaining messages wait at paused stages: {'; '.join(errors)}")
            if pending.is_drained:
                return ProcessingReport(self._with_retries(lambda: journal.since(begin)).committed, rounds, failed)

    def close(self) -> None:
        self._stop.stop()
        if self._edge is not None:
            # Claims of a dispatcher that does not end in time are taken over, as after its death.
            self._edge.stop(RELAY_SECONDS)
        for service in self._services:
            service.stop()
        for service in self._services:
            service.join(RELAY_SECONDS)
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

    def _run_round(self) -> Exception | None:
        """Run a round of tasks. Return the error if it failed for a reason that may pass."""
        try:
            loops = SparkLoops(self._spark, self._plan, self._clock.now)
            tasks = Round(loops, self._plan.round_seconds, self._clock.monotonic)
            error = tasks.wait(self._must_end)
        except SPARK_ERRORS as gone:
            # No job raises here. The driver could not ask Java for the number of slots.
            self._check_stop()
            raise _ended(gone) from gone
        if self._must_end():
            self._end_round(tasks)
        self._check_stop()
        if isinstance(error, SPARK_ERRORS) and is_cancelled(error):
            raise ProcessingFailed("the job was cancelled; the next job continues with the rest") from error
        if isinstance(error, SPARK_ERRORS) and not is_usable(self._spark):
            raise _ended(error) from error
        if error is None or isinstance(error, (*SPARK_ERRORS, StoreUnavailable)):
            return error
        raise error

    def _end_round(self, tasks: Round) -> None:
        """End the driver's incarnation, so that its tasks stop. Spark ends those that do not stop in time."""
        self._leave()
        if tasks.end():
            return
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

    def _must_end(self) -> bool:
        """Return whether the job was told to stop, or a service of the driver broke down."""
        return self._stop.is_stopped or self._error is not None

    @property
    def _error(self) -> BaseException | None:
        """The error of a service that broke down."""
        errors = [service.error for service in self._services]
        if self._edge is not None:
            errors.append(self._edge.error)
        return next((each for each in errors if each is not None), None)

    def _check_stop(self) -> None:
        if self._stop.is_stopped:
            raise ProcessingStopped("the job was stopped on request; the next job continues with the rest")
        if self._error is not None:
            raise self._error

    def _pending(self) -> Pending:
        return self._access.claimer.pending(self._stages)

    def _wait_for_work(self) -> Pending:
        """Wait until tasks have work, or until neither they, nor suspects, nor the edge have any."""
        drain: EdgeDrain | None = None
        while True:
            pending = self._with_retries(self._pending)
            self._check_stop()
            if pending.is_drained and self._edge is not None and not self._plan.is_continuous:
                drain = drain or EdgeDrain(self._edge.receiver, self._edge.dispatcher, self._stages, self._clock)
                verdict = drain.verdict(self._access)
                if verdict == "stalled":
                    raise ProcessingFailed(
                        "the stages have drained, and messages for other services are left: the broker was away or "
                        f"took none for {AWAY_SECONDS:.0f} s, or all their destinations are paused. `stagepost status` "
                        "names these. The next job, or a worker, continues."
                    )
                if verdict == "drained":
                    return pending
            elif (
                self._draining.is_stalled(pending)
                or not pending.is_drained_but_for_suspects
                or pending.next_suspect_at is None
            ):
                return pending
            self._stop.wait(WAIT_SECONDS)


def _ended(error: Exception) -> ProcessingFailed:
    return ProcessingFailed(f"{as_sentence(describe_error(error))} The next job continues with the rest")


def warn_of_direct_stages(engine: Engine) -> None:
    direct = sorted(address for address, mode in engine.modes().items() if mode in DIRECT)
    if direct:
        logger.warning(
            "a worker alone takes deliveries for %s, which consume from the broker directly: run one beside this job",
            ", ".join(direct),
            extra={"event": "direct-stages"},
        )


class SuspectRunner(Service):
    """Runs suspects beside the tasks, one at a time, each in a child of the driver."""

    def __init__(self, engine: Engine, plan: ProcessingPlan, incarnation: Incarnation, node: str) -> None:
        super().__init__("suspects", self._run_suspects)
        self._engine = engine
        # The app may be in a zip of --py-files, which this process alone has on its path.
        self._app = AppToRun(plan.app, plan.folder, plan.log_level, path=tuple(filter(None, sys.path)))
        self._incarnation = incarnation
        self._node = node

    def _run_suspects(self) -> None:
        opened = retried(logger, self._engine.access, self)
        if opened is None:
            return
        with closing(opened) as access:
            isolation = Isolation(self._engine, self._app, access, self._incarnation, self._node, self)
            try:
                while not self.is_stopped:
                    if not retried(logger, isolation.run_next, self):
                        self.wait(WAIT_SECONDS)
            finally:
                self._give_back(isolation)

    def _give_back(self, isolation: Isolation) -> None:
        try:
            isolation.close()
        except StoreError as error:
            # The incarnation's lock is freed next, so another process takes these claims over.
            logger.warning("claims not given back: %s", error, extra={"event": "not-given-back"})
