"""A message as it stands in a queue that is kept in a database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class QueueRow(NamedTuple):
    """Where it waits follows from its values: what has died among the suspects, what has a ``due_at`` among the
    delayed, all else among what can run now."""

    stage: str
    message_id: str
    flow_id: str
    failures: int
    deaths: int
    deliveries: int
    origin_at: int
    envelope: bytes
    due_at: int | None


class Look(NamedTuple):
    """Whether there are messages to claim, and probes of paused stages to make or to look after."""

    messages: bool
    probes: bool


@dataclass(frozen=True, slots=True)
class Pending:
    """``next_due_at``: when the first delayed message is due, or the first probe of a paused stage;
    ``next_suspect_at``: the first suspect. None: there is none. What waits at a paused stage is not ``ready``.

    ``stalled_probes``: where nothing is left but what waits at paused stages, several of whose probes failed, how many
    did; else None.
    """

    ready: bool
    claimed: bool
    next_due_at: int | None
    next_suspect_at: int | None
    stalled_probes: int | None = None

    @property
    def is_drained_but_for_suspects(self) -> bool:
        return not (self.ready or self.claimed) and self.next_due_at is None

    @property
    def is_drained(self) -> bool:
        return not (self.ready or self.claimed) and self.next_due_at is None and self.next_suspect_at is None
