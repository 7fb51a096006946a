"""Child processes of a command: start them, replace those that die, and stop them."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stagepost.flow.clock import Clock
from stagepost.runtime.isolation import describe_exit
from stagepost.runtime.service import StopFlag

TURN_SECONDS = 0.05
RESTART_SECONDS_FIRST = 0.1
RESTART_SECONDS_MAX = 5.0
LIVED_WELL_SECONDS = 5.0
# The time that a process may take beyond its grace before it is killed.
BEYOND_GRACE_SECONDS = 5.0
# The exit code of a child that cannot work, and has logged the reason.
CANNOT_START = 2

logger = logging.getLogger(__name__)


@dataclass
class Child:
    """A process that should run: ``module`` with one argument, ``plan``.

    ``descriptors`` are handed on to it, and ``environment`` is its own, in place of that of all children.
    """

    name: str
    module: str
    plan: str
    descriptors: Sequence[int] = ()
    environment: Mapping[str, str] | None = None
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restart_at: float = 0.0
    died_young: int = 0


class Children:
    """Keeps children running until a signal stops the command. ``environment`` is theirs.

    They get ``grace`` seconds to end after ``on_stop`` was called.
    """

    def __init__(
        self,
        children: Sequence[Child],
        environment: Mapping[str, str],
        clock: Clock,
        grace: float,
        on_stop: Callable[[], None],
    ) -> None:
        self._on_stop = on_stop
        self._children = children
        self._environment = environment
        self._clock = clock
        self._grace = grace
        self._signals = 0
        self._exit_code = 0
        self._pause = StopFlag()

    def run(self) -> int:
        """Run until a signal. Return 0, or the exit code of a child that cannot start."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop_signalled())
        try:
            while not (self._signals or self._exit_code):
                for each in self._children:
                    self._tend(each)
                self._pause.wait(TURN_SECONDS)
        finally:
            self._stop_all()
        return self._exit_code

    def _tend(self, child: Child) -> None:
        now = self._clock.monotonic()
        if child.process is None:
            if now >= child.restart_at:
                self._start(child)
            return
        how = child.process.poll()
        if how is None:
            return
        child.process = None
        if how == CANNOT_START:
            self._exit_code = CANNOT_START
            return
        lived = now - child.started_at
        child.died_young = 0 if lived > LIVED_WELL_SECONDS else child.died_young + 1
        pause = min(RESTART_SECONDS_FIRST * 2.0 ** min(child.died_young, 10), RESTART_SECONDS_MAX)
        child.restart_at = now + (pause if child.died_young else 0.0)
        logger.warning(
            "%s ended after %.1f s by %s, replacing it",
            child.name,
            lived,
            describe_exit(how),
            extra={"event": "process-ended"},
        )

    def _start(self, child: Child) -> None:
        child.process = subprocess.Popen(
            [sys.executable, "-m", child.module, child.plan],
            stdin=subprocess.DEVNULL,
            env=dict(self._environment if child.environment is None else child.environment),
            pass_fds=tuple(child.descriptors),
            # Ctrl-C in a terminal reaches the whole group, but only the parent tells a child to stop.
            start_new_session=True,
        )
        child.started_at = self._clock.monotonic()

    def _stop_all(self) -> None:
        self._on_stop()
        running = [each.process for each in self._children if each.process is not None]
        for process in running:
            process.terminate()
        deadline = self._clock.monotonic() + self._grace + BEYOND_GRACE_SECONDS
        while any(process.poll() is None for process in running):
            if self._clock.monotonic() > deadline or self._signals > 1:
                for process in running:
                    process.kill()
            self._pause.wait(TURN_SECONDS)

    def _stop_signalled(self) -> None:
        self._signals += 1
