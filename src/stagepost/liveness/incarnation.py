"""One worker incarnation: its lock file, its heartbeat, and the record of what it runs.

The file is the proof of life. Its lock is POSIX (``lockf``): the system frees it when the process dies, and a forked
child does not inherit it, so a subprocess of a handler cannot make its dead parent look alive. Its modification time is
the heartbeat; a database row would wait behind a long write transaction and make the living look dead. Its content says
what runs: written without a flush, it survives the process, which is all it is for.

POSIX locks are dropped when *any* descriptor of the file is closed in the process, so a process never opens its own
files a second time: ``mine`` knows them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast

import msgspec

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import StoreUnavailable
from stagepost.flow.ids import IdSource

SUFFIX = ".lock"
UNBORN_SUFFIX = ".new"
HEADER_BYTES = 512
SLOT_BYTES = 64
NOTHING_RUNS = ""

# "running": it was in its handler, or committing. "timed-out": its time limit had passed and it did not yield.
# "abandoned": it ran, and its worker was told to stop and could wait no longer.
RunState = Literal["running", "timed-out", "abandoned"]


class Header(msgspec.Struct, frozen=True):
    owner: str
    node: str
    process: int
    started_at: int


class Running(NamedTuple):
    """What one slot of the record says: the fence of the message that runs there, and how."""

    state: RunState
    row: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class Record:
    header: Header
    running: tuple[Running, ...]


_mine: set[tuple[int, str]] = set()


def mine(path: Path) -> bool:
    """Whether this very process holds that file, or is making it."""
    return _own(path) in _mine


def _own(path: Path) -> tuple[int, str]:
    return os.getpid(), str(path)


class Incarnation:
    """``owner`` is what the claims of this incarnation carry. Close it when everything it held is settled or
    released."""

    def __init__(self, folder: Path, app_name: str, node: str, ids: IdSource, clock: Clock, *, slots: int = 1) -> None:
        identity = ids.mint()
        self.owner = f"{app_name}/{identity}"
        self._clock = clock
        self._slots = [NOTHING_RUNS] * slots
        self.path = (folder / f"{app_name}@{identity}{SUFFIX}").absolute()
        header = Header(self.owner, node, os.getpid(), clock.now())
        try:
            folder.mkdir(exist_ok=True)
            self._descriptor = _made(self.path, header, slots)
            # Mapped, for it is written before every message: a write() would put the file's time of change, and so the
            # file system's own journal, into the next commit's wait for the disk. What is written here outlives the
            # process as well.
            self._record = mmap.mmap(self._descriptor, 0)
        except OSError as error:
            raise StoreUnavailable(f"{folder}: lock files cannot be made there: {error}") from error
        self.beat()

    def note(self, slot: int, claim: Claim) -> None:
        """Put on record what runs in that slot.

        What was settled may stay on record: its fence no longer matches anything.
        """
        fence = f"{claim.row} {claim.deliveries}"
        self._slots[slot] = fence
        self._write(slot, f"running {fence}")

    def clear(self, slot: int) -> None:
        """Nothing runs in that slot, and what ran last is not settled."""
        self._slots[slot] = NOTHING_RUNS
        self._write(slot, NOTHING_RUNS)

    def restate(self, slot: int, state: RunState) -> None:
        """Say of what runs in that slot how it runs; nothing where nothing does."""
        if self._slots[slot]:
            self._write(slot, f"{state} {self._slots[slot]}")

    def beat(self) -> bool:
        """Prove that this process is not paused. False when the file was removed, so that nobody sees the proof."""
        now = self._clock.now() * 1_000
        os.utime(self._descriptor, ns=(now, now))
        return os.fstat(self._descriptor).st_nlink > 0

    def _write(self, slot: int, text: str) -> None:
        begin = HEADER_BYTES + slot * SLOT_BYTES
        self._record[begin : begin + SLOT_BYTES] = text.encode().ljust(SLOT_BYTES)

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        _mine.discard(_own(self.path))
        self._record.close()
        os.close(self._descriptor)


def _made(path: Path, header: Header, slots: int) -> int:
    """Made and locked under another name first: nobody may see it unlocked, and take it for dead."""
    unborn = path.with_suffix(UNBORN_SUFFIX)
    _mine.update({_own(path), _own(unborn)})
    content = msgspec.json.encode(header).ljust(HEADER_BYTES) + b" " * (slots * SLOT_BYTES)
    while True:
        descriptor = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        try:
            os.pwrite(descriptor, content, 0)
            unborn.rename(path)
        except FileNotFoundError:
            # Somebody looked before it was locked, and took it for a leftover.
            os.close(descriptor)
            continue
        except BaseException:
            os.close(descriptor)
            raise
        _mine.discard(_own(unborn))
        return descriptor


def read_record(descriptor: int) -> Record | None:
    """None for a file that is not, or not yet, a record."""
    size = os.fstat(descriptor).st_size
    try:
        header = msgspec.json.decode(os.pread(descriptor, HEADER_BYTES, 0).rstrip(), type=Header)
        slots = (os.pread(descriptor, SLOT_BYTES, at).decode() for at in range(HEADER_BYTES, size, SLOT_BYTES))
        return Record(header, tuple(_running(slot) for slot in slots if slot.strip()))
    except (msgspec.DecodeError, ValueError):
        return None


def _running(slot: str) -> Running:
    state, row, deliveries = slot.split()
    return Running(cast(RunState, state), int(row), int(deliveries))
