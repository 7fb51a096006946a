"""Starts worker processes, replaces those that die, runs suspects alone, and stops it all in good order."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from stagepost.app.app import App
from stagepost.app.settings import handing_down
from stagepost.app.stores import Access
from stagepost.flow.errors import StoreError
from stagepost.liveness.isolation import AppToRun, Isolation, describe_exit
from stagepost.liveness.opening import patient_access
from stagepost.liveness.proof import incarnate, survey_of
from stagepost.liveness.survey import PAUSED_AFTER_SECONDS
from stagepost.liveness.takeover import Takeover
from stagepost.liveness.undeclared import UndeclaredStages
from stagepost.liveness.vigil import Vigil
from stagepost.worker.process import EXIT_CANNOT_START, EXIT_DONE, EXIT_DRAINED, EXIT_STALLED, Plan

TURN_SECONDS = 0.1
SUSPECT_TURN_SECONDS = 0.25
RESTART_SECONDS_FIRST = 0.1
RESTART_SECONDS_MAX = 5.0
# A process that lived this long had started well, and is replaced at once.
LIVED_WELL_SECONDS = 5.0
# What a process may take beyond its grace before it is killed.
BEYOND_GRACE_SECONDS = 5.0
LOOK_SECONDS = 1.0
# Shorter than it takes others to take over what it holds: killed first, its message is counted as having died.
HUNG_SECONDS = PAUSED_AFTER_SECONDS / 2

# By the signal itself ends who does not listen for it yet, and so has begun nothing.
IN_GOOD_ORDER = (EXIT_DONE, EXIT_DRAINED, EXIT_STALLED, -signal.SIGTERM)
# The exit codes of the command: see ``cli.main``.
WENT_WELL = 0
BROKE_OFF = 1
CANNOT_START = 2

logger = logging.getLogger(__name__)


@dataclass
class Place:
    """One of the worker processes that there should be, and what runs there now."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restart_at: float = 0.0
    died_young: int = 0
    is_done: bool = False
    is_stalled: bool = False


