"""Running a suspect alone: in a child process, before the eyes of a parent that lives on.

Only here does a death count further, because only here is it certain whose it was. When the parent dies too, the child
ends itself, and whoever takes over gives the message back uncounted.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading

import msgspec

from stagepost.app.app import App
from stagepost.app.settings import handing_down
from stagepost.app.stores import Access
from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.flow.errors import ClaimUnknown, FailureUnwritable, StoreError, TimeLimitExceeded
from stagepost.liveness.incarnation import Incarnation
from stagepost.liveness.proof import survey_of
from stagepost.liveness.telling import log_outcome
from stagepost.recovery.redelivery import Again, Bury
from stagepost.transaction.outcome import Buried, Outcome, Redelivered, Returned, death
from stagepost.transaction.settling import Settlement
from stagepost.transaction.stage import Stage

# How a child says that its handler exceeded its time limit and did not yield. EX_TEMPFAIL.
EXIT_STUCK = 75
# What a child may take to start.
START_SECONDS = 60.0
# One that hangs with Python's lock held cannot even say that it is stuck: its heart stands still.
SILENT_SECONDS = 15.0
TURN_SECONDS = 0.1
# An idle child that is told to leave gets this long to do so.
LEAVE_SECONDS = 5.0

# Until a message whose process could not run it, through no fault of its own, is tried again.
PAUSE = SECOND

logger = logging.getLogger(__name__)


class AppToRun(msgspec.Struct, frozen=True):
    """How a child finds the app, and how it logs."""

    name: str
    folder: str
    log_level: str = "WARNING"
    log_json: bool = False


class Plan(msgspec.Struct, frozen=True):
    """What a child is told. ``owner`` holds the claims it runs, ``answers`` is the descriptor to write to."""

    app: AppToRun
    owner: str
    answers: int
    parent: int


class Answer:
    """What the child writes, a byte each; the end of the pipe says that it died."""

    BEGUN = b"b"
    SETTLED = b"s"
    # It could not be tried, or not be settled, through no fault of its own; and by its own.
    BROKEN = b"x"
    UNSETTLED = b"u"


class Isolation:
    """Holds at most one child, which runs one suspect at a time; a child that survives one is given the next.

    ``stop`` breaks off a run; its message is given back, uncounted.
    """

    def __init__(
        self, app: App, to_run: AppToRun, access: Access, incarnation: Incarnation, node: str, stop: threading.Event
    ) -> None:
        self._app = app
        self._to_run = to_run
        self._access = access
        self._owner = incarnation.owner
        self._node = node
        self._stop = stop
        self._stages = app.stages()
        self._settlement = Settlement(access.session, access.transport, app.clock, node, app.listener)
        self._survey = survey_of(app.store, app.name, app.clock, paused_after_seconds=SILENT_SECONDS)
        self._child: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._unsettled: tuple[Claim, Outcome | None] | None = None

    def run_next(self) -> bool:
        """Claim the suspect whose turn it is and run it to its end. False when none is due.

        Raises ``StoreError``, and ``OSError`` where no process can be started; what had become of the message is not
        forgotten by it.
        """
        self._settle()
        try:
            claim = self._access.transport.claim_suspect(list(self._stages), self._owner, self._node)
        except ClaimUnknown as error:
            self._unsettled = next(((each, Returned(0, "it may not have been claimed")) for each in error.claims), None)
            raise
        if claim is None:
            return False
        # In case it cannot even be tried.
        self._unsettled = claim, Returned(PAUSE, "its process could not be started")
        self._unsettled = claim, self._run(self._stages[claim.stage], claim)
        self._settle()
        return True

    def close(self) -> None:
        """End the child; what it runs is given back, uncounted."""
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()
            try:
                self._child.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
            self._forget_child()
        self._survey.close()
        self._settle()
        self._access.transport.release(self._access.transport.unattended(self._owner), self._node)

    def _settle(self) -> None:
        if self._unsettled is None:
            return
        claim, outcome = self._unsettled
        if outcome is None and self._access.transport.holds(claim):
            outcome = Returned(PAUSE, "its process could not settle it")
        if outcome is not None:
            log_outcome(claim, self._settlement.settle(self._stages[claim.stage], claim, outcome))
        self._unsettled = None

    def _run(self, stage: Stage, claim: Claim) -> Outcome | None:
        """What became of the message; None where the child says that it settled it."""
        child = self._child or self._spawn()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps({"row": claim.row}).encode() + b"\n")
            child.stdin.flush()
            return self._await(child, stage, claim)
        except BrokenPipeError:
            return Returned(PAUSE, f"its process did not start: {describe_exit(self._forget_child())}")

    def _await(self, child: subprocess.Popen[bytes], stage: Stage, claim: Claim) -> Outcome | None:
        deadline = self._app.clock.monotonic() + START_SECONDS
        has_begun = False
        answered = select.poll()
        answered.register(self._answers, select.POLLIN)
        while True:
            # Asked first: what it wrote before it ended is then there to be read.
            has_ended = child.poll() is not None
            ready = answered.poll(0 if has_ended else TURN_SECONDS * 1000)
            if not ready and has_ended:
                # A process that it forked holds the pipe open.
                return self._ended(stage, claim, has_begun=has_begun)
            if not ready:
                if self._stop.is_set():
                    child.kill()
                    self._forget_child()
                    return Returned(0, "its worker was told to stop")
                if self._app.clock.monotonic() > deadline and not has_begun:
                    child.kill()
                    self._forget_child()
                    return Returned(PAUSE, f"its process did not start within {START_SECONDS:.0f} s")
                if self._app.clock.monotonic() > deadline and self._is_silent(child):
                    child.kill()
                    self._forget_child()
                    return self._timed_out(stage, claim)
                continue
            match os.read(self._answers, 1):
                case Answer.BEGUN:
                    has_begun = True
                    deadline = self._app.clock.monotonic() + stage.time_limit_seconds
                case Answer.SETTLED:
                    return None
                case Answer.BROKEN:
                    self._forget_child()
                    return Returned(PAUSE, "its process could not run it; its log says why")
                case Answer.UNSETTLED:
                    self._forget_child()
                    return self._failed(stage, claim, FailureUnwritable("it could not be settled; the log says why"))
                case _:
                    return self._ended(stage, claim, has_begun=has_begun)

    def _ended(self, stage: Stage, claim: Claim, *, has_begun: bool) -> Outcome:
        how = self._forget_child()
        if how == EXIT_STUCK:
            return self._timed_out(stage, claim)
        if has_begun:
            return death(claim, f"the process that ran it alone ended by {describe_exit(how)}")
        return Returned(PAUSE, f"its process did not start: {describe_exit(how)}")

    def _is_silent(self, child: subprocess.Popen[bytes]) -> bool:
        """A child whose heart beats enforces its time limit itself, and may be waiting for the database."""
        node = self._app.node("alone", child.pid)
        try:
            found = self._survey.look()
        except StoreError as error:
            logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
            return False
        return any(each.record.header.node == node and each.state == "paused" for each in found)

    def _timed_out(self, stage: Stage, claim: Claim) -> Outcome:
        error = TimeLimitExceeded(
            f"the attempt took longer than the time_limit of {stage.time_limit_seconds:g} s and did not yield; "
            "its process was killed"
        )
        return self._failed(stage, claim, error)

    def _failed(self, stage: Stage, claim: Claim, error: Exception) -> Outcome:
        match stage.redelivery.decide(claim.failures + 1, error, self._app.random):
            case Again(after):
                return Redelivered(after, error)
            case Bury(reason):
                return Buried(reason, error)

    def _spawn(self) -> subprocess.Popen[bytes]:
        answers, child_end = os.pipe()
        plan = Plan(self._to_run, self._owner, child_end, os.getpid())
        self._child = subprocess.Popen(
            [sys.executable, "-m", "stagepost.liveness.alone", json.dumps(msgspec.to_builtins(plan))],
            stdin=subprocess.PIPE,
            bufsize=0,
            pass_fds=[child_end],
            env=handing_down(self._app.place),
            # Ctrl-C in a terminal reaches the whole group; what becomes of the child is for the parent to say.
            start_new_session=True,
        )
        os.close(child_end)
        self._answers = answers
        return self._child

    def _forget_child(self) -> int:
        assert self._child is not None
        how = self._child.wait()
        if self._child.stdin is not None:
            self._child.stdin.close()
        os.close(self._answers)
        self._child = None
        self._answers = -1
        return how


def describe_exit(how: int) -> str:
    if how >= 0:
        return f"exit code {how}"
    try:
        return signal.Signals(-how).name
    except ValueError:
        return f"signal {-how}"
