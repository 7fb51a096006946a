"""Claim messages ahead, for all threads of an incarnation.

The thread that finds the prefetcher empty claims the next window for all, and the others wait for it. A message that
waits too long, because every thread is busy with a slow one, is given back, so that another process may take it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import ClaimUnknown
from stagepost.ports.queue import Pending
from stagepost.transaction.claiming import Claimer
from stagepost.transaction.queue_commit import may_share
from stagepost.transaction.stage import BATCH_MAX

# How long a claimed message may wait for a thread before it is given back.
HELD_SECONDS_MAX = 1.0
INTERVAL_SECONDS_MIN = 0.002
INTERVAL_SECONDS_MAX = 0.05
GROWTH = 1.5
# About this much work is claimed ahead, so that little is held back from idle processes.
AHEAD_SECONDS = 0.1
WINDOW_MAX = BATCH_MAX
# The weight of the newest observation. A slow one counts in full at once: a window must shrink faster than it grows.
SMOOTHING = 0.2


class Prefetcher:
    """``stages`` says how many messages of each may share a transaction.

    ``is_done`` decides, when nothing can be claimed, whether nothing is left to wait for. The prefetcher stops then.
    Without it the prefetcher never stops by itself. It decides about ``drained``, all stages of the process.
    """

    def __init__(
        self,
        stages: Mapping[str, int],
        owner: str,
        node: str,
        threads: int,
        clock: Clock,
        *,
        is_done: Callable[[Pending], bool] | None = None,
        drained: Collection[str] = (),
    ) -> None:
        self.stages = list(stages)
        self._drained = sorted({*self.stages, *drained})
        self._batches = stages
        self._owner = owner
        self._node = node
        self._clock = clock
        self._is_done = is_done
        self._unsure: list[Claim] = []
        self._waiting: deque[tuple[Claim, float]] = deque()
        self._condition = threading.Condition()
        self._is_claiming = False
        self.is_stopped = False
        # The threads that wait with a message of a blocking redelivery.
        self.blocked = 0
        self._has_moved = True
        self._is_in_database = False
        self.window = PrefetchWindow(threads)
        self.wakeup = Wakeup()

    @property
    def has_some(self) -> bool:
        """Say whether a message is at hand. Another thread may take it meanwhile."""
        return bool(self._waiting)

    def next(self, claimer: Claimer) -> list[Claim]:
        """Wait for the next message, and return it with those that may share its transaction.

        Return an empty list after the prefetcher was stopped.
        """
        while True:
            with self._condition:
                while not self._waiting and self._is_claiming and not self.is_stopped:
                    self._condition.wait()
                if self.is_stopped:
                    return []
                if self._waiting:
                    self._has_moved = True
                    return self._handed_out()
                self._is_claiming = True
            try:
                self._claim_or_wait(claimer)
            finally:
                with self._condition:
                    self._is_claiming = False
                    self._condition.notify_all()

    def _handed_out(self) -> list[Claim]:
        first, _ = self._waiting.popleft()
        room = self._batches[first.stage] - 1
        if not room or not may_share(first):
            return [first]
        fitting = [each for each, _ in self._waiting if each.stage == first.stage and may_share(each)][:room]
        rows = {each.row for each in fitting}
        self._waiting = deque(each for each in self._waiting if each[0].row not in rows)
        return [first, *fitting]

    def has_moved(self) -> bool:
        """Return whether a message was handed out since the last call, or the database keeps a claim waiting."""
        moved, self._has_moved = self._has_moved, False
        return moved or self._is_in_database

    def wait_blocked(self, seconds: float) -> float | None:
        """Wait with a kept message. Return None afterwards, or the seconds that are left if the prefetcher stops."""
        end = self._clock.monotonic() + seconds
        with self._condition:
            self.blocked += 1
            self._condition.wait_for(lambda: self.is_stopped, seconds)
            self.blocked -= 1
            return max(end - self._clock.monotonic(), 0.0) if self.is_stopped else None

    def stop(self) -> None:
        with self._condition:
            self.is_stopped = True
            self._condition.notify_all()
        self.wakeup.ring()

    def give_back(self, claimer: Claimer, *, held_longer_than: float = 0.0, beside: Sequence[Claim] = ()) -> None:
        """Release the waiting messages: all of them, or those that have waited too long; and the claims ``beside``."""
        now = self._clock.monotonic()
        with self._condition:
            returned = [each for each in self._waiting if now - each[1] >= held_longer_than]
            self._waiting = deque(each for each in self._waiting if now - each[1] < held_longer_than)
        try:
            claimer.release([*beside, *(claim for claim, _ in returned)], self._node)
        except BaseException:
            # The messages are still ours: to be run here, or to be given back later.
            with self._condition:
                self._waiting.extendleft(reversed(returned))
                self._condition.notify_all()
            raise

    def _remembered(self, claimer: Claimer) -> list[Claim]:
        """Return the claims of a commit whose answer was lost. No other process takes them while this one lives."""
        found = [claim for claim in self._unsure if claimer.queue.holds(claim)]
        self._unsure = []
        return found

    def _claim_or_wait(self, claimer: Claimer) -> None:
        self._is_in_database = True
        try:
            claims = self._remembered(claimer) or claimer.claim(self.stages, self.window.size, self._owner, self._node)
        except ClaimUnknown as error:
            self._unsure = error.claims
            raise
        finally:
            self._is_in_database = False
        if claims:
            self.wakeup.saw_work()
            now = self._clock.monotonic()
            with self._condition:
                self._waiting.extend((claim, now) for claim in claims)
            return
        pending = claimer.pending(self.stages)
        if self._is_done is not None:
            # The messages of other threads may cause some for these.
            of_all = pending if len(self._drained) == len(self.stages) else claimer.pending(self._drained)
            if self._is_done(of_all):
                self.stop()
                return
        while not self.is_stopped:
            rung = self.wakeup.wait()
            due = pending.next_due_at is not None and pending.next_due_at <= self._clock.now()
            if rung or due or claimer.queue.changed():
                return


class Wakeup:
    """Says when to look for work again, without asking too often. Any thread may ``ring``; one thread waits.

    SQLite has no NOTIFY. Its data version says, at the cost of one small read, whether another process has committed.
    It is read every 2 ms after work was seen, and less and less often while nothing comes, down to every 50 ms.
    """

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._is_waiting = False
        self._interval = INTERVAL_SECONDS_MIN

    def ring(self) -> None:
        # A thread that begins to wait at this moment looks a few milliseconds later.
        if self._is_waiting:
            self._rung.set()

    def saw_work(self) -> None:
        self._interval = INTERVAL_SECONDS_MIN

    def wait(self) -> bool:
        """Wait until rung, or until it is time to look again. Return True if rung."""
        self._is_waiting = True
        rung = self._rung.wait(self._interval)
        self._is_waiting = False
        self._rung.clear()
        self._interval = min(self._interval * GROWTH, INTERVAL_SECONDS_MAX)
        return rung


class PrefetchWindow:
    """Decides how many messages to claim ahead for ``slots`` handlers. It starts with one message each.

    Enough are claimed that claiming costs little, and few enough that none waits behind a slow one.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._average: float | None = None

    def observe(self, seconds: float) -> None:
        """Take into account that an attempt took this long in all."""
        if self._average is None or seconds > self._average * 10:
            self._average = seconds
        else:
            self._average += SMOOTHING * (seconds - self._average)

    @property
    def size(self) -> int:
        if self._average is None:
            return self._slots
        ahead = int(self._slots * AHEAD_SECONDS / max(self._average, 1e-6))
        return max(self._slots, min(ahead, WINDOW_MAX))


class Draining:
    """Decides when one run that drains the queue gives up waiting for paused stages.

    It gives up once several probes failed, one of them since the run began: an outage may have ended before it began.
    """

    def __init__(self) -> None:
        self._has_looked = False
        self._found: int | None = None

    def is_stalled(self, pending: Pending) -> bool:
        """Return whether only messages at paused stages are left, and these are given up. Ask from the beginning."""
        if not self._has_looked:
            self._has_looked = True
            self._found = pending.stalled_probes
        return pending.stalled_probes is not None and pending.stalled_probes != self._found
