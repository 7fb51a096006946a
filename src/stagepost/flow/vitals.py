"""What a store tells of itself to whoever asks whether it is well: facts, without an opinion.

Moments are microseconds since 1970, spans are seconds, sizes are bytes. ``None`` is what could not be seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from stagepost.flow.declaration import Undeclared
from stagepost.flow.inbox import Backlog

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


class Holding(NamedTuple):
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


class LockHolder(NamedTuple):
    """A process that keeps others from writing. Its ``program`` is empty where that cannot be seen."""

    process: int
    program: str
    is_stopped: bool

    def __str__(self) -> str:
        program = f" ({self.program})" if self.program else ""
        return f"process {self.process}{program}{', which is stopped,' if self.is_stopped else ''}"


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
class QueueVitals:
    """``hearts`` were looked at after ``holdings``: an owner without a heart was gone already."""

    waiting: list[Waiting]
    lately: list[Lately]
    holdings: list[Holding]
    hearts: list[Heart]


class Version(NamedTuple):
    """Of the tables: as they are (0: there are none), and as this Stagepost has them."""

    tables: int
    newest: int


class Table(NamedTuple):
    """One of Stagepost's. ``rows`` and ``dead_rows`` are the server's own estimates; ``age`` is in transactions."""

    name: str
    is_unlogged: bool
    is_vacuumed: bool
    rows: int
    dead_rows: int
    age: int
    bytes: int


class TransactionOpen(NamedTuple):
    """A session that has a transaction open. ``holds``: how many transactions ago it begins to keep dead rows from
    being removed, or None where it does not."""

    pid: int
    application: str
    user: str
    state: str | None
    open_seconds: float
    state_seconds: float
    holds: int | None


class PreparedTransaction(NamedTuple):
    gid: str
    owner: str
    age_seconds: float


class Slot(NamedTuple):
    """``holds``: see ``TransactionOpen``; ``kept_bytes`` of the write-ahead log."""

    name: str
    kind: str
    is_active: bool
    holds: int | None
    kept_bytes: int | None


class Replica(NamedTuple):
    """``holds``: see ``TransactionOpen``; by ``hot_standby_feedback``."""

    pid: int
    application: str
    state: str | None
    sync_state: str | None
    holds: int | None


class RoleSetting(NamedTuple):
    """A role, a database or both for which ``synchronous_commit`` is relaxed."""

    role: str
    database: str
    value: str


class ClockGap(NamedTuple):
    """How far the server's clock is ahead of this machine's, give or take half a round trip."""

    ahead_seconds: float
    uncertain_seconds: float


class Server(NamedTuple):
    version: str
    version_number: int
    is_standby: bool
    is_read_only: bool
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    synchronous_commit_source: str
    autovacuum: bool
    track_counts: bool
    prepared_max: int
    connections: int
    connections_max: int
    connections_reserved: int
    synchronous_standbys: str
    sees_others: bool
    age: int
    freeze_age_max: int


@dataclass(frozen=True, slots=True)
class ServerVitals:
    """PostgreSQL's. ``server`` is None only where the server is too old to be asked more than its version."""

    place: str
    version_number: int
    driver: str
    version: Version | None = None
    clock: ClockGap | None = None
    server: Server | None = None
    tables: list[Table] | None = None
    transactions: list[TransactionOpen] | None = None
    prepared: list[PreparedTransaction] | None = None
    slots: list[Slot] | None = None
    replicas: list[Replica] | None = None
    relaxed: list[RoleSetting] | None = None
    queue: QueueVitals | None = None
    paused: list[Paused] | None = None
    undeclared: list[Undeclared] | None = None
    backlogs: Backlogs | None = None
    unseen: list[Unseen] = field(default_factory=list)


FileSystemKind = Literal["local", "network", "memory", "unknown"]


class FileSystem(NamedTuple):
    kind: FileSystemKind
    name: str


class Holder(NamedTuple):
    """A process that has the file open; its program's name, not its command line."""

    pid: int
    program: str


@dataclass(frozen=True, slots=True)
class FileVitals:
    """SQLite's. ``lock_folder_trouble`` says why lock files could not be made; ``integrity`` is what ``PRAGMA
    quick_check`` found, or None where nobody asked; nor are the accepted counted then. ``writer`` is the process that
    has kept all others from writing for a second."""

    place: str
    library: str
    version: Version
    journal_mode: str
    synchronous: int
    file_system: FileSystem
    free_bytes: int
    file_bytes: int
    wal_bytes: int
    holders: list[Holder]
    unwritable: list[str]
    lock_folder_trouble: str | None
    writer: LockHolder | None = None
    journal_rows: int | None = None
    accepted_rows: int | None = None
    integrity: list[str] | None = None
    queue: QueueVitals | None = None
    paused: list[Paused] | None = None
    undeclared: list[Undeclared] | None = None
    backlogs: Backlogs | None = None
    unseen: list[Unseen] = field(default_factory=list)


Vitals = ServerVitals | FileVitals
