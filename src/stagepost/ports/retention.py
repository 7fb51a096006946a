"""Capability: retention. The hours by which ages are counted, and the accepted ids that a purge may remove.

The age of a row is the number of *hours of housekeeping* that were counted since it was written. An hour of the wall
clock is counted once, if a housekeeper of the store ran in it. So neither an outage nor a leap of the clock makes rows
old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class OldId(NamedTuple):
    """An accepted id. ``hour`` is the number of hours that were counted when it was accepted."""

    hour: int
    key: str
    flow_id: str


class DeclaredHours(NamedTuple):
    """The retention that one app declares for the ids of a scope, or for a kind of row."""

    scope: str
    app: str
    hours: int


# Sorts before every id.
FIRST = OldId(-1, "", "")


class Retention(Protocol):
    """The retention's part of a session. Writes happen in its open transaction; reads need none."""

    def count_hour(self, moment: int) -> bool:
        """Count the hour of the wall clock that holds the moment. Returns False where it was counted before."""

    def is_counted(self, moment: int) -> bool:
        """Say whether the hour of the wall clock that holds the moment was counted."""

    def hours(self) -> int:
        """Return how many hours were counted."""

    def declared(self) -> list[DeclaredHours]:
        """Return the declared retentions, by scope and app."""

    def declare(self, app: str, hours: Mapping[str, int]) -> None:
        """Replace the retentions that an app declared, in hours by scope."""

    def scopes(self) -> list[str]:
        """Return the scopes of the accepted ids."""

    def oldest_id(self, scope: str) -> int | None:
        """Return the hour of the oldest id of a scope; None where the scope has none."""

    def old_ids(self, scope: str, hour: int, after: OldId, limit: int) -> list[OldId]:
        """Return ids of a scope of this hour or an earlier one, the oldest first, from behind ``after`` on.

        Ids whose messages wait in the outbox are left out.
        """

    def remove_ids(self, scope: str, hour: int, keys: Sequence[str]) -> int:
        """Remove those of the ids that are of this hour or an earlier one. Returns how many."""

    def open_flows(self, flow_ids: Sequence[str]) -> set[str]:
        """Return the flows that have a message in the queue or among the dead letters."""
