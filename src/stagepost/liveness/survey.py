"""Looking who is alive, from outside: by whether the lock is held, and whether the heartbeat moves."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stagepost.flow.clock import Clock
from stagepost.liveness.incarnation import SUFFIX, UNBORN_SUFFIX, Record, mine, read_record

# How long a heartbeat may stand still before its owner's claims are given to others. A paused owner that wakes up
# finds the fence; until then nobody else does its work. Longer than the supervisor takes to replace a hung worker.
PAUSED_AFTER_SECONDS = 30.0
# Looks that must have seen it stand still: one look after the machine itself had slept would see nothing but the past.
LOOKS_MIN = 3

SUFFIXES = {SUFFIX, UNBORN_SUFFIX}

State = Literal["alive", "paused", "dead"]


@dataclass(frozen=True, slots=True)
class Found:
    path: Path
    state: State
    record: Record


@dataclass(slots=True)
class Heartbeat:
    beat: int
    since: float
    looks: int = 0


class Survey:
    """Keep one and look again and again: whether a heartbeat moves is seen by the looker's own clock, which does not
    jump, and not by comparing two machines', or one machine's before and after it was set."""

    def __init__(
        self, folder: Path, app_name: str, clock: Clock, paused_after_seconds: float = PAUSED_AFTER_SECONDS
    ) -> None:
        self._folder = folder
        self._app_name = app_name
        self._clock = clock
        self._paused_after_seconds = paused_after_seconds
        self._heartbeats: dict[Path, Heartbeat] = {}

    def look(self) -> list[Found]:
        """Every incarnation of the app that has a file, but for this process's own."""
        files = sorted(self._folder.glob(f"{self._app_name}@*"))
        found = [each for path in files if path.suffix in SUFFIXES and (each := self._probe(path)) is not None]
        known = {each.path for each in found}
        self._heartbeats = {path: seen for path, seen in self._heartbeats.items() if path in known}
        return found

    def forget(self, found: Found) -> None:
        found.path.unlink(missing_ok=True)

    def _probe(self, path: Path) -> Found | None:
        if mine(path):
            # Opening and closing it here would drop its lock.
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            record = read_record(descriptor)
            if _is_free(descriptor):
                if record is None or path.suffix == UNBORN_SUFFIX:
                    # A power failure left it half written. Whoever is about to lock a new one makes another.
                    path.unlink(missing_ok=True)
                    return None
                return Found(path, "dead", record)
            if record is None:
                return None
            return Found(path, "paused" if self._stands_still(path, descriptor) else "alive", record)
        finally:
            os.close(descriptor)

    def _stands_still(self, path: Path, descriptor: int) -> bool:
        beat = os.fstat(descriptor).st_mtime_ns
        now = self._clock.monotonic()
        last = self._heartbeats.get(path)
        if last is None or last.beat != beat:
            self._heartbeats[path] = Heartbeat(beat, now)
            return False
        last.looks += 1
        return now - last.since > self._paused_after_seconds and last.looks >= LOOKS_MIN


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
