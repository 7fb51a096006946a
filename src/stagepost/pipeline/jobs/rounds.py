"""Rounds of claim loops: one task for each slot of the cluster, also for the slots of executors that join late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from pyspark.sql import SparkSession

from stagepost.flow.clock import SECOND
from stagepost.pipeline.jobs.claim_loop import LoopFailure, ProcessingPlan, run_claim_loop
from stagepost.pipeline.session import cancel_jobs, job_description, slots_now
from stagepost.runtime.service import Service

WAIT_SECONDS = 0.2
# How often the driver looks at the number of slots.
SLOTS_SECONDS = 1.0
# The time that tasks get to finish their messages after a request to stop.
GRACE_SECONDS = 30.0


class Loops(Protocol):
    """The part of Spark that a round uses."""

    def slots(self) -> int:
        """Return how many tasks the present executors run at a time."""
        ...

    def run(self, loops: int, seconds: float) -> Sequence[LoopFailure]:
        """Run that many claim loops as one job, which take messages for so long. Return why some could not begin."""
        ...

    def cancel(self) -> None:
        """End all jobs."""
        ...


class SparkLoops:
    """Implements ``Loops`` on a session."""

    def __init__(self, spark: SparkSession, plan: ProcessingPlan, now: Callable[[], int]) -> None:
        self._spark = spark
        self._plan = plan
        self._now = now

    def slots(self) -> int:
        return slots_now(self._spark)

    def run(self, loops: int, seconds: float) -> Sequence[LoopFailure]:
        ends_at = self._now() + round(seconds * SECOND)
        plan = replace(self._plan, round_seconds=seconds, round_ends_at=ends_at)
        # A DataFrame would cost the driver a plan, each executor a compiled class, and each Python process Arrow.
        numbers = self._spark.sparkContext.parallelize(range(loops), loops)
        with job_description(self._spark, f"stagepost process: {loops} claim loops"):
            return numbers.mapPartitions(partial(run_claim_loop, plan)).collect()

    def cancel(self) -> None:
        cancel_jobs(self._spark)


class Round:
    """One round of so many seconds. Spark runs it as a job, and as one more job for each time that executors joined it.

    A slot that is lost and comes back needs no new loop: Spark runs the lost task again. All loops stop taking messages
    at the same time, or the slots of those that began first would be idle until the others end.
    """

    def __init__(self, loops: Loops, seconds: float, monotonic: Callable[[], float]) -> None:
        self._loops = loops
        self._seconds = seconds
        self._monotonic = monotonic
        self._ends_at = monotonic() + seconds
        slots = loops.slots()
        self._has_slots = slots > 0
        self._jobs: list[Service] = []
        self._failures: list[LoopFailure] = []
        self._started = 0
        # Before the first executor has come, one task waits for it. A cluster that grows on demand needs that task.
        self._add(max(slots, 1))

    def wait(self, must_end: Callable[[], bool]) -> BaseException | None:
        """Wait for the end of all loops, or until the round must end. Return the first error."""
        looked = self._monotonic()
        while not self.has_ended(WAIT_SECONDS) and not must_end():
            if self._monotonic() - looked >= SLOTS_SECONDS and not any(self._errors()):
                looked = self._monotonic()
                self._follow(self._loops.slots())
        return next(self._errors(), None)

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
            self._loops.cancel()
        return False

    def _errors(self) -> Iterator[BaseException]:
        yield from (each.error for each in self._jobs if each.error is not None)
        yield from (each.as_error() for each in self._failures)

    def _follow(self, slots: int) -> None:
        if slots and not self._has_slots:
            # No loop could begin before.
            self._has_slots = True
            self._ends_at = self._monotonic() + self._seconds
        self._add(slots - self._started)

    def _add(self, loops: int) -> None:
        seconds = self._ends_at - self._monotonic()
        if loops <= 0 or seconds <= 0:
            return
        self._started += loops
        self._jobs.append(Service("round", partial(self._run, loops, seconds)))
        self._jobs[-1].start()

    def _run(self, loops: int, seconds: float) -> None:
        self._failures += self._loops.run(loops, seconds)
