"""Rounds of claim loops: one task for each slot of the cluster, also for the slots of executors that join late."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark.sql import SparkSession

from stagepost.pipeline.jobs.claim_loop import ProcessingPlan, run_claim_loop
from stagepost.pipeline.session import cancel_jobs, slots
from stagepost.runtime.service import Service, StopFlag

WAIT_SECONDS = 0.2
# How often the driver looks at the number of slots.
SLOTS_SECONDS = 10.0
# The time that tasks get to finish their messages after a request to stop.
GRACE_SECONDS = 30.0

# Spark needs a schema of the tasks' result, which has no rows.
RAN = "task int"


class Round:
    """One round. Spark runs it as a job, and as one more job for each time that executors joined it."""

    def __init__(self, spark: SparkSession, plan: ProcessingPlan, monotonic: Callable[[], float]) -> None:
        self._spark = spark
        self._plan = plan
        self._monotonic = monotonic
        self._jobs: list[Service] = []
        self._loops = 0
        self._add(slots(spark))

    def wait(self, stop: StopFlag) -> BaseException | None:
        """Wait for the end of all loops, or for a request to stop. Return Spark's error if one failed."""
        looked = self._monotonic()
        while not self.has_ended(WAIT_SECONDS) and not stop.is_stopped:
            if self._monotonic() - looked >= SLOTS_SECONDS:
                looked = self._monotonic()
                self._add(slots(self._spark) - self._loops)
        return next((each.error for each in self._jobs if each.error is not None), None)

    def has_ended(self, seconds: float) -> bool:
        """Wait at most this long for the end of all loops. Return whether they have ended."""
        deadline = self._monotonic() + seconds
        return all(each.join(deadline - self._monotonic()) for each in self._jobs)

    def end(self) -> bool:
        """Wait for tasks that were asked to stop. Return False if Spark ended some that did not stop in time."""
        deadline = self._monotonic() + GRACE_SECONDS
        while self._monotonic() < deadline:
            if self.has_ended(WAIT_SECONDS):
                return True
        while not self.has_ended(WAIT_SECONDS):
            cancel_jobs(self._spark)
        return False

    def _add(self, loops: int) -> None:
        if loops <= 0:
            return
        self._loops += loops
        self._jobs.append(Service("round", partial(self._run, loops)))
        self._jobs[-1].start()

    def _run(self, loops: int) -> None:
        # The description belongs to the thread that starts the job.
        self._spark.sparkContext.setJobDescription("process: claim loops")
        self._spark.range(0, loops, 1, loops).mapInArrow(partial(run_claim_loop, self._plan), RAN).collect()
