"""Facts about a PostgreSQL server and its other users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stagepost.ports.findings import Version


class Table(NamedTuple):
    """A table of Stagepost's. ``rows`` and ``dead_rows`` are the server's estimates, and ``age`` is in transactions."""

    name: str
    is_unlogged: bool
    is_vacuumed: bool
    rows: int
    dead_rows: int
    age: int
    bytes: int


class TransactionOpen(NamedTuple):
    """A session with an open transaction.

    ``holds``  the age, in transactions, from which it keeps dead rows from being removed; None if it does not
    """

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
    """A replication slot. ``holds``: see ``TransactionOpen``. ``kept_bytes``: the write-ahead log that it keeps."""

    name: str
    kind: str
    is_active: bool
    holds: int | None
    kept_bytes: int | None


class Replica(NamedTuple):
    """A replica. ``holds``: see ``TransactionOpen``. It holds by ``hot_standby_feedback``."""

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
    """The lead of the server's clock over this machine's. The uncertainty is half a round trip."""

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
class ServerFacts:
    """Facts about a server and its other users.

    ``server`` is None where it could not be seen, or where the server is too old to be asked.
    """

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
