"""Watch over running handlers: keep the record for the case that the process dies, and enforce the time limit.

Python cannot stop a thread. When an attempt exceeds its stage's limit, ``TimeLimitExceeded`` is raised in the handler's
thread at its next line (an ``async def`` handler is cancelled, a running SQL statement broken off). A handler that does
not yield to that, being inside C code or swallowing the exception, is stuck, and its process has to be replaced.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import TimeLimitExceeded
from stagepost.ports.liveness import Incarnation
from stagepost.ports.session import Session
from stagepost.runtime.connections import ConnectionUsage
from stagepost.runtime.service import Service
from stagepost.transaction.steps import Step, StepListener, unobserved

logger = logging.getLogger(__name__)


# How long an interrupted handler may take to come back before it counts as stuck.
YIELD_SECONDS = 5.0
TICK_SECONDS = 0.1
BEAT_SECONDS = 1.0
# The steps at which a thread begins to use its connection, also if it then waits for its transaction to begin.
BEGINNINGS = (Step.CLAIMED, Step.BEGUN)


class ThreadWatch:
    """Implements ``transaction.attempt_monitor.AttemptMonitor`` for one slot of an incarnation's record.

    The watching thread calls ``check``, ``is_stuck`` and ``mark_timed_out``. The thread that runs the attempts calls
    the others.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        slot: int,
        clock: Clock,
        interrupt_statement: Callable[[], None],
        yield_seconds: float = YIELD_SECONDS,
    ) -> None:
        self._incarnation = incarnation
        self._slot = slot
        self._clock = clock
        self._interrupt_statement = interrupt_statement
        self._yield_seconds = yield_seconds
        self._lock = threading.Lock()
        self._limit_seconds = 0.0
        self._begin = 0.0
        self._waited = 0.0
        self._thread = 0
        self._interrupt_handler: Callable[[], None] | None = None
        self._waits_since = 0.0
        self._is_interruptible = False
        self._is_handling = False
        self._fired_at: float | None = None
        self._handling = _Block(self._enter, self._leave)
        self._waiting = _Block(self._suspend, self._resume)
        self.claim: Claim | None = None

    def started(self, claim: Claim, time_limit_seconds: float) -> None:
        self._limit_seconds = time_limit_seconds
        self._incarnation.note(self._slot, claim)
        self.claim = claim

    def ended(self, *, is_settled: bool) -> None:
        self.claim = None
        if not is_settled:
            self._incarnation.note(self._slot, None)

    def handled(self) -> None:
        if self._is_interruptible or self._fired_at is not None:
            with self._lock:
                self._disarm()

    def handling(self, interrupt: Callable[[], None] | None) -> _Block:
        self._interrupt_handler = interrupt
        return self._handling

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        before = self._limit_seconds
        self._limit_seconds = min(before, self._clock.monotonic() - self._begin - self._waited + seconds)
        try:
            yield
        finally:
            self._limit_seconds = before

    def waiting(self) -> _Block:
        return self._waiting

    def check(self) -> bool:
        """Interrupt a handler that has run for too long. Return True if it is stuck: that did not help."""
        with self._lock:
            now = self._clock.monotonic()
            if self._fired_at is not None:
                return self.is_stuck
            if self._is_interruptible and now - self._begin - self._waited > self._limit_seconds:
                self._fired_at = now
                if self._interrupt_handler is not None:
                    self._interrupt_handler()
                else:
                    _raise_in(self._thread, TimeLimitExceeded)
                self._interrupt_statement()
            return False

    @property
    def is_stuck(self) -> bool:
        fired_at = self._fired_at
        return fired_at is not None and self._clock.monotonic() - fired_at > self._yield_seconds

    def mark_timed_out(self) -> None:
        """Record that this attempt failed by its time limit. Call it before the process is ended."""
        self._incarnation.time_out(self._slot)

    def _enter(self) -> None:
        # It needs no lock: nothing is raised before the last of this is written.
        self._thread = threading.get_ident()
        self._begin = self._clock.monotonic()
        self._waited = 0.0
        self._is_interruptible = True

    def _leave(self, error: BaseException | None) -> None:
        with self._lock:
            has_fired = self._disarm()
        if has_fired and not isinstance(error, TimeLimitExceeded):
            raise TimeLimitExceeded from error

    def _disarm(self) -> bool:
        """Return whether the time limit had been exceeded."""
        self._is_interruptible = False
        has_fired = self._fired_at is not None
        self._fired_at = None
        if has_fired:
            # It may not have arrived yet, and must not arrive in the middle of the next step.
            _withdraw()
        return has_fired

    def _suspend(self) -> None:
        with self._lock:
            self._is_handling = self._is_interruptible
            self._is_interruptible = False
            self._waits_since = self._clock.monotonic()
            has_fired = self._fired_at is not None
            if has_fired:
                _withdraw()
        if has_fired:
            raise TimeLimitExceeded

    def _resume(self, _error: BaseException | None) -> None:
        # It needs no lock, as above.
        self._waited += self._clock.monotonic() - self._waits_since
        self._is_interruptible = self._is_handling


