"""Ask the operating system about a database file: its file system, its access rights, and its users."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from stagepost.flow.errors import StoreUnavailable
from stagepost.flow.texts import as_sentence

MOUNTS = Path("/proc/self/mountinfo")
PROCESSES = Path("/proc")
LOCKS = Path("/proc/locks")

# File systems whose locks, or whose memory shared between processes, are not reliable.
NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "orangefs", "smb3", "smbfs", "sshfs", "vboxsf",
}  # fmt: skip
MEMORY = {"tmpfs", "ramfs", "devtmpfs"}

# SQLite lengthens its files by as much as this.
ROOM_BYTES = 64 * 1024

FileSystemKind = Literal["local", "network", "memory", "unknown"]


class FileSystem(NamedTuple):
    kind: FileSystemKind
    name: str


class OpenFile(NamedTuple):
    """A process that has the file open. ``program`` is its program's name without the command line."""

    pid: int
    program: str


class LockHolder(NamedTuple):
    """A process that keeps others from writing. ``program`` is empty if it cannot be seen."""

    process: int
    program: str
    is_stopped: bool

    def __str__(self) -> str:
        program = f" ({self.program})" if self.program else ""
        return f"process {self.process}{program}{', which is stopped,' if self.is_stopped else ''}"


def file_system(path: Path, mounts: Path = MOUNTS) -> FileSystem:
    """Return the file system that was mounted last on the longest prefix of the path. Works on Linux only."""
    try:
        lines = os.fsdecode(mounts.read_bytes()).splitlines()
    except OSError:
        return FileSystem("unknown", "")
    place = path.resolve()
    best: tuple[int, str] = (-1, "")
    for point, name in map(_mount, lines):
        if place.is_relative_to(point) and len(point.parts) >= best[0]:
            best = (len(point.parts), name)
    return FileSystem(_kind(best[1]), best[1])


def _mount(line: str) -> tuple[Path, str]:
    """Parse ``36 35 98:0 /root /mount/point options … - type source options``, in which blanks are octal."""
    before, _, after = line.partition(" - ")
    point = before.split(" ")[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")
    return Path(point), after.split(" ")[0]


def _kind(name: str) -> FileSystemKind:
    if not name:
        return "unknown"
    if name.removeprefix("fuse.") in NETWORK:
        return "network"
    return "memory" if name in MEMORY else "local"


def holders(path: Path, processes: Path = PROCESSES) -> list[OpenFile]:
    """Return other processes that have the file open, as far as this user may see them. Works on Linux only."""
    found = []
    for process in _numbered(processes):
        with suppress(OSError):
            if int(process.name) != os.getpid() and _has_open(process, path):
                program = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
                found.append(OpenFile(int(process.name), program))
    return sorted(found)


def _numbered(processes: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from (each for each in processes.iterdir() if each.name.isdecimal())


def _has_open(process: Path, path: Path) -> bool:
    wanted = str(path.resolve())
    for descriptor in (process / "fd").iterdir():
        with suppress(OSError):
            if str(descriptor.readlink()) == wanted:
                return True
    return False


def lock_holder(path: Path, byte: int, locks: Path = LOCKS, processes: Path = PROCESSES) -> LockHolder | None:
    """Return the process that has this byte of the file locked for writing; None without one, or if it cannot be seen.

    The file is not opened, because closing it would drop this process's own locks on it.
    """
    with suppress(OSError):
        inode = path.stat().st_ino
        for line in locks.read_text(encoding="utf-8").splitlines():
            _, kind, *_, mode, process, file, first, last = line.split()
            is_it = kind == "POSIX" and mode == "WRITE" and int(file.rpartition(":")[2]) == inode
            if is_it and int(first) <= byte and (last == "EOF" or byte <= int(last)):
                return _described(processes / process)
    return None


def _described(process: Path) -> LockHolder:
    try:
        name, _, status = (
            (process / "stat").read_text(encoding="utf-8", errors="replace").partition(" (")[2].rpartition(") ")
        )
    except OSError:
        # It has ended since, or belongs to another container.
        name, status = "", ""
    return LockHolder(int(process.name), name, status[:1] in {"T", "t"})


def is_full(folder: Path) -> bool:
    """Return whether the folder's disk has no room for SQLite's smallest files, or for another file at all."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < ROOM_BYTES or (found.f_files > 0 and found.f_favail == 0)


def share(made: Path, database: Path) -> None:
    """Give a file beside the database the owner and rights of the database, as SQLite does with its log."""
    if not database.exists():
        return
    found = database.stat()
    mode = found.st_mode & 0o666
    if made.is_dir():
        # A user that may read a folder must be able to enter it.
        mode |= (mode & 0o444) >> 2
    made.chmod(mode)
    if os.geteuid() == 0:
        os.chown(made, found.st_uid, found.st_gid)


def refused(path: Path, error: OSError) -> StoreUnavailable:
    """Return the error for a file of another user, with its remedy."""
    return StoreUnavailable(
        f"{path}: {as_sentence(error.strerror)} "
        "Run all processes that use the database as one user, or give them the rights to "
        "this file that they have to the database."
    )
