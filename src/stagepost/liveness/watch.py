"""One thread's watch over what it runs: the record for the case that the process dies, and the time limit.

Python cannot stop a thread. When an attempt exceeds its stage's limit, ``TimeLimitExceeded`` is raised in the handler's
thread at its next line (an ``async def`` handler is cancelled, a running SQL statement broken off). A handler that does
not yield to that, being inside C code or swallowing the exception, is stuck, and its process has to be replaced.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from enum import Enum
from types import TracebackType

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import TimeLimitExceeded
from stagepost.liveness.incarnation import Incarnation

# How long an interrupted handler may take to come back before it counts as stuck.
YIELD_SECONDS = 5.0


class Verdict(Enum):
    FINE = "fine"
    STUCK = "stuck"


class ThreadWatch:
    """Implements ``transaction.seams.Watch`` for one slot of an incarnation's record.

    All but ``check``, ``is_stuck`` and ``mark_timed_out`` are for the thread that runs the attempts; these are for the
    one that watches.
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
        self._handling = _Handling(self)
        self._waiting = _Waiting(self)
        self.claim: Claim | None = None

    def started(self, claim: Claim, time_limit_seconds: float) -> None:
        self._limit_seconds = time_limit_seconds
        self._incarnation.note(self._slot, claim)
        self.claim = claim

    def ended(self, *, is_settled: bool) -> None:
        self.claim = None
        if not is_settled:
            self._incarnation.clear(self._slot)

    def handled(self) -> None:
        if self._is_interruptible or self._fired_at is not None:
            with self._lock:
                self._disarm()

    def handling(self, interrupt: Callable[[], None] | None) -> _Handling:
        self._interrupt_handler = interrupt
        return self._handling

    def waiting(self) -> _Waiting:
        return self._waiting

    def check(self) -> Verdict:
        """Interrupt what has run for too long; ``STUCK`` when that did not help."""
        with self._lock:
            now = self._clock.monotonic()
            if self._fired_at is not None:
                return Verdict.STUCK if self.is_stuck else Verdict.FINE
            if self._is_interruptible and now - self._begin - self._waited > self._limit_seconds:
                self._fired_at = now
                if self._interrupt_handler is not None:
                    self._interrupt_handler()
                else:
                    _raise_in(self._thread, TimeLimitExceeded)
                self._interrupt_statement()
            return Verdict.FINE

    @property
    def is_stuck(self) -> bool:
        fired_at = self._fired_at
        return fired_at is not None and self._clock.monotonic() - fired_at > self._yield_seconds

    def mark_timed_out(self) -> None:
        """Put on record that this attempt failed by its time limit, before its process is ended."""
        self._incarnation.time_out(self._slot)

    def enter(self) -> None:
        # No lock: nothing is raised before the last of this is written.
        self._thread = threading.get_ident()
        self._begin = self._clock.monotonic()
        self._waited = 0.0
        self._is_interruptible = True

    def leave(self, error: BaseException | None) -> None:
        with self._lock:
            has_fired = self._disarm()
        if has_fired and not isinstance(error, TimeLimitExceeded):
            raise TimeLimitExceeded from error

    def _disarm(self) -> bool:
        """Whether the time limit had been exceeded."""
        self._is_interruptible = False
        has_fired = self._fired_at is not None
        self._fired_at = None
        if has_fired:
            # It may not have arrived yet, and must not arrive in the middle of what comes next.
            _raise_in(self._thread, None)
        return has_fired

    def suspend(self) -> None:
        with self._lock:
            self._is_handling = self._is_interruptible
            self._is_interruptible = False
            self._waits_since = self._clock.monotonic()
            has_fired = self._fired_at is not None
            if has_fired:
                _raise_in(self._thread, None)
        if has_fired:
            raise TimeLimitExceeded

    def resume(self) -> None:
        # No lock, as above.
        self._waited += self._clock.monotonic() - self._waits_since
        self._is_interruptible = self._is_handling


class _Handling:
    """``with`` around a handler, made once a thread: it is entered for every message."""

    def __init__(self, watch: ThreadWatch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._watch.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.leave(error)


class _Waiting:
    """``with`` around waiting for the database, within a handler or after it."""

    def __init__(self, watch: ThreadWatch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._watch.suspend()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.resume()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise at the thread's next line, or take back what has not arrived yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error) if error else None)
