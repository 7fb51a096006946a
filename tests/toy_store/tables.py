"""Tables whose changes others see when they are committed, all at once, and not before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stagepost.ports.audits import KeptFinding, NamedState
from stagepost.ports.business_keys import KeyRow
from stagepost.ports.circuits import CircuitBreaker
from stagepost.ports.dead_letters import DeadLetter
from stagepost.ports.declarations import Declaration
from stagepost.ports.edge import EdgeView
from stagepost.ports.inbox import InboxRow
from stagepost.ports.journal import Waypoint
from stagepost.ports.outbox import HeldMessage
from stagepost.ports.queue import QueueRow
from stagepost.ports.replays import Replay
from stagepost.ports.runs import Quarantined, RunCounts
from stagepost.ports.subscriptions import Subscription

V = TypeVar("V")


@dataclass(frozen=True)
class ToyRun:
    target: str
    source: str
    started_at: int
    starts: int = 0
    ended_start: int | None = None
    rows_in: int | None = None


class Gone:
    """What a change says of a row that it removes."""


GONE = Gone()


class Committed(Generic[V]):
    """The rows that everybody sees. ``last`` is the greatest number handed out: none is ever used again."""

    def __init__(self) -> None:
        self.rows: dict[Any, V] = {}
        self.last = 0


class Table(Generic[V]):
    """One session's view of a table: what is committed, and on top of it what its open transaction changed."""

    def __init__(self, committed: Committed[V]) -> None:
        self._committed = committed
        self._changes: dict[Any, V | Gone] = {}

    def insert(self, value: V) -> int:
        self._committed.last += 1
        self.put(self._committed.last, value)
        return self._committed.last

    def put(self, key: Any, value: V) -> None:
        self._changes[key] = value

    def remove(self, key: Any) -> V:
        value = self.get(key)
        assert value is not None
        self._changes[key] = GONE
        return value

    def get(self, key: Any) -> V | None:
        value = self._changes.get(key)
        if value is None:
            return self._committed.rows.get(key)
        return None if isinstance(value, Gone) else value

    def items(self) -> Iterator[tuple[Any, V]]:
        """By key."""
        for key in sorted(self._committed.rows.keys() | self._changes.keys()):
            value = self.get(key)
            if value is not None:
                yield key, value

    def values(self) -> Iterator[V]:
        return (value for _, value in self.items())

    def __len__(self) -> int:
        return sum(1 for _ in self.items())

    def commit(self) -> None:
        for key, value in self._changes.items():
            if isinstance(value, Gone):
                self._committed.rows.pop(key, None)
            else:
                self._committed.rows[key] = value
        self._changes = {}

    def rollback(self) -> None:
        self._changes = {}

    def mark(self) -> dict[Any, V | Gone]:
        return dict(self._changes)

    def rollback_to(self, mark: dict[Any, V | Gone]) -> None:
        self._changes = mark


@dataclass(frozen=True, slots=True)
class Ready:
    row: QueueRow
    owner: str | None


@dataclass(frozen=True, slots=True)
class HandledRow:
    row: InboxRow
    produced: bytes | None
    is_sent: bool


@dataclass(frozen=True, slots=True)
class HeldRow:
    next_at: int
    held_at: int
    held: HeldMessage


class World:
    """Everything that is kept, as everybody sees it. ``commits`` counts them; ``ledger`` is for handlers."""

    def __init__(self) -> None:
        self.commits = 0
        self.ready: Committed[Ready] = Committed()
        self.delayed: Committed[QueueRow] = Committed()
        self.suspect: Committed[QueueRow] = Committed()
        self.accepted: Committed[tuple[str, str | None, bool]] = Committed()
        self.journal: Committed[Waypoint] = Committed()
        self.letters: Committed[DeadLetter] = Committed()
        self.replays: Committed[Replay] = Committed()
        self.replay_letters: Committed[bool] = Committed()
        self.subscriptions: Committed[Subscription] = Committed()
        self.circuits: Committed[CircuitBreaker] = Committed()
        self.declarations: Committed[Declaration] = Committed()
        self.probed: Committed[bool] = Committed()
        self.runs: Committed[ToyRun] = Committed()
        self.tasks: Committed[tuple[int, RunCounts]] = Committed()
        self.quarantine: Committed[Quarantined] = Committed()
        self.findings: Committed[KeptFinding] = Committed()
        self.business_keys: Committed[KeyRow] = Committed()
        self.audit_states: Committed[NamedState] = Committed()
        self.inbox: Committed[HandledRow] = Committed()
        self.outbox: Committed[HeldRow] = Committed()
        self.departures: Committed[int] = Committed()
        self.views: Committed[EdgeView] = Committed()
        self.departure_deaths: Committed[int] = Committed()
        self.ledger: Committed[Any] = Committed()


class Tables:
    """One session's view of all of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ready = Table(world.ready)
        self.delayed = Table(world.delayed)
        self.suspect = Table(world.suspect)
        self.accepted = Table(world.accepted)
        self.journal = Table(world.journal)
        self.letters = Table(world.letters)
        self.replays = Table(world.replays)
        self.replay_letters = Table(world.replay_letters)
        self.subscriptions = Table(world.subscriptions)
        self.circuits = Table(world.circuits)
        self.declarations = Table(world.declarations)
        self.probed = Table(world.probed)
        self.runs = Table(world.runs)
        self.tasks = Table(world.tasks)
        self.quarantine = Table(world.quarantine)
        self.findings = Table(world.findings)
        self.business_keys = Table(world.business_keys)
        self.audit_states = Table(world.audit_states)
        self.inbox = Table(world.inbox)
        self.outbox = Table(world.outbox)
        self.departures = Table(world.departures)
        self.views = Table(world.views)
        self.departure_deaths = Table(world.departure_deaths)
        self.ledger = Table(world.ledger)
        self._all: list[Table[Any]] = [value for value in vars(self).values() if isinstance(value, Table)]

    def commit(self) -> None:
        for table in self._all:
            table.commit()
        self.world.commits += 1

    def rollback(self) -> None:
        for table in self._all:
            table.rollback()

    def mark(self) -> list[dict[Any, Any]]:
        return [table.mark() for table in self._all]

    def rollback_to(self, marks: list[dict[Any, Any]]) -> None:
        for table, mark in zip(self._all, marks, strict=True):
            table.rollback_to(mark)
