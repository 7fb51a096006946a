"""Capability: the cursors of named readers, which follow the journal from position to position."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from stagepost.flow.clock import SECOND
from stagepost.ports.journal import Position

# A cursor that no reader has used for so long holds nothing back any longer.
EXPIRY = 30 * 24 * 3600 * SECOND


class Cursor(NamedTuple):
    """The place in the journal that a reader has reached.

    ``first``     where it began; it never changes
    ``position``  every line before it was read
    ``used_at``   when the reader last asked for something, in microseconds
    """

    first: Position
    position: Position
    used_at: int

    def has_expired(self, now: int) -> bool:
        return now - self.used_at > EXPIRY


class Cursors(Protocol):
    """The cursors' part of a session. Writes happen in its open transaction."""

    def find(self, reader: str) -> Cursor | None:
        """Return the cursor of a reader."""

    def add(self, reader: str, first: Position, now: int) -> None:
        """Add the cursor of a new reader. A reader that has one keeps it."""

    def advance(self, reader: str, position: Position, now: int) -> None:
        """Move a cursor forward, never back; a position of another epoch than the cursor's moves nothing."""

    def use(self, reader: str, now: int) -> None:
        """Note that the reader is there."""
