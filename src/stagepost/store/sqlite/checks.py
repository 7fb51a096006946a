"""Checks of an SQLite file and of its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stagepost.ports.findings import (
    GIB,
    HOUR,
    MIB,
    MINUTE,
    SHORTEN_HISTORY,
    WHY,
    Finding,
    Version,
    check_version,
    counted,
    critical,
    fine,
    graded,
    size,
    span,
    warning,
)
from stagepost.store.sqlite.disk import FileSystem, LockHolder, OpenFile
from stagepost.store.sqlite.second_file import REMEDY

WHY |= {
    "file-unreadable": "without its file nothing starts, and what runs waits",
    "sqlite-version": "Stagepost needs SQLite 3.37 or newer",
    "file-writable": "workers write with every message",
    "journal-mode": "only write-ahead logging lets readers and a writer work at the same time",
    "synchronous": "connections of your own, such as those given to app.initiate(connection=…), may lose what they "
    "committed when the power fails",
    "file-system": "SQLite's locks and shared memory need a local disk that keeps what it was given",
    "disk-space": "on a full disk nothing is committed",
    "wal-size": "a reader that never ends keeps the log from being emptied: it grows, and every read gets slower",
    "lock-folder": "a worker that cannot make its lock file does not start",
    "writer": "SQLite lets one process write at a time; others wait for it for 30 s, and then fail or try again",
    "second-file": "the second file has the calls to the outside, and flows that stages started independently",
    "independent-starts": "these flows are committed, and nothing handles them before they are moved",
    "integrity": "a damaged file loses messages, and says so late",
}

FREE_BYTES_WARNING = 2 * GIB
FREE_BYTES_CRITICAL = 200 * MIB
HELD_SECONDS_WARNING = 5 * MINUTE
HELD_SECONDS_CRITICAL = HOUR
# SQLite empties it at four. A reader, or one great transaction, keeps more.
WAL_BYTES_WARNING = 64 * MIB
WAL_BYTES_CRITICAL = 2 * GIB
HISTORY_ROWS = 100_000_000

SQLITE_MIN = (3, 37)
# Its authors: https://sqlite.org/wal.html, "The WAL-reset bug". Distributions mend it without telling in the number.
WAL_RESET_MENDED = (3, 51, 3)
FULL = 2


class SecondFileFacts(NamedTuple):
    """Facts about the second file. ``trouble`` says why it is not the one of the first file.

    ``held``          the flows that stages started independently, and that wait there
    ``held_seconds``  how long the oldest of them has waited
    """

    trouble: str | None
    held: int = 0
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts about a file and its disk.

    ``lock_folder_trouble``  why lock files could not be made
    ``integrity``            what ``PRAGMA quick_check`` found; None, as ``accepted_rows``, without a thorough look
    ``writer``               the process that has kept all others from writing for a second
    ``second``               the second file; None for a store without one
    """

    library: str
    version: Version
    journal_mode: str
    synchronous: int
    file_system: FileSystem
    free_bytes: int
    file_bytes: int
    wal_bytes: int
    holders: list[OpenFile]
    unwritable: list[str]
    lock_folder_trouble: str | None
    writer: LockHolder | None = None
    second: SecondFileFacts | None = None
    journal_rows: int | None = None
    accepted_rows: int | None = None
    integrity: list[str] | None = None


def check_file(file: FileFacts) -> list[Finding]:
    found = [
        check_version(file.version, "the file"),
        check_library(file),
        check_writable(file),
        check_journal_mode(file),
        check_synchronous(file),
        check_file_system(file),
        check_disk_space(file),
        check_wal(file),
        check_lock_folder(file),
        check_writer(file),
    ]
    if file.second is not None:
        found += check_second_file(file.second)
    if file.integrity is not None:
        found.append(check_integrity(file.integrity))
    if file.journal_rows is not None:
        found.append(check_history(file, file.journal_rows))
    return found


def check_library(file: FileFacts) -> Finding:
    number = tuple(int(part) for part in file.library.split("."))
    if number[:2] < SQLITE_MIN:
        return critical("sqlite-version", f"this Python has SQLite {file.library}", "Use a newer Python build.")
    if number < WAL_RESET_MENDED:
        # Workers check-point within their turn, which keeps them apart; a connection of somebody else has none.
        return fine(
            "sqlite-version",
            f"{file.library}; unless its distributor mended it, it has the WAL-reset bug. Stagepost's writer lock "
            "keeps its own writers from it: let nothing else older than 3.51.3 write to the file while workers run",
        )
    return fine("sqlite-version", file.library)


def check_writable(file: FileFacts) -> Finding:
    if file.unwritable:
        return critical(
            "file-writable",
            f"this user may not write to {', '.join(file.unwritable)}",
            "Give the workers' user the right to write to the file and its folder.",
        )
    return fine("file-writable", "file and folder may be written to")


