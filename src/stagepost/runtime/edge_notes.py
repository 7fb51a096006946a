"""Note in the store how a process sees its broker, for ``stagepost status`` and ``stagepost doctor``."""

from __future__ import annotations

import math
from typing import Protocol

from stagepost.flow.clock import HOUR, Clock
from stagepost.flow.errors import StoreError
from stagepost.ports.edge import EdgeState, EdgeView
from stagepost.ports.session import Session
from stagepost.transaction.queue_commit import committing

# How often the counts are noted, and that the process lives.
NOTE_SECONDS = 10.0
# The views of processes that were killed are removed after this time.
STALE = 24 * HOUR

BLOCKED = "the broker takes no publications: it lacks memory or disk"


class Receiving(Protocol):
    """The receiver of a process. ``trouble`` is the error that keeps it from its broker, ``fullness`` why it stops."""

    trouble: str
    fullness: str
    arrived: int


class Dispatching(Protocol):
    """The dispatcher of a process. ``trouble`` is the error that keeps it from its broker."""

    trouble: str
    is_blocked: bool
    dispatched: int


class EdgeNotes:
    """The notes of one process. The thread of its dispatcher takes the turns, with its session."""

    def __init__(self, receiver: Receiving, dispatcher: Dispatching, broker: str, node: str, clock: Clock) -> None:
        self._receiver = receiver
        self._dispatcher = dispatcher
        self._broker = broker
        self._node = node
        self._clock = clock
        self._seen: tuple[EdgeState, str] | None = None
        self._since = 0
        self._noted_at = -math.inf

    def turn(self, session: Session) -> None:
        """Note the state if it or its reason has changed, or if the last note is old. Raises ``StoreError``."""
        monotonic, now = self._clock.monotonic(), self._clock.now()
        state, reason = seen = self._look()
        if self._seen is None or state != self._seen[0]:
            self._since = now
        if seen != self._seen:
            self._seen, self._noted_at = seen, -math.inf
        if monotonic - self._noted_at < NOTE_SECONDS:
            return
        counts = self._receiver.arrived, self._dispatcher.dispatched
        with committing(session, is_durable=False):
            session.edge.note_view(EdgeView(self._node, self._broker, state, self._since, reason, *counts, now))
        self._noted_at = monotonic

    def end(self, session: Session) -> None:
        """Remove the notes of this process, and old ones. Raises ``StoreError``."""
        with committing(session, is_durable=False):
            session.edge.forget_view(self._node, self._clock.now() - STALE)

    def turn_in_an_outage(self, session: Session) -> None:
        """Do as ``turn`` does. A store that is away too gets the note later."""
        try:
            self.turn(session)
        except StoreError:
            # The threads log the outage when they need the store.
            return

    def _look(self) -> tuple[EdgeState, str]:
        if trouble := self._receiver.trouble or self._dispatcher.trouble:
            return "away", trouble
        if self._dispatcher.is_blocked:
            return "blocked", BLOCKED
        if self._receiver.fullness:
            return "full", self._receiver.fullness
        return "connected", ""
