"""Lock files: each incarnation's lock, heartbeat and record is one file in a folder beside the database.

The lock is POSIX (``lockf``): the system frees it when the process dies, and a forked child does not inherit it, so a
subprocess of a handler cannot make its dead parent look alive. The modification time is the heartbeat; a database row
would wait behind SQLite's one writer and make the living look dead. The content says what runs: written without a
flush, it survives the process, which is all it is for.

POSIX locks are dropped when *any* descriptor of the file is closed in the process, so a process never opens its own
files a second time: ``mine`` knows them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path
from typing import cast

import msgspec

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import StoreUnavailable
from stagepost.flow.texts import as_sentence
from stagepost.ports.liveness import IncarnationRecord, Registration, Running, RunState

SUFFIX = ".lock"
UNBORN_SUFFIX = ".new"
SUFFIXES = {SUFFIX, UNBORN_SUFFIX}
HEADER_BYTES = 512
SLOT_BYTES = 64
NOTHING_RUNS = ""

_mine: set[tuple[int, str]] = set()


class _Header(msgspec.Struct, frozen=True):
    owner: str
    node: str
    process: int
    started_at: int
    is_abandoned: bool = False


def mine(path: Path) -> bool:
    """Return whether this very process holds that file, or is making it."""
    return _own(path) in _mine


def _own(path: Path) -> tuple[int, str]:
    return os.getpid(), str(path)


class LockFile:
    """Implements ``ports.liveness.Incarnation``."""

    def __init__(self, folder: Path, registration: Registration, clock: Clock) -> None:
        self.owner = registration.owner
        self._clock = clock
        self._slots = [NOTHING_RUNS] * registration.slots
        identity = self.owner.rpartition("/")[2]
        self.path = (folder / f"{registration.app}@{identity}{SUFFIX}").absolute()
        self._header = _Header(self.owner, registration.node, registration.process, registration.started_at)
        try:
            folder.mkdir(exist_ok=True)
            self._descriptor = _made(self.path, self._header, registration.slots)
            # Mapped, because it is written before every message: a write() would put the file's time of change, and so
            # the file system's own journal, into the next commit's wait for the disk. A mapping, too, outlives the
            # process.
            self._record = mmap.mmap(self._descriptor, 0)
        except OSError as error:
            raise StoreUnavailable(f"{folder}: lock files cannot be made there: {error}") from error
        self.beat()

    def note(self, slot: int, claim: Claim | None) -> None:
        fence = NOTHING_RUNS if claim is None else f"{claim.row} {claim.deliveries}"
        self._slots[slot] = fence
        self._write(slot, f"running {fence}" if fence else NOTHING_RUNS)

    def time_out(self, slot: int) -> None:
        if self._slots[slot]:
            self._write(slot, f"timed-out {self._slots[slot]}")

    def abandon(self) -> None:
        # Not slot by slot: others may begin the next message meanwhile.
        self._record[:HEADER_BYTES] = _encoded(msgspec.structs.replace(self._header, is_abandoned=True))

    def beat(self) -> str | None:
        now = self._clock.now() * 1_000
        os.utime(self._descriptor, ns=(now, now))
        if os.fstat(self._descriptor).st_nlink == 0:
            return f"the lock file {self.path} was removed, so no other process can see that this one lives"
        return None

    def _write(self, slot: int, text: str) -> None:
        begin = HEADER_BYTES + slot * SLOT_BYTES
        self._record[begin : begin + SLOT_BYTES] = text.encode().ljust(SLOT_BYTES)

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        _mine.discard(_own(self.path))
        self._record.close()
        os.close(self._descriptor)


def _made(path: Path, header: _Header, slots: int) -> int:
    """Make the file and lock it under another name first, so that no process sees it unlocked and takes it for dead."""
    unborn = path.with_suffix(UNBORN_SUFFIX)
    _mine.update({_own(path), _own(unborn)})
    content = _encoded(header) + b" " * (slots * SLOT_BYTES)
    while True:
        descriptor = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        try:
            _share(descriptor, path.parent)
            os.pwrite(descriptor, content, 0)
            unborn.rename(path)
        except FileNotFoundError:
            # Another process looked before the file was locked, and removed it as a leftover.
            os.close(descriptor)
            continue
        except BaseException:
            os.close(descriptor)
            raise
        _mine.discard(_own(unborn))
        return descriptor


def _share(descriptor: int, folder: Path) -> None:
    """Let every user of the folder see who is alive."""
    found = folder.stat()
    os.fchmod(descriptor, found.st_mode & 0o666)
    if os.geteuid() == 0:
        os.fchown(descriptor, found.st_uid, found.st_gid)


def _encoded(header: _Header) -> bytes:
    return msgspec.json.encode(header).ljust(HEADER_BYTES)


def read_record(descriptor: int, key: str) -> IncarnationRecord | None:
    """Return the record of a process that lives, or None for a file that is not, or not yet, a record."""
    found = os.fstat(descriptor)
    try:
        header = msgspec.json.decode(os.pread(descriptor, HEADER_BYTES, 0).rstrip(), type=_Header)
        slots = [os.pread(descriptor, SLOT_BYTES, at).decode() for at in range(HEADER_BYTES, found.st_size, SLOT_BYTES)]
        running = tuple(_running(slot, header) for slot in slots if slot.strip())
    except (msgspec.DecodeError, ValueError):
        return None
    return IncarnationRecord(
        key,
        header.owner,
        header.node,
        header.process,
        header.started_at,
        found.st_mtime_ns,
        is_locked=True,
        is_gone=False,
        running=running,
    )


def _running(slot: str, header: _Header) -> Running:
    state, row, deliveries = slot.split()
    if header.is_abandoned and state == "running":
        state = "abandoned"
    return Running(cast(RunState, state), int(row), int(deliveries))


class LockFolder:
    """Implements ``ports.liveness.WorkerRegistry``. It leaves out this process's own incarnations."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock

    def enter(self, registration: Registration) -> LockFile:
        return LockFile(self.folder, registration, self._clock)

    def look(self, app: str) -> list[IncarnationRecord]:
        files = sorted(self.folder.glob(f"{app}@*"))
        return [each for path in files if path.suffix in SUFFIXES and (each := _probe(path)) is not None]

    def forget(self, key: str) -> None:
        Path(key).unlink(missing_ok=True)

    def close(self) -> None:
        """No file stays open between two looks."""


def _probe(path: Path) -> IncarnationRecord | None:
    if mine(path):
        # Opening and closing it here would drop its lock.
        return None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailable(
            f"{path}: {as_sentence(error.strerror)} "
            "Whether its process lives cannot be seen. Run all processes of an app as "
            "one user, or give them the rights to this file that they have to the database."
        ) from error
    try:
        record = read_record(descriptor, str(path))
        if not _is_free(descriptor):
            return record
        if record is None or path.suffix == UNBORN_SUFFIX:
            # A power failure left it half written. A process that is about to lock a new one makes another.
            path.unlink(missing_ok=True)
            return None
        return record._replace(is_locked=False, is_gone=True)
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
