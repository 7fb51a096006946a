"""Lock rows: each incarnation's heartbeat and record is a row, with a lock that the server frees when its connection
ends.

The running messages are not written down, as they are in a lock file: that would be one more round trip for every
message. They follow from the queue. An incarnation runs its claims in the order in which it claimed them. So the
messages that it was running when it died are the first of those that it still holds, as many as it has slots. Only an
attempt's end that was no death is written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from stagepost.flow.claim import Claim
from stagepost.flow.errors import StoreError
from stagepost.ports.liveness import Registration

if TYPE_CHECKING:
    from stagepost.store.postgres.worker_registry import PostgresWorkerRegistry

BEAT_SECONDS = 1.0

logger = logging.getLogger(__name__)


class LockRow:
    """Implements ``ports.liveness.Incarnation``. A thread of its own keeps the connection, for a server that does not
    answer must not keep the watchdog from enforcing time limits."""

    def __init__(self, lives: PostgresWorkerRegistry, registration: Registration) -> None:
        self.owner = registration.owner
        self._lives = lives
        self._slots: list[tuple[int, int] | None] = [None] * registration.slots
        self._registration = registration
        self._number = lives.add_row(registration)
        self._is_entered = True
        # The writes to do, each with the event that is set afterwards.
        self._unwritten: list[tuple[Callable[[], None], threading.Event]] = []
        self._has_news = threading.Event()
        self._is_over = threading.Event()
        self._heart = threading.Thread(target=self._live, name="heart", daemon=True)
        self._heart.start()

    def note(self, slot: int, claim: Claim | None) -> None:
        self._slots[slot] = None if claim is None else (claim.row, claim.deliveries)

    def time_out(self, slot: int) -> None:
        fence = self._slots[slot]
        if fence is not None:
            self._write(lambda: self._lives.time_out(self._number, *fence))

    def abandon(self) -> None:
        # Not slot by slot: a slot's last claim may be settled, and the queue says which message it runs next.
        self._write(lambda: self._lives.abandon(self._number))

    def _write(self, write: Callable[[], None]) -> None:
        """Wait for the server, but not for long: a message whose end is not written by then counts as having died."""
        is_written = threading.Event()
        self._unwritten.append((write, is_written))
        self._has_news.set()
        is_written.wait(BEAT_SECONDS)

    def beat(self) -> str | None:
        """Do nothing: the heart thread beats by itself."""
        return None

    def close(self) -> None:
        self._is_over.set()
        self._has_news.set()
        self._heart.join()

    def _live(self) -> None:
        while not self._is_over.is_set():
            self._has_news.wait(BEAT_SECONDS)
            self._has_news.clear()
            try:
                self._stay_entered()
                while self._unwritten:
                    write, is_written = self._unwritten[0]
                    write()
                    self._unwritten.pop(0)
                    is_written.set()
                self._lives.beat(self._number)
            except StoreError as error:
                logger.warning("heartbeat not written: %s", error, extra={"event": "database-unavailable"})
        try:
            self._lives.leave(self._number)
        except StoreError as error:
            # The lock ends with the connection. Another process then finds nothing to take over.
            logger.warning("incarnation not signed off: %s", error, extra={"event": "database-unavailable"})
        self._lives.close()

    def _stay_entered(self) -> None:
        """Enter again after the connection was lost. Until the server notices the loss, the old connection still holds
        the lock, so each heartbeat asks for it again."""
        if not self._lives.is_connected:
            self._is_entered = False
        if not self._is_entered:
            self._is_entered = self._lives.enter_again(self._number, self._registration)
