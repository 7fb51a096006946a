"""Capability: the edge of a store, where messages arrive from a broker and leave for it.

A copy of a message that left long ago may reach a receiver that no longer knows the first copy. So the store keeps when
each unconfirmed message may first have left, for a broker or for a consumer of the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from stagepost.flow.claim import Claim
from stagepost.ports.dead_letters import DeadLetter


class Fill(NamedTuple):
    """The messages of one stage that bound its receiver, each counted up to a limit.

    ``active``  messages that can run now, or are claimed
    ``failed``  messages that wait after a failure or a death
    ``oldest_at``  when the oldest flow among the unclaimed ready messages began; None without one
    """

    active: int
    failed: int
    oldest_at: int | None = None


# ``connected``  messages arrive and leave
# ``full``       messages leave, and none is received, because too many outbound rows wait
# ``blocked``    the broker lacks memory or disk, and takes no publications
# ``away``       there is no connection, or the broker refuses it
EdgeState = Literal["connected", "full", "blocked", "away"]


class EdgeView(NamedTuple):
    """A broker as one process with a receiver and a dispatcher sees it. Times are in microseconds.

    ``broker``   the URL without its password
    ``since``    the time at which the state began
    ``reason``   the cause of any state but ``connected``
    ``arrived``, ``dispatched``  messages since the process started
    ``seen_at``  the time of this view
    """

    node: str
    broker: str
    state: EdgeState
    since: int
    reason: str
    arrived: int
    dispatched: int
    seen_at: int


# A message by its stage and its id.
Departing = Claim | DeadLetter


class Edge(Protocol):
    """The edge's part of a session. Writes happen in its open transaction; reads need none."""

    def store(self) -> str:
        """Return the uuid by which a broker knows the store. A copy of the database has the same."""

    def fill(self, stages: Sequence[str], most: int, failed_most: int) -> dict[str, Fill]:
        """Return the fill of each stage. No part is counted much further than its limit."""

    def destinations(self) -> list[str]:
        """Return the stages of unclaimed outbound rows, delayed ones included."""

    def outbound(self, most: int) -> int:
        """Count the outbound rows, claimed and delayed ones included, no further than ``most``."""

    def stamp(self, claims: Sequence[Departing], now: int) -> None:
        """Note that these messages may leave from ``now`` on. An earlier stamp of a message stays."""

    def left_at(self, claims: Sequence[Claim]) -> dict[str, int]:
        """Return the stamp of each message by its id. A message without a stamp is left out."""

    def clear(self, claims: Sequence[Departing]) -> None:
        """Remove the stamps of these messages."""

    def clear_mark(self, scope: str, key: str) -> bool:
        """Remove the mark of a key that was accepted with ``is_direct``. Returns False where it has none."""

    def count_death(self, claim: Claim) -> int:
        """Count one more process that died with this message after its departure.

        Return the number of them in a row, 0 for a message without a stamp.
        """

    def forget_deaths(self, claim: Claim) -> None:
        """Set the count of ``count_death`` back: an attempt has ended."""

    def note_view(self, view: EdgeView) -> None:
        """Replace the view of a process."""

    def forget_view(self, node: str, stale: int) -> None:
        """Remove the view of a process, and all views that were noted before ``stale``."""

    def views(self) -> list[EdgeView]:
        """Return the views of all processes, also of those that died since."""
