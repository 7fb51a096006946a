"""Capability: the departures, when each outbound message may first have left for its broker.

A copy of a message that left long ago may reach a receiver that no longer knows the first copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stagepost.flow.claim import Claim


class Departures(Protocol):
    """The departures' part of a session. Writes happen in its open transaction."""

    def stamp(self, claims: Sequence[Claim], now: int) -> None:
        """Note that these messages may leave from ``now`` on. An earlier stamp of a message stays."""

    def left_at(self, claims: Sequence[Claim]) -> dict[str, int]:
        """Return the stamp of each message by its id. A message without a stamp is left out."""

    def clear(self, claims: Sequence[Claim]) -> None:
        """Remove the stamps of these messages."""
