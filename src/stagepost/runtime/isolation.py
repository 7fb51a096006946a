"""Run a suspect alone: in a child process, watched by a parent that lives on.

Only here does a death count further, because only here is its cause certain. If the parent dies too, the child ends
itself, and the process that takes over gives the message back uncounted.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys

import msgspec

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.flow.errors import ClaimUnknown, FailureUnwritable, StoreError, TimeLimitExceeded
from stagepost.flow.ids import node_name
from stagepost.ports.liveness import Incarnation
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import queue_commit_of
from stagepost.runtime.engine import Engine
from stagepost.runtime.settings import handing_down
from stagepost.transaction.database_wait import StopSignal, log_unavailable
from stagepost.transaction.outcome import Outcome, Returned, death, failure
from stagepost.transaction.outcome_log import log_outcome
from stagepost.transaction.settling import Settlement
from stagepost.transaction.stage import Stage

# A child's exit code if its handler exceeded its time limit and did not yield. EX_TEMPFAIL.
EXIT_STUCK = 75
# The time that a child may take to start.
START_SECONDS = 60.0
# A child that hangs with Python's lock held cannot report that it is stuck: its heartbeat stands still.
SILENT_SECONDS = 15.0
TURN_SECONDS = 0.1
# The time that an idle child gets to leave.
LEAVE_SECONDS = 5.0

# The pause before a message is tried again that its process could not run, through no fault of the message.
PAUSE = SECOND

logger = logging.getLogger(__name__)


class AppToRun(msgspec.Struct, frozen=True):
    """The way for a child to find the app, and to log. ``path`` holds further places of its modules."""

    name: str
    folder: str
    log_level: str = "WARNING"
    log_json: bool = False
    path: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """The orders for a child. ``owner`` holds the claims it runs, ``answers`` is the descriptor to write to."""

    app: AppToRun
    owner: str
    answers: int
    parent: int


class Answer:
    """The bytes that the child writes. The end of the pipe means that it died."""

    BEGUN = b"b"
    SETTLED = b"s"
    # The message could not be tried, or not be settled: through no fault of the message, and through its own.
    BROKEN = b"x"
    UNSETTLED = b"u"


class Isolation:
    """Holds at most one child, which runs one suspect at a time. A child that survives one is given the next.

    ``stop`` breaks off a run, and its message is given back uncounted.
    """

    def __init__(
        self, engine: Engine, to_run: AppToRun, access: Access, incarnation: Incarnation, node: str, stop: StopSignal
    ) -> None:
        self._engine = engine
        self._to_run = to_run
        self._access = access
        self._owner = incarnation.owner
        self._node = node
        self._stop = stop
        self._stages = engine.stages()
        self._settlement = Settlement(queue_commit_of(engine, access, node))
        self._detector = engine.detector(paused_after_seconds=SILENT_SECONDS)
        self._child: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._unsettled: tuple[Claim, Outcome | None] | None = None

    def run_next(self) -> bool:
        """Claim the suspect whose turn it is and run it to its end. Return False if none is due.

        Raises ``StoreError``, and ``OSError`` if no process can be started. The next call settles the message then.
        """
        self._settle()
        try:
            claim = self._access.claimer.claim_suspect(list(self._stages), self._owner, self._node)
        except ClaimUnknown as error:
            self._unsettled = next(((each, Returned(0, "it may not have been claimed")) for each in error.claims), None)
            raise
        if claim is None:
            return False
        # This is the outcome if no process can be started.
        self._unsettled = claim, Returned(PAUSE, "its process could not be started")
        self._unsettled = claim, self._run(self._stages[claim.stage], claim)
        self._settle()
        return True

    def close(self) -> None:
        """End the child, and give back uncounted the message that it runs."""
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()
            try:
                self._child.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
            self._forget_child()
        self._detector.close()
        self._settle()
        self._access.claimer.release(self._access.session.queue.owned(self._owner, is_unattended=True), self._node)

    def _settle(self) -> None:
        if self._unsettled is None:
            return
        claim, outcome = self._unsettled
        if outcome is None and self._access.session.queue.holds(claim):
            outcome = Returned(PAUSE, "its process could not settle it")
        if outcome is not None:
            log_outcome(claim, self._settlement.settle(self._stages[claim.stage], claim, outcome))
        self._unsettled = None

    def _run(self, stage: Stage, claim: Claim) -> Outcome | None:
        """Return the message's outcome, or None if the child reports that it settled the message."""
        child = self._child or self._spawn()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps({"row": claim.row}).encode() + b"\n")
            child.stdin.flush()
            return self._await(child, stage, claim)
        except BrokenPipeError:
            return Returned(PAUSE, f"its process did not start: {describe_exit(self._forget_child())}")

    def _await(self, child: subprocess.Popen[bytes], stage: Stage, claim: Claim) -> Outcome | None:
        deadline = self._engine.clock.monotonic() + START_SECONDS
        has_begun = False
        answered = select.poll()
        answered.register(self._answers, select.POLLIN)
        while True:
            # Polled first, so that all it wrote before its end can be read afterwards.
            has_ended = child.poll() is not None
            ready = answered.poll(0 if has_ended else TURN_SECONDS * 1000)
            if not ready and has_ended:
                # A process that the child forked holds the pipe open.
                return self._ended(stage, claim, has_begun=has_begun)
            if not ready:
                if not self._stop.wait(0):
                    child.kill()
                    self._forget_child()
                    return Returned(0, "its worker was told to stop")
                if self._engine.clock.monotonic() > deadline and not has_begun:
                    child.kill()
                    self._forget_child()
                    return Returned(PAUSE, f"its process did not start within {START_SECONDS:.0f} s")
                if self._engine.clock.monotonic() > deadline and self._is_silent(child):
                    child.kill()
                    self._forget_child()
                    return self._timed_out(stage, claim)
                continue
            match os.read(self._answers, 1):
                case Answer.BEGUN:
                    has_begun = True
                    deadline = self._engine.clock.monotonic() + stage.time_limit_seconds
                case Answer.SETTLED:
                    return None
                case Answer.BROKEN:
                    self._forget_child()
                    return Returned(PAUSE, "its process could not run it; its log says why")
                case Answer.UNSETTLED:
                    self._forget_child()
                    error = FailureUnwritable("it could not be settled; the log says why")
                    return failure(stage, claim, error, self._engine.random)
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
        """Return whether its heartbeat stands still. A child whose heart beats enforces its time limit itself."""
        node = node_name("alone", child.pid)
        try:
            found = self._detector.look()
        except StoreError as error:
            log_unavailable(logger, error, TURN_SECONDS)
            return False
        return any(each.record.node == node and each.state == "paused" for each in found)

    def _timed_out(self, stage: Stage, claim: Claim) -> Outcome:
        error = TimeLimitExceeded(
            f"the attempt took longer than the time_limit of {stage.time_limit_seconds:g} s and did not yield; "
            "its process was killed"
        )
        return failure(stage, claim, error, self._engine.random)

    def _spawn(self) -> subprocess.Popen[bytes]:
        answers, child_end = os.pipe()
        plan = Plan(self._to_run, self._owner, child_end, os.getpid())
        self._child = subprocess.Popen(
            [sys.executable, "-m", "stagepost.worker.alone", json.dumps(msgspec.to_builtins(plan))],
            stdin=subprocess.PIPE,
            bufsize=0,
            pass_fds=[child_end],
            env=handing_down(self._engine.databases.place),
            # Ctrl-C in a terminal reaches the whole group, and only the parent may end the child.
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
