"""What a store tells of itself to whoever asks whether it is well: facts, without an opinion.

Moments are microseconds since 1970, spans are seconds, sizes are bytes. ``None`` is what could not be seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from stagepost.ports.declarations import Undeclared
from stagepost.ports.findings import Finding
from stagepost.ports.outbox import Backlog

# How far back "lately" goes, for what a store counts.
LATELY_SECONDS = 3600


class Unseen(NamedTuple):
    """A part that could not be looked at, and what the store said."""

    what: str
    why: str


class Waiting(NamedTuple):
    """What one stage has not begun. ``overdue`` are the delayed whose time has passed, ``due_at`` is the first one's;
    ``oldest_at`` is when the oldest flow among the ready began."""

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
    """How many claimed messages carry the name of one incarnation."""

    owner: str
    messages: int


class Heart(NamedTuple):
    """An incarnation that has left a proof of life. ``is_locked``: its process, or its connection, is there;
    ``silent_seconds``: since its last heartbeat."""

    owner: str
    node: str
    process: int
    is_locked: bool
    silent_seconds: float | None
    started_at: int


class Paused(NamedTuple):
    """A stage that failed too often to be tried with more than one message at a time."""

    stage: str
    since: int
    probes: int
    error: str


class Backlogs(NamedTuple):
    """What is meant for a queue in another database. ``held``: flows that were started here and are not there yet;
    ``unsent``: what was handled here and is not known to have been sent."""

    held: Backlog
    unsent: Backlog


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """``hearts`` were looked at after ``claims``: an owner without a heart was gone already."""

    waiting: list[Waiting]
    lately: list[Lately]
    claims: list[ClaimCount]
    hearts: list[Heart]


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """
    ``place``     names the store; None where it cannot be looked at, and its one finding says why
    ``findings``  what the store found out about its file or its server

    The other parts are None where there are no tables, or where ``unseen`` says why.
    """

    place: str | None
    findings: list[Finding]
    queue: QueueHealth | None = None
    paused: list[Paused] | None = None
    undeclared: list[Undeclared] | None = None
    backlogs: Backlogs | None = None
    unseen: list[Unseen] = field(default_factory=list)
