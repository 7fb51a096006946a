"""A thread's watch: the interrupt of a handler that takes too long, and what is on record meanwhile."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stagepost import TimeLimitExceeded
from stagepost.ports.liveness import Running
from stagepost.runtime.watchdog import ThreadWatch
from stagepost.store.sqlite.lock_file import LockFile, read_record
from stagepost.testing import ManualClock
from tests.liveness.scripted_worker import claim
from tests.waiting import PATIENCE_SECONDS, STANDSTILL_SECONDS, wait_until

LIMIT = 10.0
YIELD = 5.0


class Attempt:
    """A handler in a thread of its own, under a watch. ``error`` is what came out of it."""

    def __init__(self, watch: ThreadWatch, handler: Callable[[], Any], interrupt: Callable[[], None] | None) -> None:
        self.error: BaseException | None = None
        self.is_quiet_afterwards = False
        self.is_running = threading.Event()
        self.may_end = threading.Event()
        self._watch = watch
        self._handler = handler
        self._interrupt = interrupt
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._watch.handling(self._interrupt):
                self.is_running.set()
                self._handler()
        except BaseException as error:  # noqa: BLE001 - it is looked at
            self.error = error
        # An interrupt that came too late would arrive here.
        for _ in range(10_000):
            pass
        self.is_quiet_afterwards = True

    def over(self) -> Attempt:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return self


class Desk:
    """A watch on a clock that is moved by hand."""

    def __init__(self, incarnation: LockFile, clock: ManualClock) -> None:
        self.clock = clock
        self.interrupted_statements = 0
        self.incarnation = incarnation
        self.watch = ThreadWatch(incarnation, 0, clock, self._interrupt_statement, YIELD)

    def _interrupt_statement(self) -> None:
        self.interrupted_statements += 1

    def attempt(self, handler: Callable[[], Any], interrupt: Callable[[], None] | None = None) -> Attempt:
        self.watch.started(claim(1, 1), LIMIT)
        attempt = Attempt(self.watch, handler, interrupt)
        attempt.is_running.wait(PATIENCE_SECONDS)
        return attempt

    def pass_limit(self) -> bool:
        self.clock.advance(LIMIT + 0.001)
        return self.watch.check()


@pytest.fixture
def desk(incarnation: LockFile, clock: ManualClock) -> Desk:
    return Desk(incarnation, clock)


def spin() -> None:
    while True:
        pass


def recorded(incarnation: LockFile) -> tuple[Running, ...]:
    """By its own descriptor: opening the file again would drop its lock."""
    record = read_record(incarnation._descriptor, "")
    assert record is not None
    return record.running


def test_a_handler_within_its_limit_is_left_alone(desk: Desk) -> None:
    release = threading.Event()
    attempt = desk.attempt(release.wait)
    desk.clock.advance(LIMIT)
    assert not desk.watch.check()
    release.set()
    assert attempt.over().error is None
    assert desk.interrupted_statements == 0


def test_a_handler_over_its_limit_is_interrupted_at_its_next_line(desk: Desk) -> None:
    attempt = desk.attempt(spin)
    assert not desk.pass_limit()
    assert isinstance(attempt.over().error, TimeLimitExceeded)
    assert attempt.is_quiet_afterwards
    assert desk.interrupted_statements == 1


def test_a_handler_is_interrupted_once_and_not_again_in_its_cleaning_up(desk: Desk) -> None:
    is_inside, cleaned = threading.Event(), threading.Event()

    def handler() -> None:
        try:
            is_inside.set()
            spin()
        finally:
            for _ in range(3):
                desk.watch.check()
            cleaned.set()

    attempt = desk.attempt(handler)
    is_inside.wait(PATIENCE_SECONDS)
    desk.pass_limit()
    assert isinstance(attempt.over().error, TimeLimitExceeded)
    assert cleaned.is_set()


def test_a_handler_that_swallows_the_interrupt_and_returns_has_failed_all_the_same(desk: Desk) -> None:
    def handler() -> None:
        with suppress(TimeLimitExceeded):
            spin()

    attempt = desk.attempt(handler)
    desk.pass_limit()
    assert isinstance(attempt.over().error, TimeLimitExceeded)


def test_a_handler_that_raises_something_else_after_the_interrupt_failed_by_its_limit_because_of_that(
    desk: Desk,
) -> None:
    is_inside = threading.Event()

    def handler() -> None:
        try:
            is_inside.set()
            spin()
        except TimeLimitExceeded:
            raise ValueError("cleaning up went wrong") from None

    attempt = desk.attempt(handler)
    is_inside.wait(PATIENCE_SECONDS)
    desk.pass_limit()
    error = attempt.over().error
    assert isinstance(error, TimeLimitExceeded)
    assert isinstance(error.__cause__, ValueError)


def test_an_interrupt_that_could_not_arrive_in_time_does_not_arrive_afterwards(desk: Desk) -> None:
    """The handler is in C code until its very end, so that nothing can be raised in it."""
    release: queue.SimpleQueue[None] = queue.SimpleQueue()

    def handler() -> None:
        for _ in iter(release.get, None):
            pass

    attempt = desk.attempt(handler)
    desk.pass_limit()
    release.put(None)
    assert isinstance(attempt.over().error, TimeLimitExceeded)
    assert attempt.is_quiet_afterwards


def test_an_interrupt_that_arrives_while_the_handler_is_being_left_leaves_no_trace_in_the_watch(desk: Desk) -> None:
    """It is raised in ``__exit__`` itself, before that could switch the interrupts off."""
    release: queue.SimpleQueue[None] = queue.SimpleQueue()
    errors: list[BaseException] = []
    is_running = threading.Event()

    def run() -> None:
        try:
            with desk.watch.handling(None):
                is_running.set()
                # A loop's end is no place to raise at, and the next one is in __exit__.
                for _ in iter(release.get, None):
                    pass
        except TimeLimitExceeded as error:
            errors.append(error)
        finally:
            desk.watch.handled()

    desk.watch.started(claim(1, 1), LIMIT)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    is_running.wait(PATIENCE_SECONDS)
    desk.pass_limit()
    release.put(None)
    thread.join(PATIENCE_SECONDS)
    assert len(errors) == 1
    desk.watch.ended(is_settled=True)
    desk.clock.advance(YIELD + 1)
    assert not desk.watch.check()


def test_a_handler_that_does_not_yield_is_stuck_when_the_time_to_yield_is_over(desk: Desk) -> None:
    is_inside, release = threading.Event(), threading.Event()

    def handler() -> None:
        while True:
            try:
                is_inside.set()
                while not release.is_set():
                    pass
                return
            except TimeLimitExceeded:
                pass

    attempt = desk.attempt(handler)
    is_inside.wait(PATIENCE_SECONDS)
    assert not desk.pass_limit()
    desk.clock.advance(YIELD)
    assert (desk.watch.check(), desk.watch.is_stuck) == (False, False)
    desk.clock.advance(0.001)
    assert (desk.watch.check(), desk.watch.is_stuck) == (True, True)
    release.set()
    assert isinstance(attempt.over().error, TimeLimitExceeded)
    assert (desk.watch.check(), desk.watch.is_stuck) == (False, False)


def test_what_waits_for_the_database_is_not_over_its_time(desk: Desk) -> None:
    waits, release, waited = threading.Event(), threading.Event(), threading.Event()

    def handler() -> None:
        with desk.watch.waiting():
            waits.set()
            release.wait(PATIENCE_SECONDS)
        waited.set()
        spin()

    attempt = desk.attempt(handler)
    waits.wait(PATIENCE_SECONDS)
    desk.clock.advance(100 * LIMIT)
    assert not desk.watch.check()
    release.set()
    waited.wait(PATIENCE_SECONDS)
    desk.clock.advance(LIMIT)
    assert not desk.watch.check()
    assert desk.interrupted_statements == 0
    # From here on its time runs again.
    desk.clock.advance(0.001)
    desk.watch.check()
    assert isinstance(attempt.over().error, TimeLimitExceeded)


def test_what_the_last_one_waited_is_not_time_of_the_next_one(desk: Desk) -> None:
    def wait() -> None:
        with desk.watch.waiting():
            desk.clock.advance(100 * LIMIT)

    assert desk.attempt(wait).over().error is None
    attempt = desk.attempt(spin)
    attempt.is_running.wait(PATIENCE_SECONDS)
    desk.clock.advance(LIMIT + 0.001)
    desk.watch.check()
    assert isinstance(attempt.over().error, TimeLimitExceeded)


def test_a_handler_that_is_over_its_time_when_it_wants_to_wait_for_the_database_does_not_get_to(desk: Desk) -> None:
    release: queue.SimpleQueue[None] = queue.SimpleQueue()
    entered = threading.Event()

    def handler() -> None:
        for _ in iter(release.get, None):
            pass
        with desk.watch.waiting():
            entered.set()

    attempt = desk.attempt(handler)
    desk.pass_limit()
    release.put(None)
    assert isinstance(attempt.over().error, TimeLimitExceeded)
    assert not entered.is_set()


def test_waiting_for_the_database_after_the_handler_is_interrupted_by_nothing(desk: Desk) -> None:
    """Where the handler did not touch the database, its transaction begins when it has returned."""
    desk.watch.started(claim(1, 1), LIMIT)
    with desk.watch.handling(None):
        pass
    with desk.watch.waiting():
        assert not desk.pass_limit()
    assert not desk.pass_limit()
    assert desk.interrupted_statements == 0


def test_an_async_handler_is_cancelled_by_its_own_interrupt_and_nothing_is_raised_in_its_thread(desk: Desk) -> None:
    release, cancelled = threading.Event(), threading.Event()
    attempt = desk.attempt(release.wait, cancelled.set)
    desk.pass_limit()
    assert cancelled.is_set()
    assert desk.interrupted_statements == 1
    release.set()
    error = attempt.over().error
    assert isinstance(error, TimeLimitExceeded)
    assert error.__cause__ is None


def test_each_attempt_has_its_time_to_itself(desk: Desk) -> None:
    attempt = desk.attempt(spin)
    desk.pass_limit()
    assert isinstance(attempt.over().error, TimeLimitExceeded)
    release = threading.Event()
    attempt = desk.attempt(release.wait)
    desk.clock.advance(LIMIT - 1)
    assert not desk.watch.check()
    release.set()
    assert attempt.over().error is None


def test_what_runs_is_on_record_from_its_start_until_the_next_one_or_until_it_is_known_unsettled(desk: Desk) -> None:
    desk.watch.started(claim(7, 2), LIMIT)
    assert recorded(desk.incarnation) == (Running("running", 7, 2),)
    assert desk.watch.claim == claim(7, 2)
    desk.watch.mark_timed_out()
    assert recorded(desk.incarnation) == (Running("timed-out", 7, 2),)
    desk.watch.ended(is_settled=False)
    assert recorded(desk.incarnation) == ()
    desk.watch.started(claim(8, 1), LIMIT)
    # Settled: its fence matches nothing any more, so it may stay where it is.
    desk.watch.ended(is_settled=True)
    desk.watch.started(claim(9, 1), LIMIT)
    assert recorded(desk.incarnation) == (Running("running", 9, 1),)


def test_watches_of_one_incarnation_write_to_slots_of_their_own(incarnation: LockFile, clock: ManualClock) -> None:
    first, second = (ThreadWatch(incarnation, slot, clock, lambda: None) for slot in (0, 2))
    first.started(claim(1, 1), LIMIT)
    second.started(claim(2, 1), LIMIT)
    first.mark_timed_out()
    assert set(recorded(incarnation)) == {Running("timed-out", 1, 1), Running("running", 2, 1)}


def test_a_thread_id_is_that_of_the_thread_that_handles(desk: Desk) -> None:
    """The one that was interrupted before is not hit when another thread runs the next attempt."""
    first = desk.attempt(spin)
    desk.pass_limit()
    first.over()
    release = threading.Event()
    bystander = Attempt(ThreadWatch(desk.incarnation, 1, desk.clock, lambda: None), release.wait, None)
    second = desk.attempt(spin)
    desk.pass_limit()
    assert isinstance(second.over().error, TimeLimitExceeded)
    release.set()
    assert bystander.over().error is None


def test_the_record_is_written_before_the_attempt_begins_whatever_process_reads_it(
    desk: Desk, incarnation: LockFile, tmp_path: Path
) -> None:
    desk.watch.started(claim(3, 1), LIMIT)
    child = os.fork()
    if child == 0:
        # Forked: its own closing drops no lock of ours.
        os._exit(0 if Running("running", 3, 1) in recorded(incarnation) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    wait_until(lambda: desk.watch.claim is not None, "it runs")


def suppress_the_limit() -> None:
    with suppress(TimeLimitExceeded):
        spin()


@pytest.mark.parametrize("handler", [spin, suppress_the_limit], ids=["yields", "swallows"])
def test_a_debugger_can_trace_a_process_in_which_a_time_limit_was_exceeded(
    desk: Desk, handler: Callable[[], None]
) -> None:
    attempt = desk.attempt(handler)
    desk.pass_limit()
    attempt.over()

    def trace() -> None:
        sys.settrace(lambda *_: None)
        threading.get_ident()
        str.join("", (each for each in "traced"))
        sys.settrace(None)

    traced = threading.Thread(target=trace, daemon=True)
    traced.start()
    traced.join(STANDSTILL_SECONDS)
    assert not traced.is_alive()
