"""Wake workers of other processes with NOTIFY. It is sent rarely, and one thread of each process listens.

A transaction with NOTIFY takes a lock until it has committed, and every other transaction with NOTIFY waits for it. One
NOTIFY in every transaction costs a third of the throughput, so each process sends at most one in a few milliseconds.
Messages that are put shortly after a NOTIFY get none. So a session that was notified looks again soon, and then less
and less often. A session that missed a NOTIFY looks after half a second.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import psycopg

from stagepost.flow.clock import SystemClock
from stagepost.store.postgres.statements import Statement
from stagepost.store.postgres.wire import connected

RING_SECONDS_MIN = 0.01
# The pause between a notification and the next look. By then most messages without a notification are committed.
ECHO_SECONDS = 2 * RING_SECONDS_MIN
POLL_SECONDS = 0.5
RETRY_SECONDS = 1.0
TURN_SECONDS = 1.0

# It is part of the transaction that puts the messages, so it is delivered only if that commits.
RING = Statement(b"NOTIFY stagepost", ())
LISTEN = b"LISTEN stagepost"

logger = logging.getLogger(__name__)


class Notifier:
    """The notifications of one store in one process. It begins to listen when a session first asks for changes."""

    def __init__(self, parameters: dict[str, Any], monotonic: Callable[[], float] | None = None) -> None:
        self._parameters = parameters
        self._lock = threading.Lock()
        self._rung_at = -RING_SECONDS_MIN
        self._listens = False
        self.monotonic = monotonic or SystemClock().monotonic
        self.heard = 0

    def may_ring(self) -> bool:
        """Return whether this process may notify now. If so, that counts as a notification."""
        now = self.monotonic()
        if now - self._rung_at < RING_SECONDS_MIN:
            return False
        self._rung_at = now
        return True

    def listen(self) -> None:
        with self._lock:
            if self._listens:
                return
            self._listens = True
        threading.Thread(
            target=_listen, args=(weakref.ref(self), self._parameters), name="notifier", daemon=True
        ).start()


class NotificationListener:
    """The notifications that one session has seen."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._heard = -1
        self._looked_at = -POLL_SECONDS
        self._pause = POLL_SECONDS

    def has_changed(self) -> bool:
        """Return whether there may be new messages. It errs towards True, because a notification may be missing."""
        self._notifier.listen()
        now = self._notifier.monotonic()
        heard = self._notifier.heard
        if heard != self._heard:
            self._pause = ECHO_SECONDS
        elif now - self._looked_at < self._pause:
            return False
        else:
            self._pause = min(2 * self._pause, POLL_SECONDS)
        self._heard, self._looked_at = heard, now
        return True


def _listen(notifier: weakref.ref[Notifier], parameters: dict[str, Any]) -> None:
    """Listen until the notifier is garbage-collected."""
    while notifier() is not None:
        try:
            with connected(parameters) as connection:
                connection.execute(LISTEN)
                _count(notifier, connection)
        except psycopg.Error as error:
            # Meanwhile the sessions look without notifications.
            logger.debug("not listening: %s", error, extra={"event": "not-listening"})
            time.sleep(RETRY_SECONDS)


def _count(notifier: weakref.ref[Notifier], connection: psycopg.Connection[Any]) -> None:
    # Notifications before this moment were missed.
    is_rung = True
    while (here := notifier()) is not None:
        if is_rung:
            here.heard += 1
        del here
        is_rung = next(connection.notifies(timeout=TURN_SECONDS, stop_after=1), None) is not None
