"""Tables that can undo what a transaction did to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from stagepost.flow.queue import QueueRow
from stagepost.flow.runs import Quarantined, RunCounts
from stagepost.flow.waypoint import Waypoint
from stagepost.recovery.deadletter import DeadLetter

V = TypeVar("V")

Undo = list[Callable[[], None]]


class Table(Generic[V]):
    """Rows by key. ``insert`` hands out numbers that are never used again."""

    def __init__(self, undo: Undo) -> None:
        self._rows: dict[Any, V] = {}
        self._undo = undo
        self._last = 0

    def insert(self, value: V) -> int:
        self._last += 1
        self.put(self._last, value)
        return self._last

    def put(self, key: Any, value: V) -> None:
        before = self._rows.get(key)
        existed = key in self._rows
        self._rows[key] = value
        self._undo.append(lambda: self._restore(key, before) if existed else self._forget(key))

    def remove(self, key: Any) -> V:
        value = self._rows.pop(key)
        self._undo.append(lambda: self._restore(key, value))
        return value

    def get(self, key: Any) -> V | None:
        return self._rows.get(key)

    def items(self) -> Iterator[tuple[Any, V]]:
        """By key, so that what was put back by an undo stands where it stood."""
        return iter(sorted(self._rows.items()))

    def values(self) -> Iterator[V]:
        return (value for _, value in self.items())

    def __len__(self) -> int:
        return len(self._rows)

    def _restore(self, key: Any, value: Any) -> None:
        self._rows[key] = value

    def _forget(self, key: Any) -> None:
        del self._rows[key]


@dataclass(frozen=True, slots=True)
class Ready:
    row: QueueRow
    owner: str | None


@dataclass
class Tables:
    """Everything that is kept. ``commits`` counts them; ``ledger`` is for handlers: rows of theirs that commit
    with the stage."""

    undo: Undo = field(default_factory=list)
    commits: int = 0
    ready: Table[Ready] = field(init=False)
    delayed: Table[QueueRow] = field(init=False)
    suspect: Table[QueueRow] = field(init=False)
    accepted: Table[str] = field(init=False)
    journal: Table[Waypoint] = field(init=False)
    letters: Table[DeadLetter] = field(init=False)
    runs: Table[int | None] = field(init=False)
    chunks: Table[RunCounts] = field(init=False)
    quarantine: Table[Quarantined] = field(init=False)
    ledger: Table[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.ready = Table(self.undo)
        self.delayed = Table(self.undo)
        self.suspect = Table(self.undo)
        self.accepted = Table(self.undo)
        self.journal = Table(self.undo)
        self.letters = Table(self.undo)
        self.runs = Table(self.undo)
        self.chunks = Table(self.undo)
        self.quarantine = Table(self.undo)
        self.ledger = Table(self.undo)
