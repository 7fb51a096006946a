"""Rounds of claim loops: their number follows the slots, and what ends a loop early is told. Spark is not needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from stagepost.flow.clock import SECOND
from stagepost.flow.errors import DeclarationError, StoreUnavailable
from stagepost.pipeline.jobs import claim_loop, rounds
from stagepost.pipeline.jobs.claim_loop import LoopFailure, ProcessingPlan, seconds_of_attempt
from stagepost.pipeline.jobs.rounds import SLOTS_SECONDS, Round
from stagepost.runtime.service import StopFlag
from stagepost.runtime.settings import Place
from stagepost.testing import ManualClock
from tests.waiting import wait_until

# No test reaches the end of such a round.
LONG = 1e9


class Slots:
    """Implements ``Loops``: loops that run until they are told to end, on a number of slots that a test sets."""

    def __init__(self, slots: int) -> None:
        self.now = slots
        self.jobs: list[int] = []
        self.seconds: list[float] = []
        self.cancelled = 0
        self.failures: list[LoopFailure] = []
        self.error: Exception | None = None
        self.end = threading.Event()

    def slots(self) -> int:
        return self.now

    def run(self, loops: int, seconds: float) -> list[LoopFailure]:
        self.jobs.append(loops)
        self.seconds.append(seconds)
        if self.error is not None:
            raise self.error
        self.end.wait()
        return self.failures

    def cancel(self) -> None:
        self.cancelled += 1
        self.end.set()


class Seconds:
    """A clock that passes the time between two looks at the slots at each reading."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += SLOTS_SECONDS
        return self._now


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "WAIT_SECONDS", 0.001)


@pytest.fixture
def stop() -> Iterator[StopFlag]:
    flag = StopFlag()
    yield flag
    flag.stop()


def waiting(made: Round, stop: StopFlag) -> tuple[threading.Thread, list[BaseException | None]]:
    found: list[BaseException | None] = []
    thread = threading.Thread(target=lambda: found.append(made.wait(lambda: stop.is_stopped)))
    thread.start()
    return thread, found


def test_each_slot_gets_a_loop_and_so_does_each_that_comes_later(stop: StopFlag) -> None:
    cluster = Slots(2)
    thread, found = waiting(Round(cluster, LONG, Seconds()), stop)
    wait_until(lambda: cluster.jobs == [2], "the first slots have loops")
    cluster.now = 5
    wait_until(lambda: cluster.jobs == [2, 3], "the new slots have loops")
    # Spark runs the tasks of a lost executor again by itself, where there is a slot.
    cluster.now = 1
    cluster.now = 5
    cluster.now = 6
    wait_until(lambda: cluster.jobs == [2, 3, 1], "one more slot has a loop")
    cluster.end.set()
    thread.join()
    assert found == [None]
    assert cluster.jobs == [2, 3, 1]


def test_a_loop_that_joins_late_ends_with_the_others(stop: StopFlag) -> None:
    """Else the slots of the others would be idle, because the next round begins when all loops have ended."""
    cluster, clock = Slots(2), [7.0]
    thread, _ = waiting(Round(cluster, 300.0, lambda: clock[0]), stop)
    wait_until(lambda: cluster.seconds == [300.0], "the first slots have loops")
    cluster.now, clock[0] = 3, 257.0
    wait_until(lambda: cluster.seconds == [300.0, 50.0], "the new slot has a loop for the rest of the round")
    cluster.now, clock[0] = 4, 308.0
    cluster.end.set()
    thread.join()
    assert cluster.jobs == [2, 1]


def test_a_round_begins_when_there_is_a_slot(stop: StopFlag) -> None:
    cluster, clock = Slots(0), [0.0]
    thread, _ = waiting(Round(cluster, 300.0, lambda: clock[0]), stop)
    wait_until(lambda: cluster.jobs == [1], "one loop waits")
    cluster.now, clock[0] = 4, 900.0
    wait_until(lambda: cluster.jobs == [1, 3], "the other slots have loops")
    assert cluster.seconds[1] == 300.0
    cluster.end.set()
    thread.join()


@pytest.mark.parametrize(
    ("attempt", "at", "seconds"), [(0, 250, 300.0), (1, 250, 50.0), (1, 301, 0.0), (2, -99, 300.0)]
)
def test_a_task_that_runs_again_after_a_death_ends_with_the_others(
    monkeypatch: pytest.MonkeyPatch, attempt: int, at: int, seconds: float
) -> None:
    context = SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr(claim_loop, "TaskContext", SimpleNamespace(get=lambda: context))
    plan = ProcessingPlan("shop:app", ".", Place("memory:", None), round_seconds=300.0, round_ends_at=300 * SECOND)
    assert seconds_of_attempt(plan, ManualClock(at * SECOND)) == seconds


def test_before_the_first_executor_one_loop_waits_for_it(stop: StopFlag) -> None:
    """A cluster that grows on demand starts an executor for a task that waits, and for nothing else."""
    cluster = Slots(0)
    thread, _ = waiting(Round(cluster, LONG, Seconds()), stop)
    wait_until(lambda: cluster.jobs == [1], "one loop waits")
    cluster.now = 4
    wait_until(lambda: cluster.jobs == [1, 3], "the other slots have loops")
    cluster.end.set()
    thread.join()


def test_the_slots_are_looked_at_now_and_then() -> None:
    cluster, stop = Slots(1), StopFlag()
    made = Round(cluster, LONG, lambda: 0.0)
    thread, _ = waiting(made, stop)
    cluster.now = 4
    stop.stop()
    thread.join()
    assert cluster.jobs == [1]
    cluster.end.set()


def test_a_round_that_failed_gets_no_more_loops(stop: StopFlag) -> None:
    cluster = Slots(1)
    cluster.error = RuntimeError("told to fail")
    made = Round(cluster, LONG, Seconds())
    wait_until(lambda: made.has_ended(1), "the job has failed")
    cluster.now = 4
    assert made.wait(lambda: stop.is_stopped) is cluster.error
    assert cluster.jobs == [1]


@pytest.mark.parametrize("kind", [DeclarationError, StoreUnavailable])
def test_what_kept_a_loop_from_beginning_is_the_rounds_error(
    stop: StopFlag, kind: type[DeclarationError | StoreUnavailable]
) -> None:
    cluster = Slots(2)
    cluster.failures = [LoopFailure(kind.code, "no module 'shop'")]
    cluster.end.set()
    error = Round(cluster, LONG, Seconds()).wait(lambda: stop.is_stopped)
    assert type(error) is kind
    assert str(error) == "no module 'shop'"


def test_told_to_end_a_round_waits_for_its_loops_and_then_cancels_them() -> None:
    kind, stubborn = Slots(1), Slots(1)
    made = Round(kind, LONG, lambda: 0.0)
    kind.end.set()
    assert made.end()
    assert kind.cancelled == 0
    made = Round(stubborn, LONG, Seconds())
    assert not made.end()
    assert stubborn.cancelled >= 1