class Supervisor:
    def __init__(self, app: App, plan: Plan, processes: int) -> None:
        self._app = app
        self._plan = plan
        self._places = [Place(number) for number in range(1, processes + 1)]
        self._signals = 0
        self._is_over = False
        self._exit_code = WENT_WELL
        self._incarnation = incarnate(app, app.node("supervisor"))
        self._survey = survey_of(app.store, app.name, app.clock, paused_after_seconds=HUNG_SECONDS)
        self._last_look = 0.0
        self._stop_suspects = threading.Event()
        self._suspects = threading.Thread(target=self._run_suspects, name="suspects", daemon=True)

    def run(self) -> int:
        """Until it is told to stop, or all has drained. Returns the exit code: ``WENT_WELL`` where it was the first,
        and nothing was broken off, or the second."""
        signal.signal(signal.SIGTERM, self._told_to_stop)
        signal.signal(signal.SIGINT, self._told_to_stop)
        vigil = Vigil(self._incarnation, [], on_stuck=lambda _: None, on_orphaned=self._lock_file_lost)
        vigil.start()
        self._suspects.start()
        try:
            while not (self._is_over or self._signals or self._has_ended):
                for place in self._places:
                    self._tend(place)
                self._look()
                self._stop_suspects.wait(TURN_SECONDS)
        finally:
            self._stop_all()
            self._stop_suspects.set()
            self._join_suspects()
            vigil.stop()
            self._survey.close()
            self._incarnation.close()
        if self._plan.drain and not self._has_drained:
            self._exit_code = self._exit_code or BROKE_OFF
        return self._exit_code

    @property
    def _has_ended(self) -> bool:
        return all(place.is_done for place in self._places)

    @property
    def _has_drained(self) -> bool:
        return all(place.is_done and not place.is_stalled for place in self._places)

    def _tend(self, place: Place) -> None:
        now = self._app.clock.monotonic()
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
            # It has said why. Another one would say the same.
            self._exit_code = CANNOT_START
            self._is_over = True
        elif how in (EXIT_DRAINED, EXIT_STALLED):
            place.is_done = True
            place.is_stalled = how == EXIT_STALLED
        else:
            place.died_young = 0 if lived > LIVED_WELL_SECONDS else place.died_young + 1
            pause = min(RESTART_SECONDS_FIRST * 2.0 ** min(place.died_young, 10), RESTART_SECONDS_MAX)
            place.restart_at = now + (pause if place.died_young else 0.0)
            logger.warning(
                "worker process %d ended after %.1f s by %s and is replaced",
                place.number,
                lived,
                describe_exit(how),
                extra={"event": "worker-ended"},
            )

    def _start(self, place: Place) -> None:
        # In ASCII: the locale may have no other characters for a command line.
        plan = json.dumps(msgspec.to_builtins(self._plan))
        place.process = subprocess.Popen(
            [sys.executable, "-m", "stagepost.worker.process", plan],
            stdin=subprocess.DEVNULL,
            env=handing_down(self._app.place),
            # Ctrl-C in a terminal reaches the whole group; a worker process is told to stop by its supervisor, once.
            start_new_session=True,
        )
        place.started_at = self._app.clock.monotonic()

    def _look(self) -> None:
        now = self._app.clock.monotonic()
        if now - self._last_look < LOOK_SECONDS:
            return
        self._last_look = now
        self._kill_hung()
        if self._app.store.is_replaced():
            logger.critical(
                "stopping: %s was removed or replaced while this worker had it open; what it does would be lost. Start "
                "the worker again when the right file is in its place",
                self._app.store.url,
                extra={"event": "database-replaced"},
            )
            self._exit_code = BROKE_OFF
            self._is_over = True

    def _kill_hung(self) -> None:
        """A process whose heart stands still, caught in C code with Python's lock held, does no work and cannot
        say so."""
        try:
            paused = {each.record.header.node for each in self._survey.look() if each.state == "paused"}
        except StoreError as error:
            logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
            return
        for place in self._places:
            if place.process is not None and self._app.node("worker", place.process.pid) in paused:
                logger.error(
                    "worker process %d has not shown a sign of life for %.0f s and is killed",
                    place.number,
                    HUNG_SECONDS,
                    extra={"event": "worker-hung"},
                )
                place.process.kill()

    def _stop_all(self) -> None:
        """Tell all to stop; a second signal tells them again, which means at once."""
        running = [place.process for place in self._places if place.process is not None]
        if self._signals:
            logger.info(
                "stopping: what runs has %.0f s to finish; told again, it is broken off and redelivered",
                self._plan.grace_seconds,
            )
        for process in running:
            process.terminate()
        told = 1
        deadline = self._app.clock.monotonic() + self._plan.grace_seconds + BEYOND_GRACE_SECONDS
        while any(process.poll() is None for process in running):
            if self._signals > told:
                told = self._signals
                deadline = self._app.clock.monotonic() + BEYOND_GRACE_SECONDS
                for process in running:
                    # Not SIGTERM again: while the first of them is pending, a second one is lost.
                    process.send_signal(signal.SIGINT)
            if self._app.clock.monotonic() > deadline:
                for process in running:
                    process.kill()
            self._stop_suspects.wait(TURN_SECONDS)
        broken_off = [process.pid for process in running if process.returncode not in IN_GOOD_ORDER]
        if broken_off:
            logger.warning(
                "broken off in worker processes %s: what ran there is redelivered, uncounted",
                ", ".join(map(str, broken_off)),
                extra={"event": "broken-off"},
            )
            self._exit_code = self._exit_code or BROKE_OFF

    def _join_suspects(self) -> None:
        """It gives back what it claimed, and may wait for the database with that; a second signal ends its patience."""
        patience = BEYOND_GRACE_SECONDS
        while self._suspects.is_alive() and patience > 0:
            self._suspects.join(TURN_SECONDS)
            patience -= TURN_SECONDS if self._signals > 1 else 0

    def _run_suspects(self) -> None:
        try:
            access = patient_access(self._app, self._stop_suspects)
            if access is not None:
                self._isolate(access)
        except BaseException:
            logger.critical("suspects are run no more; the command stops", exc_info=True, extra={"event": "broken"})
            self._exit_code = BROKE_OFF
            self._is_over = True

    def _isolate(self, access: Access) -> None:
        to_run = AppToRun(self._plan.app, str(Path.cwd()), self._plan.log_level, self._plan.log_json)
        node = self._app.node("supervisor")
        isolation = Isolation(self._app, to_run, access, self._incarnation, node, self._stop_suspects)
        undeclared = UndeclaredStages(self._app, access.session)
        while not self._stop_suspects.wait(SUSPECT_TURN_SECONDS):
            try:
                undeclared.look()
                while not self._stop_suspects.is_set() and isolation.run_next():
                    pass
            except StoreError as error:
                logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
            except OSError as error:
                logger.warning("no process can be started: %s", error, extra={"event": "no-process"})
        try:
            isolation.close()
            # The worker processes are gone by now: what they left is given back at once, not when somebody looks.
            survey = survey_of(self._app.store, self._app.name, self._app.clock)
            Takeover(self._app, access, node, survey).sweep([self._incarnation.owner])
            survey.close()
        except StoreError as error:
            logger.warning("what was claimed could not be given back: %s", error, extra={"event": "not-given-back"})
        access.close()

    def _told_to_stop(self, signal_number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _lock_file_lost(self, reason: str) -> None:
        logger.error("stopping: %s", reason, extra={"event": "orphaned"})
        self._exit_code = BROKE_OFF
        self._is_over = True
