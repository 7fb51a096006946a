"""Detect which incarnations are alive, paused or dead, from their locks and heartbeats."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from stagepost.flow.clock import Clock
from stagepost.ports.liveness import IncarnationRecord, WorkerRegistry

# How long a heartbeat may stay unchanged before its owner's claims are given to others. The fence stops a paused owner
# that wakes up. The time is longer than the supervisor takes to replace a hung worker.
PAUSED_AFTER_SECONDS = 30.0
# How long a lock may be free while its process may live. A server that restarts ends all connections, and the
# processes come back within a heartbeat.
LOST_SECONDS = 5.0
# How many looks must find a heartbeat unchanged. After the machine itself has slept, one look proves nothing.
LOOKS_MIN = 3

State = Literal["alive", "paused", "dead"]


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """An incarnation, and what the detector concludes. ``dead`` means that its process cannot come back."""

    state: State
    record: IncarnationRecord


class FailureDetector:
    """Keeps the heartbeats of earlier looks, because only a later one can see that a heartbeat has not changed."""

    def __init__(
        self,
        registry: WorkerRegistry,
        app_name: str,
        clock: Clock,
        *,
        paused_after_seconds: float = PAUSED_AFTER_SECONDS,
    ) -> None:
        self._registry = registry
        self._app_name = app_name
        self._heartbeats = _Heartbeats(clock, paused_after_seconds)
        self._losses = _Heartbeats(clock, LOST_SECONDS)

    def look(self) -> list[PeerStatus]:
        """Return every incarnation that has left a record. Raises ``StoreError``."""
        records = self._registry.look(self._app_name)
        found = [PeerStatus(self._state(each), each) for each in records]
        keys = {each.key for each in records}
        self._heartbeats.keep(keys)
        self._losses.keep(keys)
        return found

    def forget(self, peer: PeerStatus) -> None:
        """Remove the record of a dead incarnation, after all its claims were settled. Raises ``StoreError``."""
        self._registry.forget(peer.record.key)

    def close(self) -> None:
        self._registry.close()

    def _state(self, record: IncarnationRecord) -> State:
        # Each look updates both, so that neither counts time in which it was not updated.
        is_paused = self._heartbeats.is_unchanged(record.key, record.beat)
        # A heartbeat that moves now and then proves life, even if every look finds the lock free.
        is_lost = self._losses.is_unchanged(record.key, 2 * record.beat + record.is_locked)
        if record.is_locked:
            return "paused" if is_paused else "alive"
        return "dead" if record.is_gone or is_lost else "alive"


@dataclass(slots=True)
class _Heartbeat:
    beat: int
    since: float
    looks: int = 0


class _Heartbeats:
    """Measures how long heartbeats stay unchanged, by this machine's clock: two machines' clocks cannot be compared."""

    def __init__(self, clock: Clock, limit_seconds: float) -> None:
        self._clock = clock
        self._limit_seconds = limit_seconds
        self._seen: dict[str, _Heartbeat] = {}

    def is_unchanged(self, key: str, beat: int) -> bool:
        now = self._clock.monotonic()
        last = self._seen.get(key)
        if last is None or last.beat != beat:
            self._seen[key] = _Heartbeat(beat, now)
            return False
        last.looks += 1
        return now - last.since > self._limit_seconds and last.looks >= LOOKS_MIN

    def keep(self, keys: AbstractSet[str]) -> None:
        """Drop all others: their records are gone."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}
