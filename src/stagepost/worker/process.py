"""One worker process: an incarnation, its intake, its stage threads, and the loop that looks after them.

``python -m stagepost.worker.process '<json>'``; the supervisor starts it.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

import msgspec

from stagepost.app.app import App
from stagepost.app.loading import load_app
from stagepost.app.logs import configure
from stagepost.app.settings import handed_down
from stagepost.flow.errors import StagepostError, StoreContention, StoreUnavailable
from stagepost.flow.queue import Pending
from stagepost.liveness.declarations import declare_stages
from stagepost.liveness.draining import Draining
from stagepost.liveness.housekeeper import Housekeeper
from stagepost.liveness.intake import Intake
from stagepost.liveness.proof import incarnate
from stagepost.liveness.relaying import Relaying
from stagepost.liveness.survey import PAUSED_AFTER_SECONDS
from stagepost.liveness.vigil import Vigil
from stagepost.liveness.watch import ThreadWatch
from stagepost.transaction.callbacks import CallbackPool
from stagepost.worker.stage_thread import StageThread

TURN_SECONDS = 0.25
# How long claimable work may lie before an idle worker that does not take it is taken for broken.
NO_PROGRESS_SECONDS = 30.0

EXIT_DONE = 0
EXIT_ABANDONED = 1
# As in sysexits.h.
EXIT_UNAVAILABLE = 69
EXIT_BROKEN = 70
EXIT_STUCK = 75
# Nothing is left but what waits at paused stages.
EXIT_STALLED = 76
# Nothing is left. Not EXIT_DONE, which a handler may leave with.
EXIT_DRAINED = 77
EXIT_CANNOT_START = 78

logger = logging.getLogger(__name__)


class Plan(msgspec.Struct, frozen=True):
    """What the supervisor tells a worker process."""

    app: str
    threads: int
    drain: bool
    grace_seconds: float
    supervisor: int
    log_level: str = "WARNING"
    log_json: bool = False
    paused_after_seconds: float = PAUSED_AFTER_SECONDS


class WorkerProcess:
    """The main thread hears signals and watches the others; it never waits for the database."""

    def __init__(self, app: App, plan: Plan) -> None:
        self._app = app
        self._plan = plan
        self._node = app.node("worker")
        self._stopping = threading.Event()
        self._told_to_stop = False
        self._exit_code = EXIT_DONE
        self._has_drained = False
        self._draining = Draining()
        self._incarnation = incarnate(app, self._node, slots=plan.threads)
        self._intake = Intake(
            app.batches(),
            self._incarnation.owner,
            self._node,
            plan.threads,
            app.clock,
            is_done=self._is_done if plan.drain else None,
        )
        self._callbacks = CallbackPool()
        self._go = threading.Event()
        self._threads = [
            StageThread(app, slot, self._incarnation, self._intake, self._callbacks, self._node, self._go)
            for slot in range(plan.threads)
        ]
        self._relaying = Relaying(app, self._node) if app.transport is not None else None
        self._housekeeper = Housekeeper(
            app, self._intake, self._incarnation, self._node, paused_after_seconds=plan.paused_after_seconds
        )

    def run(self) -> int:
        """Until it is told to stop, or has drained, or something is broken. Returns the exit code."""
        try:
            watches = [thread.start() for thread in self._threads]
        except (StoreContention, StoreUnavailable) as error:
            logger.warning("cannot start yet: %s", error, extra={"event": "database-unavailable"})
            self._incarnation.close()
            return EXIT_UNAVAILABLE
        self._go.set()
        vigil = Vigil(
            self._incarnation,
            watches,
            on_stuck=self._replace,
            on_orphaned=self._orphaned,
            parent=self._plan.supervisor,
        )
        vigil.start()
        self._housekeeper.start()
        if self._relaying is not None:
            self._relaying.start()
        self._watch()
        if not self._stop():
            # What still runs is on record as abandoned, or as timed out; a thread cannot be stopped, a process can.
            return self._exit_code or EXIT_ABANDONED
        self._callbacks.close(self._plan.grace_seconds)
        vigil.stop()
        self._incarnation.close()
        return self._exit_code or (EXIT_DRAINED if self._has_drained else EXIT_DONE)

    def stop(self) -> None:
        """Told once: in good order. Told twice: at once, and what runs is redelivered."""
        if self._told_to_stop:
            self._incarnation.abandon()
            os._exit(EXIT_ABANDONED)
        self._told_to_stop = True
        self._stopping.set()

    def _is_done(self, pending: Pending) -> bool:
        is_stalled = self._draining.is_stalled(pending)
        if is_stalled:
            self._exit_code = EXIT_STALLED
        self._has_drained = pending.is_drained
        return self._has_drained or is_stalled

    def _watch(self) -> None:
        last_progress = self._app.clock.monotonic()
        while not self._stopping.wait(TURN_SECONDS) and not self._intake.is_stopped:
            errors = [self._housekeeper.error, *(thread.error for thread in self._threads)]
            if self._relaying is not None:
                errors.append(self._relaying.error)
            broken = next((error for error in errors if error is not None), None)
            now = self._app.clock.monotonic()
            if not self._is_idle_beside_work():
                last_progress = now
            if broken is not None:
                logger.critical("a thread ended; the process is replaced", exc_info=broken, extra={"event": "broken"})
            elif now - last_progress > NO_PROGRESS_SECONDS:
                logger.critical(
                    "work is waiting and an idle thread has not taken it for %.0f s; the process is replaced",
                    NO_PROGRESS_SECONDS,
                    extra={"event": "no-progress"},
                )
                faulthandler.dump_traceback()
            else:
                continue
            self._exit_code = EXIT_BROKEN
            return

    def _is_idle_beside_work(self) -> bool:
        """Work waits, a thread is free, nothing moves, and it is not the database that keeps a claim waiting."""
        has_moved = self._intake.has_moved()
        is_busy = all(thread.watch is not None and thread.watch.claim is not None for thread in self._threads)
        return self._housekeeper.sees_work() and not is_busy and not has_moved

    def _stop(self) -> bool:
        """Take no more, give back what was not begun, let finish what runs. False where something still runs."""
        self._intake.stop()
        self._housekeeper.stop()
        clock = self._app.clock
        deadline = clock.monotonic() + self._plan.grace_seconds
        # All of them, also after one that is late: the others' time is not up yet. But nobody waits for what is stuck.
        ended = [thread.join(0 if thread.is_stuck else deadline - clock.monotonic()) for thread in self._threads]
        if self._relaying is not None:
            # What it does not get done is leased, and comes again.
            self._relaying.stop(deadline - clock.monotonic())
        if all(ended):
            has_broken = any(thread.error is not None for thread in self._threads)
            has_ended = self._housekeeper.finish(max(deadline - clock.monotonic(), TURN_SECONDS), has_broken=has_broken)
            return has_ended and not has_broken
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            if not thread.join(TURN_SECONDS) and thread.watch is not None and thread.is_stuck:
                thread.watch.mark_timed_out()
        self._incarnation.abandon()
        return False

    def _replace(self, stuck: Sequence[ThreadWatch]) -> None:
        for watch in stuck:
            watch.mark_timed_out()
            claim = watch.claim
            logger.error(
                "%s exceeded its time limit on %s and does not yield; the process is replaced",
                claim.stage if claim else "a stage",
                claim.message_id if claim else "a message",
                extra={"event": "stuck"},
            )
        self._exit_code = EXIT_STUCK
        self._stopping.set()

    def _orphaned(self, reason: str) -> None:
        logger.error("stopping: %s", reason, extra={"event": "orphaned"})
        self._exit_code = EXIT_BROKEN
        self._stopping.set()


def main(argument: str) -> int:
    plan = msgspec.convert(json.loads(argument), Plan)
    configure(plan.log_level, as_json=plan.log_json)
    process: WorkerProcess | None = None

    def stop(signal_number: int, frame: FrameType | None) -> None:
        if process is None:
            # The app is still being imported: nothing has begun.
            os._exit(EXIT_DONE)
        process.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        app = load_app(plan.app)
        app.place = handed_down()
        declare_stages(app)
        process = WorkerProcess(app, plan)
    except (StoreContention, StoreUnavailable) as error:
        logger.warning("cannot start yet: %s", error, extra={"event": "database-unavailable"})
        return EXIT_UNAVAILABLE
    except StagepostError as error:
        logger.critical("the worker cannot start: %s", error)
        return EXIT_CANNOT_START
    return process.run()


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: it would wait for threads that do not end.
    os._exit(code)
