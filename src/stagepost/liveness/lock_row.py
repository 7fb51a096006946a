"""Proof of life in the database: a row with a heartbeat, and a lock that the server frees when its connection ends.

What runs is not written there before each message, as in a lock file: that would be a round trip more for every one of
them. It follows from the queue. An incarnation runs what it claimed in the order in which it claimed it, so that what
it was running when it died is the first of what it still holds, as many as it has slots. Only how an attempt ended,
where it was not by death, is written.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import cast

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import StoreError
from stagepost.flow.ids import IdSource
from stagepost.flow.lives import Life, Lives, Registration
from stagepost.liveness.incarnation import Header, Record, Running, RunState
from stagepost.liveness.survey import PAUSED_AFTER_SECONDS, Found, Heartbeats, State

BEAT_SECONDS = 1.0
# How long a lock may be free while its process may live: a server that restarts ends all connections, and a connection
# may be lost on its way. They come back within a heartbeat.
LOST_SECONDS = 5.0

logger = logging.getLogger(__name__)


class LockRow:
    """Implements ``liveness.incarnation.Incarnation``. A thread of its own keeps the connection, for a server that does
    not answer must not keep anybody from enforcing time limits."""

    def __init__(
        self,
        lives: Lives,
        app_name: str,
        node: str,
        ids: IdSource,
        clock: Clock,
        *,
        slots: int = 1,
        batched: Sequence[str] = (),
    ) -> None:
        self.owner = f"{app_name}/{ids.mint()}"
        self._lives = lives
        self._slots: list[tuple[int, int] | None] = [None] * slots
        self._registration = Registration(
            app_name, self.owner, node, socket.gethostname(), os.getpid(), slots, clock.now(), list(batched)
        )
        self._number = lives.enter(self._registration)
        self._is_entered = True
        # What is to be written, each with what is set once it is.
        self._unwritten: list[tuple[Callable[[], None], threading.Event]] = []
        self._has_news = threading.Event()
        self._is_over = threading.Event()
        self._heart = threading.Thread(target=self._live, name="heart", daemon=True)
        self._heart.start()

    def note(self, slot: int, claim: Claim) -> None:
        self._slots[slot] = (claim.row, claim.deliveries)

    def clear(self, slot: int) -> None:
        self._slots[slot] = None

    def time_out(self, slot: int) -> None:
        fence = self._slots[slot]
        if fence is not None:
            self._write(lambda: self._lives.time_out(self._number, *fence))

    def abandon(self) -> None:
        # Not slot by slot: what one began last may be settled, and which message it runs next is for the survey to say.
        self._write(lambda: self._lives.abandon(self._number))

    def _write(self, write: Callable[[], None]) -> None:
        """Waits for the server, but not for long: what is not written then counts as having died."""
        is_written = threading.Event()
        self._unwritten.append((write, is_written))
        self._has_news.set()
        is_written.wait(BEAT_SECONDS)

    def beat(self) -> str | None:
        """The heart beats by itself."""
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
                logger.warning("no sign of life could be given: %s", error, extra={"event": "database-unavailable"})
        try:
            self._lives.leave(self._number)
        except StoreError as error:
            # The lock ends with the connection; whoever looks then finds nothing to take over.
            logger.warning("not signed off: %s", error, extra={"event": "database-unavailable"})
        self._lives.close()

    def _stay_entered(self) -> None:
        """After the connection was lost. For as long as the server has not noticed, the lock is held by the connection
        that is gone, as if it were not; it is asked for again with each heartbeat."""
        if not self._lives.is_connected:
            self._is_entered = False
        if not self._is_entered:
            self._is_entered = self._lives.enter_again(self._number, self._registration)


class LockRowSurvey:
    """Implements ``liveness.survey.Survey``."""

    def __init__(
        self, lives: Lives, app_name: str, clock: Clock, paused_after_seconds: float = PAUSED_AFTER_SECONDS
    ) -> None:
        self._lives = lives
        self._app_name = app_name
        self._heartbeats = Heartbeats(clock, paused_after_seconds)
        self._losses = Heartbeats(clock, LOST_SECONDS)

    def look(self) -> list[Found]:
        found = [self._found(life) for life in self._lives.look(self._app_name)]
        self._heartbeats.keep({each.key for each in found})
        self._losses.keep({each.key for each in found})
        return found

    def forget(self, found: Found) -> None:
        assert isinstance(found.key, int)
        self._lives.forget(found.key)

    def close(self) -> None:
        self._lives.close()

    def _found(self, life: Life) -> Found:
        header = Header(life.owner, life.node, life.process, life.started_at)
        running = tuple(Running(cast(RunState, state), row, deliveries) for row, deliveries, state in life.running)
        return Found(life.number, self._state(life), Record(header, running), life.is_locked)

    def _state(self, life: Life) -> State:
        # Looked at in both cases, so that neither is seen to stand still for the time that the other was asked.
        is_paused = self._heartbeats.stands_still(life.number, life.beat)
        # A heart that beats now and then is that of somebody who lives, also where each look finds the lock free.
        is_lost = self._losses.stands_still(life.number, 2 * life.beat + life.is_locked) and not life.is_locked
        if life.is_locked:
            return "paused" if is_paused else "alive"
        if is_lost or _is_gone(life):
            return "dead"
        return "alive"


def _is_gone(life: Life) -> bool:
    """On this very machine a process that is gone can be seen to be."""
    if life.host != socket.gethostname():
        return False
    try:
        os.kill(life.process, 0)
    except OSError as error:
        return error.errno == errno.ESRCH
    return False
