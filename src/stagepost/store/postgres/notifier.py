"""Waking those who wait for work in other processes: NOTIFY, said seldom, and heard by one thread a process.

A NOTIFY makes its transaction take a lock that all others that notify wait for until it has committed, so that one in
every transaction costs a third of the throughput. One every few milliseconds wakes as well: whoever hears it looks
again soon, for what was put too shortly after it to be rung for, and then ever less often; whoever slept through it
looks after half a second.
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
# From a ring until the next look: by then what was not rung for has mostly been committed.
ECHO_SECONDS = 2 * RING_SECONDS_MIN
POLL_SECONDS = 0.5
RETRY_SECONDS = 1.0
TURN_SECONDS = 1.0

# Part of the transaction that put something: heard when it commits, and not when it does not.
RING = Statement(b"NOTIFY stagepost", ())
LISTEN = b"LISTEN stagepost"

logger = logging.getLogger(__name__)


class Notifier:
    """One for each store of a process. It listens from the moment somebody first asks whether anything has changed."""

    def __init__(self, parameters: dict[str, Any], monotonic: Callable[[], float] | None = None) -> None:
        self._parameters = parameters
        self._lock = threading.Lock()
        self._rung_at = -RING_SECONDS_MIN
        self._listens = False
        self.monotonic = monotonic or SystemClock().monotonic
        self.heard = 0

    def may_ring(self) -> bool:
        """Whether this process has not rung for a while; it has, from now on."""
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
    """What one session has heard of it."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._heard = -1
        self._looked_at = -POLL_SECONDS
        self._pause = POLL_SECONDS

    def has_changed(self) -> bool:
        """Says yes without a reason now and then: a ring may have gone unheard, or have been left out."""
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
    """For as long as the notifier is there."""
    while notifier() is not None:
        try:
            with connected(parameters) as connection:
                connection.execute(LISTEN)
                _count(notifier, connection)
        except psycopg.Error as error:
            # Those who wait look for themselves meanwhile.
            logger.debug("not listening: %s", error)
            time.sleep(RETRY_SECONDS)


def _count(notifier: weakref.ref[Notifier], connection: psycopg.Connection[Any]) -> None:
    # What came before it listened went unheard.
    is_rung = True
    while (here := notifier()) is not None:
        if is_rung:
            here.heard += 1
        del here
        is_rung = next(connection.notifies(timeout=TURN_SECONDS, stop_after=1), None) is not None
