"""The thread that beats a process's heart, enforces its time limits, and sees when nobody wants it any more."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from stagepost.flow.clock import SystemClock
from stagepost.flow.ids import RandomIds
from stagepost.liveness.incarnation import registration
from stagepost.runtime.watchdog import ThreadWatch, Watchdog
from stagepost.store.sqlite.lock_file import LockFile
from tests.waiting import wait_until


class Watch:
    """Says what it was told to say."""

    def __init__(self, *, is_stuck: bool = False, error: Exception | None = None) -> None:
        self.is_stuck = is_stuck
        self.error = error
        self.checks = 0

    def check(self) -> bool:
        self.checks += 1
        if self.error is not None:
            raise self.error
        return self.is_stuck


class Guarded:
    def __init__(self, folder: Path, watches: Sequence[Watch], parent: int | None) -> None:
        clock = SystemClock()
        self.incarnation = LockFile(
            folder, registration("bank", "worker@here:1", RandomIds(clock, Random(0)), clock), clock
        )
        self.stuck: list[list[Watch]] = []
        self.orphaned: list[str] = []
        self.watchdog = Watchdog(
            self.incarnation,
            watches,  # type: ignore[arg-type]  # all that is asked of them is check
            on_stuck=self._on_stuck,
            on_orphaned=self.orphaned.append,
            parent=parent,
        )

    def _on_stuck(self, watches: Sequence[ThreadWatch]) -> None:
        self.stuck.append(list(watches))  # type: ignore[arg-type]

    def beats(self) -> Callable[[], bool]:
        """A condition: the heart has beaten since."""
        before = self.incarnation.path.stat().st_mtime_ns
        return lambda: self.incarnation.path.stat().st_mtime_ns != before


@contextmanager
def guarded(folder: Path, *watches: Watch, parent: int | None = None) -> Iterator[Guarded]:
    found = Guarded(folder, watches, parent)
    found.watchdog.start()
    try:
        yield found
    finally:
        found.watchdog.stop()
        found.watchdog.join()
        found.incarnation.close()


def test_the_heart_beats_on_and_on(folder: Path) -> None:
    with guarded(folder) as found:
        for _ in range(2):
            wait_until(found.beats(), "the heart has beaten")
        assert found.orphaned == []


def test_every_watch_is_checked_again_and_again(folder: Path) -> None:
    first, second = Watch(), Watch()
    with guarded(folder, first, second):
        wait_until(lambda: min(first.checks, second.checks) > 3, "both were checked")


def test_a_stuck_attempt_is_told_of_once(folder: Path) -> None:
    fine, stuck = Watch(), Watch()
    with guarded(folder, fine, stuck) as found:
        wait_until(lambda: stuck.checks > 0, "it was checked")
        stuck.is_stuck = True
        wait_until(lambda: found.stuck, "it was told of")
        checks = stuck.checks
        wait_until(lambda: stuck.checks > checks + 2, "it was checked again")
        assert found.stuck == [[stuck]]


def test_an_attempt_that_gets_stuck_after_another_one_is_told_of_too(folder: Path) -> None:
    first, second = Watch(is_stuck=True), Watch()
    with guarded(folder, first, second) as found:
        wait_until(lambda: found.stuck, "the first one was told of")
        second.is_stuck = True
        checks = second.checks
        wait_until(lambda: second.checks > checks + 2, "the second one was checked")
        assert any(second in each for each in found.stuck)


def test_a_removed_lock_file_is_told_of_once_and_named(folder: Path) -> None:
    watch = Watch()
    with guarded(folder, watch) as found:
        found.incarnation.path.unlink()
        wait_until(lambda: found.orphaned, "it was told of")
        checks = watch.checks
        wait_until(lambda: watch.checks > checks + 15, "more than a heartbeat has passed")
        (reason,) = found.orphaned
        assert str(found.incarnation.path) in reason


def test_another_parent_than_the_one_that_started_it_is_told_of(folder: Path) -> None:
    with guarded(folder, parent=2**22 + 1) as found:
        wait_until(lambda: found.orphaned, "it was told of")
        assert str(2**22 + 1) in found.orphaned[0]


def test_the_parent_that_started_it_is_no_reason_to_stop(folder: Path) -> None:
    with guarded(folder, parent=os.getppid()) as found:
        wait_until(found.beats(), "the heart has beaten")
        assert found.orphaned == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watch_that_cannot_be_checked_does_not_stop_the_heart(folder: Path) -> None:
    """Such as when the statement to break off belongs to a connection that is being closed."""
    broken, other = Watch(error=RuntimeError("cannot operate on a closed database")), Watch()
    with guarded(folder, broken, other) as found:
        wait_until(lambda: broken.checks > 0, "it was tried")
        wait_until(found.beats(), "the heart has beaten")
        assert other.checks > 0


def test_stopping_ends_the_thread(folder: Path) -> None:
    with guarded(folder) as found:
        found.watchdog.stop()
        found.watchdog.join()
        assert not any(thread.name == "watchdog" for thread in threading.enumerate())
