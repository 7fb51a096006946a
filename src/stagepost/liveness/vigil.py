"""The thread that keeps a process honest: beats its heart, enforces time limits, and sees when nobody wants it
any more."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence

from stagepost.liveness.incarnation import Incarnation
from stagepost.liveness.watch import ThreadWatch, Verdict

TICK_SECONDS = 0.1
BEAT_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Vigil:
    """
    ``on_stuck``    called with the watches whose attempt exceeded its time limit and did not yield, once for each
    ``on_orphaned`` called once, when the parent process is gone, or the lock file
    """

    def __init__(
        self,
        incarnation: Incarnation,
        watches: Sequence[ThreadWatch],
        *,
        on_stuck: Callable[[Sequence[ThreadWatch]], None],
        on_orphaned: Callable[[str], None],
        parent: int | None = None,
    ) -> None:
        self._incarnation = incarnation
        self._watches = watches
        self._on_stuck = on_stuck
        self._on_orphaned = on_orphaned
        self._parent = parent
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="vigil", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        told_stuck: list[ThreadWatch] = []
        told_orphaned = False
        ticks_a_beat = round(BEAT_SECONDS / TICK_SECONDS)
        ticks = 0
        while not self._stop.wait(TICK_SECONDS):
            ticks += 1
            stuck = [watch for watch in self._watches if _is_stuck(watch)]
            if newly := [watch for watch in stuck if watch not in told_stuck]:
                self._on_stuck(newly)
            told_stuck = stuck
            if ticks % ticks_a_beat == 0 and not told_orphaned:
                reason = self._orphaned()
                if reason:
                    told_orphaned = True
                    self._on_orphaned(reason)

    def _orphaned(self) -> str | None:
        try:
            unseen = self._incarnation.beat()
        except OSError:
            # The disk may come back, and the heart must then still beat.
            logger.exception("no sign of life could be given", extra={"event": "vigil-broken"})
            unseen = None
        if unseen is not None:
            return unseen
        if self._parent is not None and os.getppid() != self._parent:
            return f"the parent process {self._parent} is gone"
        return None


def _is_stuck(watch: ThreadWatch) -> bool:
    try:
        return watch.check() is Verdict.STUCK
    except Exception:
        # It may belong to a thread that is just ending. The heart, and the other watches, go on.
        logger.exception("an attempt could not be interrupted", extra={"event": "vigil-broken"})
        return False
