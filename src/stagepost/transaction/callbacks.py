"""The one bounded pool that runs ``after_commit`` callbacks: at most once, when everything is settled.

A full pool makes the worker wait, with no transaction open. What a callback raises is logged and changes nothing: its
stage has committed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from stagepost.flow.claim import Claim

THREADS = 4
WAITING_MAX = 64

logger = logging.getLogger(__name__)


class CallbackPool:
    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._room = threading.BoundedSemaphore(THREADS + WAITING_MAX)
        self._lock = threading.Lock()

    def __call__(self, claim: Claim, callbacks: Sequence[Callable[[], object]]) -> None:
        for callback in callbacks:
            self._room.acquire()
            self._started().submit(self._run, claim, callback)

    def close(self) -> None:
        """Waits for the callbacks that were handed over."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="after-commit")
            return self._executor

    def _run(self, claim: Claim, callback: Callable[[], object]) -> None:
        try:
            callback()
        except BaseException as error:  # whatever it is, the stage has committed and the pool lives on
            logger.exception(
                "an after_commit callback of %s raised %s; the stage itself had committed",
                claim.stage,
                type(error).__name__,
                extra={"event": "after-commit-failed", "message_id": claim.message_id, "flow_id": claim.flow_id},
            )
        finally:
            self._room.release()
