"""Looking who is alive, from outside: by whether the lock is held, and whether the heartbeat moves."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from stagepost.flow.clock import Clock
from stagepost.liveness.incarnation import Record

# How long a heartbeat may stand still before its owner's claims are given to others. A paused owner that wakes up
# finds the fence; until then nobody else does its work. Longer than the supervisor takes to replace a hung worker.
PAUSED_AFTER_SECONDS = 30.0
# Looks that must have seen it stand still: one look after the machine itself had slept would see nothing but the past.
LOOKS_MIN = 3

State = Literal["alive", "paused", "dead"]

# The lock file, or the number of the row.
Key = Path | int


@dataclass(frozen=True, slots=True)
class Found:
    """``is_locked``: its process, or its connection, holds its lock at this moment; one that does not is ``dead`` only
    once it is sure not to come back."""

    key: Key
    state: State
    record: Record
    is_locked: bool


class Survey(Protocol):
    """Keep one and look again and again: a heartbeat that stands still is seen by looking twice."""

    def look(self) -> list[Found]:
        """Every incarnation of the app that has left a proof of life, but for this process's own where it may not look
        at these."""

    def forget(self, found: Found) -> None:
        """That one is dead, and all it held is settled."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Heartbeat:
    beat: int
    since: float
    looks: int = 0


class Heartbeats:
    """Whether a heartbeat moves is seen by the looker's own clock, which does not jump, and not by comparing two
    machines', or one machine's before and after it was set."""

    def __init__(self, clock: Clock, paused_after_seconds: float) -> None:
        self._clock = clock
        self._paused_after_seconds = paused_after_seconds
        self._seen: dict[Key, Heartbeat] = {}

    def stands_still(self, key: Key, beat: int) -> bool:
        now = self._clock.monotonic()
        last = self._seen.get(key)
        if last is None or last.beat != beat:
            self._seen[key] = Heartbeat(beat, now)
            return False
        last.looks += 1
        return now - last.since > self._paused_after_seconds and last.looks >= LOOKS_MIN

    def keep(self, keys: AbstractSet[Key]) -> None:
        """The others are gone."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}
