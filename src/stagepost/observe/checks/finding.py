"""What one check came to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["ok", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("ok", "warning", "critical")

# One of the culprits: pid, application, since when, …; ``…_seconds`` and ``…_bytes`` are shown as such.
Culprit = dict[str, Any]

MINUTE = 60.0
HOUR = 60 * MINUTE
DAY = 24 * HOUR

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# By stable code, why it matters. The codes are public: docs/doctor.md lists them.
WHY = {
    # Everywhere
    "tables": "Stagepost keeps everything in its tables, and works only with those of its own version",
    "workers": "what a dead or paused process holds is not worked on until another one of its app takes it over",
    "orphaned-claims": "nobody will finish messages whose owner is gone; any worker of their app gives them back",
    "ready-waiting": "messages that wait for long are work that is not done: too few workers, or none for that stage",
    "delayed-overdue": "messages whose time has come wait for a worker of their stage to notice",
    "undeclared-stages": "no worker takes messages at a stage that its app does not declare: they wait for ever",
    "suspects": "these were running when their process died; each runs alone until it is done, or dead",
    "paused-stages": "what waits for a paused stage is not done, but for one message at a time that tries it",
    "outbox": "flows that were started in this database begin only when they have reached the queue in the other",
    "inbox": "what these messages sent has perhaps not reached the queue in the other database yet",
    "dead-letters": "each is a message that will not be done unless somebody replays it",
    "history": "journal and accepted only grow; they take disk, and backups take longer",
    "unseen": "what could not be looked at may hide trouble",
    # PostgreSQL
    "server-unreachable": "without its database nothing starts, and what runs waits",
    "server-version": "Stagepost needs PostgreSQL 13 or newer, and one past its support gets no corrections",
    "driver": "psycopg in pure Python takes several times the processor time for each message",
    "read-only": "workers write with every message",
    "fsync": "when the server's machine crashes, what was committed is lost, and the whole database may be damaged",
    "full-page-writes": "a page that was half written when the machine crashed cannot be repaired",
    "synchronous-commit": "Stagepost's own transactions wait for the disk; connections of your own, such as those "
    "given to app.initiate(connection=…), may lose what they committed when the machine crashes",
    "unlogged-tables": "an unlogged table is empty after a crash",
    "replication": "with replicas that are not waited for, a failover loses the last commits",
    "two-phase": "the mode two_phase, for two databases, prepares transactions",
    "clock": "workers write by their own clocks when a message is due and when it came: it runs early, or late",
    "others-hidden": "who holds what cannot be seen, so that long transactions and paused workers go unnoticed",
    "connections": "when they are used up, new workers cannot start, and lost connections cannot be made again",
    "snapshots": "no dead row younger than the oldest snapshot is removed: the queue's tables grow with every message",
    "idle-in-transaction": "a session that does nothing within a transaction keeps its locks, and often a snapshot",
    "prepared": "a prepared transaction keeps its locks and its snapshot, across restarts too, until somebody ends it",
    "slots": "a replication slot that nobody reads keeps the write-ahead log until the disk is full",
    "autovacuum": "without it dead rows stay for ever, and every claim walks over them",
    "dead-rows": "every claim walks over the dead rows that were not removed yet",
    "wraparound": "a server that runs out of transaction numbers refuses to write",
    # SQLite
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
    "integrity": "a damaged file loses messages, and says so late",
}

SHORTEN_HISTORY = (
    "Delete in portions: waypoints of flows that have ended, which then cannot be audited or traced; accepted ids that "
    "nobody will send again, which would then start anew."
)


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    severity: Severity
    seen: str
    why: str
    remedy: str
    who: tuple[Culprit, ...] = ()


def fine(code: str, seen: str, who: Iterable[Culprit] = ()) -> Finding:
    return Finding(code, "ok", seen, WHY[code], "", tuple(who))


def warning(code: str, seen: str, remedy: str, who: Iterable[Culprit] = ()) -> Finding:
    return Finding(code, "warning", seen, WHY[code], remedy, tuple(who))


def critical(code: str, seen: str, remedy: str, who: Iterable[Culprit] = ()) -> Finding:
    return Finding(code, "critical", seen, WHY[code], remedy, tuple(who))


def graded(
    code: str,
    value: float,
    seen: str,
    remedy: str,
    *,
    warning_from: float,
    critical_from: float,
    who: Iterable[Culprit] = (),
) -> Finding:
    """By a number that is worse the greater it is."""
    if value >= critical_from:
        return critical(code, seen, remedy, who)
    return warning(code, seen, remedy, who) if value >= warning_from else fine(code, seen, who)


def span(seconds: float) -> str:
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.1f} s"


def size(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < KIB:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= KIB
    return f"{number:.1f} TiB"


def counted(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
