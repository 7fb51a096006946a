"""Start worker processes, replace those that die, run suspects alone, and stop everything in good order.

An app with a broker has one process more, at the edge of its store.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from stagepost.flow.errors import StoreError
from stagepost.flow.ids import node_name
from stagepost.liveness.detector import PAUSED_AFTER_SECONDS
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import takeover_of
from stagepost.runtime.declarations import UndeclaredStages
from stagepost.runtime.edge import ROLE as EDGE_ROLE
from stagepost.runtime.engine import Engine
from stagepost.runtime.isolation import AppToRun, Isolation, describe_exit
from stagepost.runtime.service import Service
from stagepost.runtime.settings import handing_down
from stagepost.runtime.watchdog import Watchdog
from stagepost.transaction.database_wait import log_unavailable, retried
from stagepost.worker.child import EXIT_CANNOT_START, EXIT_DONE, EXIT_DRAINED, EXIT_STALLED, Plan

TURN_SECONDS = 0.1
SUSPECT_TURN_SECONDS = 0.25
RESTART_SECONDS_FIRST = 0.1
RESTART_SECONDS_MAX = 5.0
# A process that lived this long had started well, so its replacement starts without a pause.
LIVED_WELL_SECONDS = 5.0
# The time that a process may take beyond its grace before it is killed.
BEYOND_GRACE_SECONDS = 5.0
LOOK_SECONDS = 1.0
# A hung process is killed before other workers take over its claims, so that a death of its message is counted.
HUNG_SECONDS = PAUSED_AFTER_SECONDS / 2

# A process that has no SIGTERM handler yet dies of the signal. It had started nothing, so this is a clean exit.
IN_GOOD_ORDER = (EXIT_DONE, EXIT_DRAINED, EXIT_STALLED, -signal.SIGTERM)
# The exit codes of the command: see ``cli.main``.
WENT_WELL = 0
BROKE_OFF = 1
CANNOT_START = 2

logger = logging.getLogger(__name__)


@dataclass
class Place:
    """The place of one process that should run, and the process that runs there now.

    ``name``  of the process in log lines; ``role`` begins its node's name; ``module`` is run
    """

    name: str
    role: str = "worker"
    module: str = "stagepost.worker.process"
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restart_at: float = 0.0
    died_young: int = 0
    is_done: bool = False
    is_stalled: bool = False


class Supervisor:
    """The parent of worker processes. It ends when its own parent ``parent`` does, if it has one to watch."""

    def __init__(self, engine: Engine, plan: Plan, processes: int, parent: int | None = None) -> None:
        self._engine = engine
        self._plan = plan
        self._workers = [Place(f"worker process {number}") for number in range(1, processes + 1)]
        has_broker = engine.databases.broker is not None
        self._edges = [Place("broker process", EDGE_ROLE, "stagepost.worker.edge")] if has_broker else []
        self._places = [*self._edges, *self._workers]
        self._parent = parent
        self._signals = 0
        self._exit_code = WENT_WELL
        self._incarnation = engine.incarnate(node_name("supervisor"))
        self._detector = engine.detector(paused_after_seconds=HUNG_SECONDS)
        self._last_look = 0.0
        self._suspects = Service("suspects", self._run_suspects)

    def run(self) -> int:
        """Run until a signal stops it, or all queues have drained. Return the exit code.

        The code is ``WENT_WELL`` after draining, and after a stop that broke off no message.
        """
        signal.signal(signal.SIGTERM, self._stop_signalled)
        signal.signal(signal.SIGINT, self._stop_signalled)
        watchdog = Watchdog(self._incarnation, on_orphaned=self._lock_file_lost, parent=self._parent)
        watchdog.start()
        self._suspects.start()
        try:
            while not (self._exit_code or self._signals or all(place.is_done for place in self._places)):
                for place in self._places:
                    self._tend(place)
                self._look()
                self._suspects.wait(TURN_SECONDS)
        finally:
            self._stop_all()
            self._suspects.stop()
            self._join_suspects()
            self._detector.close()
            watchdog.close()
        if self._plan.drain and not all(place.is_done and not place.is_stalled for place in self._places):
            self._exit_code = self._exit_code or BROKE_OFF
        return self._exit_code

    def _tend(self, place: Place) -> None:
        now = self._engine.clock.monotonic()
        if place.process is None:
            if not place.is_done and now >= place.restart_at:
                self._start(place)
            return
        how = place.process.poll()
        if how is None:
            return
        lived = now - place.started_at
        place.process = None
        if how == EXIT_CANNOT_START:
            # The process has logged the reason, and another one would log the same.
            self._exit_code = CANNOT_START
        elif how in (EXIT_DRAINED, EXIT_STALLED):
            # A worker that ended before the edge began would miss the messages that arrive.
            place.is_done = place in self._edges or all(each.is_done for each in self._edges)
            place.is_stalled = how == EXIT_STALLED
            place.restart_at = now + RESTART_SECONDS_FIRST
        else:
            place.died_young = 0 if lived > LIVED_WELL_SECONDS else place.died_young + 1
            pause = min(RESTART_SECONDS_FIRST * 2.0 ** min(place.died_young, 10), RESTART_SECONDS_MAX)
            place.restart_at = now + (pause if place.died_young else 0.0)
            logger.warning(
                "%s ended after %.1f s by %s, replacing it",
                place.name,
                lived,
                describe_exit(how),
                extra={"event": "worker-ended"},
            )

    def _start(self, place: Place) -> None:
        # The plan is ASCII, because the locale may have no other characters for a command line.
        plan = json.dumps(msgspec.to_builtins(self._plan))
        place.process = subprocess.Popen(
            [sys.executable, "-m", place.module, plan],
            stdin=subprocess.DEVNULL,
            env=handing_down(self._engine.databases.place),
            # Ctrl-C in a terminal reaches the whole group, but only the supervisor tells a worker process to stop.
            start_new_session=True,
        )
        place.started_at = self._engine.clock.monotonic()

    def _look(self) -> None:
        now = self._engine.clock.monotonic()
        if now - self._last_look < LOOK_SECONDS:
            return
        self._last_look = now
        self._kill_hung()
        if self._engine.store.is_replaced():
            logger.critical(
                "stopping: %s was removed or replaced while this worker had it open, and its work would be lost. Start "
                "the worker again when the right file is in its place",
                self._engine.store.url,
                extra={"event": "database-replaced"},
            )
            self._exit_code = BROKE_OFF

    def _kill_hung(self) -> None:
        """Kill each process whose heartbeat stands still. It hangs in C code with Python's lock held, so it cannot
        report this itself."""
        try:
            paused = {each.record.node for each in self._detector.look() if each.state == "paused"}
        except StoreError as error:
            log_unavailable(logger, error, LOOK_SECONDS)
            return
        for place in self._places:
            if place.process is not None and node_name(place.role, place.process.pid) in paused:
                logger.error(
                    "%s has written no heartbeat for %.0f s, killing it",
                    place.name,
                    HUNG_SECONDS,
                    extra={"event": "worker-hung"},
                )
                place.process.kill()

    def _stop_all(self) -> None:
        """Tell all processes to stop. A second signal makes them stop at once."""
        running = [place.process for place in self._places if place.process is not None]
        if self._signals:
            logger.info(
                "stopping: running messages have %.0f s to finish; a second signal breaks them off for redelivery",
                self._plan.grace_seconds,
                extra={"event": "worker-stopping"},
            )
        for process in running:
            process.terminate()
        signalled = 1
        deadline = self._engine.clock.monotonic() + self._plan.grace_seconds + BEYOND_GRACE_SECONDS
        while any(process.poll() is None for process in running):
            if self._signals > signalled:
                signalled = self._signals
                deadline = self._engine.clock.monotonic() + BEYOND_GRACE_SECONDS
                for process in running:
                    # A second SIGTERM would be lost while the first one is pending.
                    process.send_signal(signal.SIGINT)
            if self._engine.clock.monotonic() > deadline:
                for process in running:
                    process.kill()
            self._suspects.wait(TURN_SECONDS)
        broken_off = [process.pid for process in running if process.returncode not in IN_GOOD_ORDER]
        if broken_off:
            logger.warning(
                "worker processes %s broken off, their messages are redelivered and no failure is counted",
                ", ".join(map(str, broken_off)),
                extra={"event": "broken-off"},
            )
            self._exit_code = self._exit_code or BROKE_OFF

    def _join_suspects(self) -> None:
        """Wait until the service has given back its claims, for which it may wait for the database. A second signal
        shortens the wait."""
        patience = BEYOND_GRACE_SECONDS
        while not self._suspects.join(TURN_SECONDS) and patience > 0:
            patience -= TURN_SECONDS if self._signals > 1 else 0

    def _run_suspects(self) -> None:
        try:
            access = retried(logger, self._engine.access, self._suspects, (StoreError,))
            if access is not None:
                self._isolate(access)
        except BaseException:
            logger.critical(
                "suspects can no longer be run, stopping the command", exc_info=True, extra={"event": "broken"}
            )
            self._exit_code = BROKE_OFF

    def _isolate(self, access: Access) -> None:
        to_run = AppToRun(self._plan.app, str(Path.cwd()), self._plan.log_level, self._plan.log_json)
        node = node_name("supervisor")
        isolation = Isolation(self._engine, to_run, access, self._incarnation, node, self._suspects)
        undeclared = UndeclaredStages(self._engine, access.session)
        while self._suspects.wait(SUSPECT_TURN_SECONDS):
            try:
                undeclared.look()
                while not self._suspects.is_stopped and isolation.run_next():
                    pass
            except StoreError as error:
                log_unavailable(logger, error, SUSPECT_TURN_SECONDS)
            except OSError as error:
                logger.warning("suspect's process cannot start: %s", error, extra={"event": "no-process"})
        try:
            isolation.close()
            # The worker processes are gone by now, so their claims are given back at once.
            with closing(self._engine.detector()) as detector:
                takeover_of(self._engine, access, node, detector).sweep([self._incarnation.owner])
        except StoreError as error:
            logger.warning("claims not given back: %s", error, extra={"event": "not-given-back"})
        access.close()

    def _stop_signalled(self, signal_number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _lock_file_lost(self, reason: str) -> None:
        logger.error("stopping: %s", reason, extra={"event": "orphaned"})
        self._exit_code = BROKE_OFF
