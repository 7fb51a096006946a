"""Proof of life in a file: its lock, its modification time, and its content.

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
from stagepost.flow.ids import IdSource
from stagepost.liveness.incarnation import Header, Record, Running, RunState
from stagepost.liveness.survey import PAUSED_AFTER_SECONDS, Found, Heartbeats

SUFFIX = ".lock"
UNBORN_SUFFIX = ".new"
SUFFIXES = {SUFFIX, UNBORN_SUFFIX}
HEADER_BYTES = 512
SLOT_BYTES = 64
NOTHING_RUNS = ""

_mine: set[tuple[int, str]] = set()


def mine(path: Path) -> bool:
    """Whether this very process holds that file, or is making it."""
    return _own(path) in _mine


def _own(path: Path) -> tuple[int, str]:
    return os.getpid(), str(path)


class LockFile:
    """Implements ``liveness.incarnation.Incarnation``."""

    def __init__(self, folder: Path, app_name: str, node: str, ids: IdSource, clock: Clock, *, slots: int = 1) -> None:
        identity = ids.mint()
        self.owner = f"{app_name}/{identity}"
        self._clock = clock
        self._slots = [NOTHING_RUNS] * slots
        self.path = (folder / f"{app_name}@{identity}{SUFFIX}").absolute()
        self._header = Header(self.owner, node, os.getpid(), clock.now())
        try:
            folder.mkdir(exist_ok=True)
            self._descriptor = _made(self.path, self._header, slots)
            # Mapped, for it is written before every message: a write() would put the file's time of change, and so the
            # file system's own journal, into the next commit's wait for the disk. What is written here outlives the
            # process as well.
            self._record = mmap.mmap(self._descriptor, 0)
        except OSError as error:
            raise StoreUnavailable(f"{folder}: lock files cannot be made there: {error}") from error
        self.beat()

    def note(self, slot: int, claim: Claim) -> None:
        fence = f"{claim.row} {claim.deliveries}"
        self._slots[slot] = fence
        self._write(slot, f"running {fence}")

    def clear(self, slot: int) -> None:
        self._slots[slot] = NOTHING_RUNS
        self._write(slot, NOTHING_RUNS)

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
            return f"the lock file {self.path} was removed, so nobody can see that this process lives"
        return None

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
    content = _encoded(header) + b" " * (slots * SLOT_BYTES)
    while True:
        descriptor = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        try:
            _share(descriptor, path.parent)
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


def _share(descriptor: int, folder: Path) -> None:
    """Whoever may use the folder must be able to see who lives."""
    found = folder.stat()
    os.fchmod(descriptor, found.st_mode & 0o666)
    if os.geteuid() == 0:
        os.fchown(descriptor, found.st_uid, found.st_gid)


def _encoded(header: Header) -> bytes:
    return msgspec.json.encode(header).ljust(HEADER_BYTES)


def read_record(descriptor: int) -> Record | None:
    """None for a file that is not, or not yet, a record."""
    size = os.fstat(descriptor).st_size
    try:
        header = msgspec.json.decode(os.pread(descriptor, HEADER_BYTES, 0).rstrip(), type=Header)
        slots = (os.pread(descriptor, SLOT_BYTES, at).decode() for at in range(HEADER_BYTES, size, SLOT_BYTES))
        return Record(header, tuple(_running(slot, header) for slot in slots if slot.strip()))
    except (msgspec.DecodeError, ValueError):
        return None


def _running(slot: str, header: Header) -> Running:
    state, row, deliveries = slot.split()
    if header.is_abandoned and state == "running":
        state = "abandoned"
    return Running(cast(RunState, state), int(row), int(deliveries))


class LockFileSurvey:
    """Implements ``liveness.survey.Survey``."""

    def __init__(
        self, folder: Path, app_name: str, clock: Clock, paused_after_seconds: float = PAUSED_AFTER_SECONDS
    ) -> None:
        self._folder = folder
        self._app_name = app_name
        self._heartbeats = Heartbeats(clock, paused_after_seconds)

    def look(self) -> list[Found]:
        files = sorted(self._folder.glob(f"{self._app_name}@*"))
        found = [each for path in files if path.suffix in SUFFIXES and (each := self._probe(path)) is not None]
        self._heartbeats.keep({each.key for each in found})
        return found

    def forget(self, found: Found) -> None:
        assert isinstance(found.key, Path)
        found.key.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held open between two looks."""

    def _probe(self, path: Path) -> Found | None:
        if mine(path):
            # Opening and closing it here would drop its lock.
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailable(
                f"{path}: {error.strerror}. Whether its process lives cannot be seen. Run all processes of an app as "
                "one user, or give them the rights to this file that they have to the database."
            ) from error
        try:
            record = read_record(descriptor)
            if _is_free(descriptor):
                if record is None or path.suffix == UNBORN_SUFFIX:
                    # A power failure left it half written. Whoever is about to lock a new one makes another.
                    path.unlink(missing_ok=True)
                    return None
                return Found(path, "dead", record, is_locked=False)
            if record is None:
                return None
            return Found(
                path,
                "paused" if self._heartbeats.stands_still(path, os.fstat(descriptor).st_mtime_ns) else "alive",
                record,
                is_locked=True,
            )
        finally:
            os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
