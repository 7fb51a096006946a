"""Findings: what a health check saw, why it matters and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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

# By stable code, why it matters. Each store adds its own. The codes are public: docs/doctor.md lists them.
WHY = {
    "tables": "Stagepost keeps everything in its tables, and works only with those of its own version",
    "workers": "messages of a dead or paused process wait until another process of its app takes them over",
    "orphaned-claims": "messages whose owner is gone wait until a worker of their app gives them back",
    "ready-waiting": "messages that wait for long are work that is not done: too few workers, or none for that stage",
    "delayed-overdue": "messages whose time has come wait for a worker of their stage to notice",
    "outbound-waiting": "messages for other services leave through a dispatcher, beside the workers of their app",
    "broker-edge": "while a process cannot exchange messages with its broker, they wait in the store and at the broker",
    "undeclared-stages": "no worker takes messages at a stage that its app does not declare: they wait without limit",
    "suspects": "these were running when their process died; each runs alone until it is done, or dead",
    "paused-stages": "messages of a paused stage wait, except for one at a time that probes it",
    "outbox": "flows that were started in this database begin only when they have reached the queue in the other",
    "inbox": "outgoing messages of these have perhaps not reached the queue in the other database yet",
    "broker": "while the broker does not answer, messages of other services do not arrive, and outbound ones wait",
    "broker-queues": "a queue of another store, or with other arguments, stops the start of this store's workers",
    "broker-policies": "a policy that removes messages loses those that Stagepost has not received yet",
    "broker-consumers": "another consumer takes messages away from this store, and nobody recognises their copies",
    "broker-targets": "messages to an address that nobody reads are confirmed or wait, and are never handled",
    "broker-settings": "with other settings the broker loses messages, or slows each of them down a hundred times",
    "broker-unchecked": "a setting that could not be read may lose messages",
    "dead-letters": "each is a message that will not be done unless somebody replays it",
    "history": "journal and accepted only grow; they take disk, and backups take longer",
    "unseen": "a part that could not be examined may hide trouble",
}

SHORTEN_HISTORY = (
    "Delete in portions: waypoints of flows that have ended, which then cannot be audited or traced; accepted ids that "
    "no caller will send again, because a repeat would start its flow a second time. See docs/operating.md."
)


class Version(NamedTuple):
    """The versions of the store's tables (0: there are none), and of the tables that this Stagepost needs."""

    tables: int
    newest: int


@dataclass(frozen=True, slots=True)
class Finding:
    """``seen`` is what the check saw, ``who`` names the culprits."""

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
    """Grade a number that is worse the greater it is."""
    if value >= critical_from:
        return critical(code, seen, remedy, who)
    return warning(code, seen, remedy, who) if value >= warning_from else fine(code, seen, who)


def check_version(version: Version, what: str) -> Finding:
    """``what`` is the store: the file, the database."""
    if version.tables == 0:
        return critical(
            "tables",
            f"{what} has no tables of Stagepost",
            "Check that the URL names the right database; if it does, run: stagepost migrate",
        )
    seen = f"version {version.tables}; this Stagepost has {version.newest}"
    if version.tables < version.newest:
        return critical("tables", f"migrations are missing: {seen}", "Stop the workers, then run: stagepost migrate")
    if version.tables > version.newest:
        return critical("tables", f"the tables are newer than this Stagepost: {seen}", "Upgrade stagepost.")
    return fine("tables", f"version {version.tables}")


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
