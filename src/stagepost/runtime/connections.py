"""The present use of connections to the stages' database: their holders, and the callers that wait for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionUsage:
    """The use of one connection.

    ``who`` is a thread's name, and ``since`` is in microseconds since the epoch. The other fields are set for a stage's
    thread: the message that it runs, and the last ``step`` that it passed.
    """

    who: str
    since: int
    stage: str | None = None
    step: str | None = None
    message_id: str | None = None
    flow_id: str | None = None

    def __str__(self) -> str:
        if self.stage is None:
            return self.who
        return f"{self.who}, which runs {self.message_id} of flow {self.flow_id} at {self.stage}, after {self.step!s}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The figures of a process's connections.

    ``size``     the number of open connections, in use or idle
    ``most``     the limit of connections for starting flows; None for no limit
    ``waiting``  the number of callers that wait for one, the first of them for ``longest_wait_ms``
    ``holders``  the use of each connection that is in use, longest use first
    """

    size: int
    most: int | None
    waiting: int
    longest_wait_ms: float
    holders: Sequence[ConnectionUsage]

    @property
    def in_use(self) -> int:
        return len(self.holders)


def longest_first(holders: Sequence[ConnectionUsage]) -> list[ConnectionUsage]:
    return sorted(holders, key=lambda each: each.since)
