"""One protocol for every thread of ours: start, stop, join, error."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)


class StopFlag:
    """Implements ``transaction.database_wait.StopSignal``. Any thread may stop it; it never starts again."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ask the waiting thread to end. Return at once."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def wait(self, seconds: float) -> bool:
        return not self._stopped.wait(seconds)


class NeverStops:
    """Implements ``StopSignal`` for a thread that is ended only together with its process."""

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return True


class Service(StopFlag):
    """A named thread with one life.

    ``work`` runs in it, and returns soon after ``stop`` was called. ``error`` is what it raised, if it raised; a
    service whose owner does not read that ``logs_error``.
    """

    def __init__(self, name: str, work: Callable[[], object], *, logs_error: bool = False) -> None:
        super().__init__()
        self._logs_error = logs_error
        self.error: BaseException | None = None
        self._work = work
        # A daemon: at its end the interpreter would wait for any other thread, and a handler may never return.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def name(self) -> str:
        return self._thread.name

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float | None = None) -> bool:
        """Wait until it has ended, without limit if ``seconds`` is None. Return False if it still runs."""
        self._thread.join(None if seconds is None else max(seconds, 0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error
            if self._logs_error:
                logger.critical("thread %s ended by an error", self.name, exc_info=error, extra={"event": "broken"})
