"""Run ``after_commit`` callbacks in a bounded pool: each at most once, after its message is settled.

A full pool makes the worker wait, with no transaction open. An error of a callback is logged and changes nothing,
because its stage has committed. A callback that does not return delays the end of its worker, and other callbacks, only
for a limited time.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from stagepost.flow.claim import Claim

THREADS = 4
WAITING_MAX = 64
# How long a worker waits for room before it gives a callback up, and how long ``close`` waits for callbacks.
ROOM_SECONDS = 60.0
CLOSE_SECONDS = 30.0

logger = logging.getLogger(__name__)

Callback = Callable[[], object]


class CallbackPool:
    def __init__(self) -> None:
        self._waiting: deque[tuple[Claim, Callback]] = deque()
        self._running: list[Claim] = []
        # The threads are daemons, because the interpreter waits for others at its end, and a callback may never return.
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._is_closed = False

    def __call__(self, claim: Claim, callbacks: Sequence[Callback]) -> None:
        for callback in callbacks:
            with self._changed:
                if not self._changed.wait_for(self._has_room, ROOM_SECONDS):
                    _log(claim, "after-commit-given-up", f"is not run: {self._longest()} for over {ROOM_SECONDS:g} s")
                    continue
                self._waiting.append((claim, callback))
                if len(self._threads) < THREADS:
                    name = f"after-commit-{len(self._threads)}"
                    self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                    self._threads[-1].start()
                self._changed.notify_all()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait up to ``seconds`` for the callbacks, then log those that are left and give them up."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            if self._changed.wait_for(lambda: not (self._waiting or self._running), seconds):
                return
            for claim in self._running:
                _log(claim, "after-commit-stuck", f"has not returned within {seconds:g} s and is not waited for")
            for claim, _ in self._waiting:
                _log(claim, "after-commit-given-up", f"is not run: {self._longest()}")
            self._waiting.clear()

    def _has_room(self) -> bool:
        return len(self._waiting) + len(self._running) < THREADS + WAITING_MAX

    def _longest(self) -> str:
        return f"all threads run callbacks of {', '.join(sorted({claim.stage for claim in self._running}))}"

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                claim, callback = self._waiting.popleft()
                self._running.append(claim)
            try:
                callback()
            except BaseException as error:  # noqa: BLE001 - the stage has committed, and the pool goes on
                _log(claim, "after-commit-failed", f"raised {type(error).__name__}", error)
            finally:
                with self._changed:
                    self._running.remove(claim)
                    self._changed.notify_all()


def _log(claim: Claim, event: str, problem: str, error: BaseException | None = None) -> None:
    logger.error(
        "an after_commit callback of %s %s; the stage itself had committed",
        claim.stage,
        problem,
        exc_info=error,
        extra={"event": event, "message_id": claim.message_id, "flow_id": claim.flow_id},
    )
