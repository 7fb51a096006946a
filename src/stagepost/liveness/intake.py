"""What an incarnation has claimed and not yet begun, shared by its threads.

The thread that finds it empty claims the next window, for all; the others wait for it. What waits here for too long,
because every thread is busy with something slow, is given back, so that another process may take it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import ClaimUnknown
from stagepost.flow.queue import Pending
from stagepost.liveness.wakeup import Wakeup
from stagepost.transaction.batch import may_share
from stagepost.transaction.seams import Transport
from stagepost.transaction.window import Window

# How long a claimed message may wait for a thread before it is given back.
HELD_SECONDS_MAX = 1.0


class Intake:
    """``stages`` says how many messages of each may share a transaction.

    ``is_done`` decides, when nothing can be claimed, whether anything is left to wait for: then the intake stops by
    itself. None waits for ever.
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
    ) -> None:
        self.stages = list(stages)
        self._batches = stages
        self._owner = owner
        self._node = node
        self._clock = clock
        self._is_done = is_done
        self._unsure: list[Claim] = []
        self._waiting: deque[tuple[Claim, float]] = deque()
        self._condition = threading.Condition()
        self._is_claiming = False
        self._is_stopped = False
        self._has_moved = True
        self._is_in_database = False
        self.window = Window(threads)
        self.wakeup = Wakeup()

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def next(self, transport: Transport) -> list[Claim]:
        """The next message to handle, with those that may share its transaction; waits for one. None of them when the
        intake was stopped."""
        while True:
            with self._condition:
                while not self._waiting and self._is_claiming and not self._is_stopped:
                    self._condition.wait()
                if self._is_stopped:
                    return []
                if self._waiting:
                    self._has_moved = True
                    return self._handed_out()
                self._is_claiming = True
            try:
                self._claim_or_wait(transport)
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
        """Whether a message was handed out since the last call, or the database keeps a claim waiting."""
        moved, self._has_moved = self._has_moved, False
        return moved or self._is_in_database

    def stop(self) -> None:
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()
        self.wakeup.ring()

    def give_back(self, transport: Transport, *, held_longer_than: float = 0.0) -> None:
        """Release what waits here: all of it, or what has waited too long."""
        now = self._clock.monotonic()
        with self._condition:
            returned = [each for each in self._waiting if now - each[1] >= held_longer_than]
            self._waiting = deque(each for each in self._waiting if now - each[1] < held_longer_than)
        try:
            transport.release([claim for claim, _ in returned], self._node)
        except BaseException:
            # Still ours, so still to be done here, or to be given back later.
            with self._condition:
                self._waiting.extendleft(reversed(returned))
                self._condition.notify_all()
            raise

    def _remembered(self, transport: Transport) -> list[Claim]:
        """What was claimed, and could not be asked for until now: nobody else may take it for as long as we live."""
        found = [claim for claim in self._unsure if transport.holds(claim)]
        self._unsure = []
        return found

    def _claim_or_wait(self, transport: Transport) -> None:
        self._is_in_database = True
        try:
            claims = self._remembered(transport) or transport.claim(
                self.stages, self.window.size, self._owner, self._node
            )
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
        pending = transport.pending(self.stages)
        if self._is_done is not None and self._is_done(pending):
            self.stop()
            return
        while not self._is_stopped:
            rung = self.wakeup.wait()
            due = pending.next_due_at is not None and pending.next_due_at <= self._clock.now()
            if rung or due or transport.changed():
                return