class _Block:
    """A ``with`` block of a thread. It is made once a thread, because every message enters it."""

    def __init__(self, enter: Callable[[], None], leave: Callable[[BaseException | None], None]) -> None:
        self._enter = enter
        self._leave = leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an error at the thread's next line."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


class _Withdrawal(BaseException):
    """Arrives in place of an error that is withdrawn."""


def _withdraw() -> None:
    """Withdraw the error that may still arrive in this thread: another one takes its place, and arrives here.

    To set no error would do as well. But CPython up to 3.12 then always expects one: every later call takes longer, and
    a traced function hangs at its entry.
    """
    try:
        _raise_in(threading.get_ident(), _Withdrawal)
        while True:
            pass
    except _Withdrawal:
        return


class UsageListener:
    """Keeps what a stage thread uses its connection for, so that any other thread may ask.

    ``hear`` is a step listener that passes on what it hears. It needs no lock: only its own thread writes, and writes
    one reference.
    """

    def __init__(self, who: str, session: Session, watch: ThreadWatch, clock: Clock, listener: StepListener) -> None:
        self._who = who
        self._session = session
        self._watch = watch
        self._clock = clock
        self._pass_on = None if listener is unobserved else listener
        self._last: tuple[Step, int] = (Step.CLAIMED, 0)

    def hear(self, step: Step, claim: Claim) -> None:
        since = self._clock.now() if step in BEGINNINGS else self._last[1]
        self._last = (step, since)
        if self._pass_on is not None:
            self._pass_on(step, claim)

    def current(self) -> ConnectionUsage | None:
        """Return the present usage, or None while no message's transaction is open. Any thread may ask."""
        claim = self._watch.claim
        if claim is None or not self._session.is_begun:
            return None
        step, since = self._last
        return ConnectionUsage(
            who=self._who,
            since=since,
            stage=claim.stage,
            step=step,
            message_id=claim.message_id,
            flow_id=claim.flow_id,
        )


class Watchdog(Service):
    """Beats an incarnation's heart, enforces time limits, and sees when the process is no longer wanted.

    ``on_stuck``    called with the watches whose attempt exceeded its time limit and did not yield, once for each
    ``on_orphaned`` called once with the reason, when the parent process is gone, or the lock file
    """

    def __init__(
        self,
        incarnation: Incarnation,
        watches: Sequence[ThreadWatch] = (),
        *,
        on_stuck: Callable[[Sequence[ThreadWatch]], None] = lambda stuck: None,
        on_orphaned: Callable[[str], None],
        parent: int | None = None,
    ) -> None:
        super().__init__("watchdog", self._keep, logs_error=True)
        self._incarnation = incarnation
        self._watches = watches
        self._on_stuck = on_stuck
        self._on_orphaned = on_orphaned
        self._parent = parent

    def close(self) -> None:
        """End the heartbeat, and then the incarnation: all its claims were settled or released."""
        self.stop()
        self.join()
        self._incarnation.close()

    def _keep(self) -> None:
        reported_stuck: list[ThreadWatch] = []
        is_reported_orphaned = False
        ticks_a_beat = round(BEAT_SECONDS / TICK_SECONDS)
        ticks = 0
        while self.wait(TICK_SECONDS):
            ticks += 1
            stuck = [watch for watch in self._watches if _is_stuck(watch)]
            if newly := [watch for watch in stuck if watch not in reported_stuck]:
                self._on_stuck(newly)
            reported_stuck = stuck
            if ticks % ticks_a_beat == 0 and not is_reported_orphaned:
                reason = self._orphaned()
                if reason:
                    is_reported_orphaned = True
                    self._on_orphaned(reason)

    def _orphaned(self) -> str | None:
        try:
            unseen = self._incarnation.beat()
        except OSError:
            # The disk may come back, and then the heart must still beat.
            logger.exception("heartbeat not written", extra={"event": "watchdog-broken"})
            unseen = None
        if unseen is not None:
            return unseen
        if self._parent is not None and os.getppid() != self._parent:
            return f"the parent process {self._parent} is gone"
        return None


def _is_stuck(watch: ThreadWatch) -> bool:
    try:
        return watch.check()
    except Exception:
        # The watch may belong to a thread that is just ending. The heartbeat and the other watches go on.
        logger.exception("an attempt could not be interrupted", extra={"event": "watchdog-broken"})
        return False
