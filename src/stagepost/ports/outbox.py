"""Capability: the outbox, for apps whose queue is in another database. It keeps flows until the queue has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from stagepost.flow.initiation import Acceptance

# A new row is due at once, by whatever clock its relay has.
DUE_AT_ONCE = 0


class HeldMessage(NamedTuple):
    """A started flow that has not reached the queue. ``attempts`` counts how often the queue refused it."""

    id: int
    acceptance: Acceptance
    data: bytes
    node: str
    attempts: int


class Backlog(NamedTuple):
    """A number of rows; ``oldest_at`` is when the oldest of them was accepted, None for no rows."""

    size: int
    oldest_at: int | None


NO_BACKLOG = Backlog(0, None)


class Outbox(Protocol):
    """The outbox's part of a session. Writes happen in its open transaction."""

    def hold(self, acceptances: Sequence[Acceptance], now: int, node: str) -> None:
        """Add started flows; ``node`` names the process that accepted them."""

    def lease(self, now: int, until: int, limit: int) -> list[HeldMessage]:
        """Return due rows, the oldest first. No other session gets them before ``until``."""

    def postpone(self, held_id: int, until: int, attempts: int) -> None:
        """Set when the row is due again, and how often the queue refused it."""

    def remove(self, held_id: int) -> None:
        """Delete a row."""

    def holds(self, scope: str, key: str) -> bool:
        """Say whether a flow with this key waits here. ``scope`` and ``key`` are those of its acceptance."""

    def next_at(self) -> int | None:
        """Return when the next row is due; None where there is none."""

    def backlog(self) -> Backlog:
        """Count the rows."""