def check_journal_mode(file: FileFacts) -> Finding:
    if file.journal_mode == "wal":
        return fine("journal-mode", "wal")
    return warning(
        "journal-mode",
        f"the file is in mode {file.journal_mode!r}",
        "Nothing to do where workers are about to start: the first one switches it. If it stays so, something switches "
        "it back, or it does not lie on a local disk.",
    )


def check_synchronous(file: FileFacts) -> Finding:
    if file.synchronous >= FULL:
        return fine("synchronous", "FULL, in stages and for connections of your own")
    return warning(
        "synchronous",
        f"this Python's SQLite opens files with synchronous = {file.synchronous}; Stagepost's own connections use FULL",
        "PRAGMA synchronous = FULL on every connection of your own that starts flows.",
    )


def check_file_system(file: FileFacts) -> Finding:
    kind, name = file.file_system
    if kind == "network":
        return critical(
            "file-system",
            f"the file lies on a network file system ({name})",
            "Move it to a local disk while nothing runs; use PostgreSQL for several machines.",
        )
    if kind == "memory":
        return warning(
            "file-system", f"the file lies in memory ({name})", "Move it to a disk: a restart loses all of it."
        )
    return fine("file-system", name if kind == "local" else "not known: this system does not tell")


def check_disk_space(file: FileFacts) -> Finding:
    # Less is worse.
    return graded(
        "disk-space",
        -file.free_bytes,
        f"{size(file.free_bytes)} free; the file has {size(file.file_bytes)}",
        "Free some space, or move the file while nothing runs.",
        warning_from=-FREE_BYTES_WARNING,
        critical_from=-FREE_BYTES_CRITICAL,
    )


def check_wal(file: FileFacts) -> Finding:
    found = graded(
        "wal-size",
        file.wal_bytes,
        f"the write-ahead log has {size(file.wal_bytes)}",
        "Find the reader and end its transaction: one of those that have the file open. A single great transaction "
        "leaves a large log too; that one is used again, and goes when nobody has the file open.",
        warning_from=WAL_BYTES_WARNING,
        critical_from=WAL_BYTES_CRITICAL,
        who=[each._asdict() for each in file.holders],
    )
    return found if found.severity != "ok" else fine("wal-size", found.seen)


def check_lock_folder(file: FileFacts) -> Finding:
    if file.lock_folder_trouble is not None:
        return critical(
            "lock-folder", file.lock_folder_trouble, "Give the workers' user a folder there that it may write to."
        )
    return fine("lock-folder", "lock files can be made")


def check_writer(file: FileFacts) -> Finding:
    writer = file.writer
    if writer is None:
        return fine("writer", "nothing keeps others from writing")
    who = [{"pid": writer.process, "program": writer.program, "state": "stopped" if writer.is_stopped else "running"}]
    seen = f"{writer} has kept all others from writing for a second"
    if writer.is_stopped:
        remedy = (
            f"kill -CONT {writer.process} lets it go on; kill -KILL {writer.process} ends it, and undoes what it wrote."
        )
        return critical("writer", seen, remedy, who)
    return warning(
        "writer",
        seen,
        "End its transaction. A handler calls out first, and writes last. If it hangs, kill it: its work is undone.",
        who,
    )


def check_second_file(second: SecondFileFacts) -> list[Finding]:
    if second.trouble is not None:
        return [critical("second-file", second.trouble, REMEDY)]
    held = graded(
        "independent-starts",
        second.held_seconds,
        f"{counted(second.held, 'flow')} started independently and not moved yet, the oldest for "
        f"{span(second.held_seconds)}",
        "Start a worker of the app: it moves them. If one runs, its log shows the error.",
        warning_from=HELD_SECONDS_WARNING,
        critical_from=HELD_SECONDS_CRITICAL,
    )
    return [
        fine("second-file", "it belongs to the first one"),
        held if second.held else fine("independent-starts", "no flow that was started independently waits"),
    ]


def check_integrity(damage: list[str]) -> Finding:
    if damage:
        return critical(
            "integrity",
            f"PRAGMA quick_check finds damage: {damage[0]}",
            "Stop the workers, keep a copy of all its files, and restore a backup, or try the shell's .recover.",
            [{"damage": line} for line in damage],
        )
    return fine("integrity", "PRAGMA quick_check finds nothing")


def check_history(file: FileFacts, rows: int) -> Finding:
    accepted = "" if file.accepted_rows is None else f", {counted(file.accepted_rows, 'accepted id')}"
    seen = f"{counted(rows, 'waypoint')} in the journal{accepted}, in a file of {size(file.file_bytes)}"
    if max(rows, file.accepted_rows or 0) > HISTORY_ROWS:
        return warning("history", seen, SHORTEN_HISTORY)
    return fine("history", seen)
