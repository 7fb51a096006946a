"""Facts about the health of a store, without a judgement.

Moments are microseconds since 1970, spans are seconds, sizes are bytes. ``None`` stands for an unknown value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from stagepost.ports.broker import EdgeAddresses
from stagepost.ports.declarations import Undeclared
from stagepost.ports.edge import EdgeView
from stagepost.ports.findings import Finding
from stagepost.ports.outbox import Backlog

# The span of "lately".
LATELY_SECONDS = 3600


class Unseen(NamedTuple):
    """A part that could not be examined, and the store's reason."""

    what: str
    why: str


class Waiting(NamedTuple):
    """The messages of one stage that have not begun.

    ``oldest_at``  when the oldest flow among the ready messages began
    ``overdue``    delayed messages whose time has passed
    ``due_at``     when the first delayed message is due
    """

    stage: str
    ready: int
    oldest_at: int | None
    overdue: int
    due_at: int | None
    suspect: int


class Lately(NamedTuple):
    """Messages of one stage that were set aside for one reason within ``LATELY_SECONDS``."""

    stage: str
    reason: str
    letters: int


class ClaimCount(NamedTuple):
    """The number of messages that one incarnation has claimed."""

    owner: str
    messages: int


class Heart(NamedTuple):
    """An incarnation with a record.

    ``is_locked``       its process, or its connection, holds the lock
    ``silent_seconds``  the time since its last heartbeat
    """

    owner: str
    node: str
    process: int
    is_locked: bool
    silent_seconds: float | None
    started_at: int


class Paused(NamedTuple):
    """A stage whose circuit is open."""

    stage: str
    since: int
    probes: int
    error: str


class Backlogs(NamedTuple):
    """Messages for a queue in another database.

    ``held``    flows that were started here and are not in the queue yet
    ``unsent``  messages that were handled here and are not marked as sent
    """

    held: Backlog
    unsent: Backlog


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """The messages and incarnations. ``hearts`` is read after ``claims``, so an owner without a heart is gone."""

    waiting: list[Waiting]
    lately: list[Lately]
    claims: list[ClaimCount]
    hearts: list[Heart]


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The health of a store.

    ``place``     names the store; None where it cannot be examined, and its one finding says why
    ``findings``  the store's findings about its file or its server

    The other parts are None where there are no tables, or where ``unseen`` says why.
    """

    place: str | None
    findings: list[Finding]
    queue: QueueHealth | None = None
    paused: list[Paused] | None = None
    undeclared: list[Undeclared] | None = None
    backlogs: Backlogs | None = None
    edge: EdgeAddresses | None = None
    views: list[EdgeView] | None = None
    unseen: list[Unseen] = field(default_factory=list)
