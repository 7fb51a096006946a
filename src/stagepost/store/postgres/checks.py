"""Checks of a PostgreSQL server and of its other users."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import NamedTuple

from stagepost.flow.clock import to_datetime
from stagepost.ports.findings import (
    GIB,
    HOUR,
    MINUTE,
    SHORTEN_HISTORY,
    WHY,
    Culprit,
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

WHY |= {
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
    "others-hidden": "other sessions cannot be seen, so that long transactions and paused workers go unnoticed",
    "connections": "when they are used up, new workers cannot start, and lost connections cannot be made again",
    "snapshots": "no dead row younger than the oldest snapshot is removed: the queue's tables grow with every message",
    "idle-in-transaction": "a session that does nothing within a transaction keeps its locks, and often a snapshot",
    "prepared": "a prepared transaction keeps its locks and its snapshot, across restarts too, until somebody ends it",
    "slots": "a replication slot that nobody reads keeps the write-ahead log until the disk is full",
    "autovacuum": "without it dead rows stay, and every claim walks over them",
    "dead-rows": "every claim walks over the dead rows that were not removed yet",
    "wraparound": "a server that runs out of transaction numbers refuses to write",
}

VERSION_MIN = 13
# The last day of support of each version, as the PostgreSQL project has announced it.
SUPPORTED_UNTIL = {13: "2025-11-13", 14: "2026-11-12", 15: "2027-11-11", 16: "2028-11-09", 17: "2029-11-08"}
# The tolerated difference of the clocks.
CLOCK_SECONDS_WARNING = 1.0
CLOCK_SECONDS_CRITICAL = 30.0
CONNECTIONS_WARNING, CONNECTIONS_CRITICAL = 0.8, 0.95
# A busy queue leaves some hundred thousand dead rows between two rounds of autovacuum.
DEAD_ROWS_WARNING = 1_000_000
DEAD_ROWS_CRITICAL = 10_000_000
# Autovacuum is forced at autovacuum_freeze_max_age. From AGE_CRITICAL on, it drops all other work.
AGE_WARNING = 1_200_000_000
AGE_CRITICAL = 1_600_000_000
HISTORY_ROWS = 100_000_000
HISTORY_BYTES = 50 * GIB
HISTORY = ("stagepost_journal", "stagepost_accepted")

SNAPSHOT_SECONDS = 5 * MINUTE
# For snapshots whose age in time is unknown.
SNAPSHOT_TRANSACTIONS = 1_000_000
IDLE_SECONDS = MINUTE
PREPARED_SECONDS = MINUTE
FOREIGN_PREPARED_SECONDS_CRITICAL = HOUR
SLOT_BYTES_CRITICAL = 50 * GIB
CULPRITS_SHOWN = 20

# Stagepost's own global ids begin with this, in plain text or as the driver encodes them.
OURS = "stagepost"

RELOAD = "then: SELECT pg_reload_conf()."


class Table(NamedTuple):
    """A table of Stagepost's. ``rows`` and ``dead_rows`` are the server's estimates, and ``age`` is in transactions."""

    name: str
    is_unlogged: bool
    is_vacuumed: bool
    rows: int
    dead_rows: int
    age: int
    bytes: int


class TransactionOpen(NamedTuple):
    """A session with an open transaction.

    ``holds``  the age, in transactions, from which it keeps dead rows from being removed; None if it does not
    """

    pid: int
    application: str
    user: str
    state: str | None
    open_seconds: float
    state_seconds: float
    holds: int | None


class PreparedTransaction(NamedTuple):
    gid: str
    owner: str
    age_seconds: float


class Slot(NamedTuple):
    """A replication slot. ``holds``: see ``TransactionOpen``. ``kept_bytes``: the write-ahead log that it keeps."""

    name: str
    kind: str
    is_active: bool
    holds: int | None
    kept_bytes: int | None


class Replica(NamedTuple):
    """A replica. ``holds``: see ``TransactionOpen``. It holds by ``hot_standby_feedback``."""

    pid: int
    application: str
    state: str | None
    sync_state: str | None
    holds: int | None


class RoleSetting(NamedTuple):
    """A role, a database or both for which ``synchronous_commit`` is relaxed."""

    role: str
    database: str
    value: str


class ClockGap(NamedTuple):
    """The lead of the server's clock over this machine's. The uncertainty is half a round trip."""

    ahead_seconds: float
    uncertain_seconds: float


class Server(NamedTuple):
    version: str
    version_number: int
    is_standby: bool
    is_read_only: bool
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    synchronous_commit_source: str
    autovacuum: bool
    track_counts: bool
    prepared_max: int
    connections: int
    connections_max: int
    connections_reserved: int
    synchronous_standbys: str
    sees_others: bool
    age: int
    freeze_age_max: int


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about a server and its other users.

    ``server`` is None where it could not be seen, or where the server is too old to be asked.
    """

    version_number: int
    driver: str
    version: Version | None = None
    clock: ClockGap | None = None
    server: Server | None = None
    tables: list[Table] | None = None
    transactions: list[TransactionOpen] | None = None
    prepared: list[PreparedTransaction] | None = None
    slots: list[Slot] | None = None
    replicas: list[Replica] | None = None
    relaxed: list[RoleSetting] | None = None


def check_server(found: ServerFacts, now: int) -> list[Finding]:
    findings = [check_server_version(found, now), check_driver(found)]
    if found.server is not None:
        findings += check_settings(found.server, found.relaxed or [])
        findings += [check_connections(found.server), check_replication(found.server, found), check_sight(found.server)]
    if found.clock is not None:
        findings.append(check_clock(found.clock))
    findings += [
        check_snapshots(found, DEAD_ROWS_WARNING),
        check_idle(found),
        check_prepared(found),
        check_slots(found),
    ]
    if found.version is not None:
        findings.append(check_version(found.version, "the database"))
    if found.tables and found.server is not None:
        findings += check_tables(found.tables, found.server)
    return findings


def check_server_version(found: ServerFacts, now: int) -> Finding:
    major = found.version_number // 10_000
    name = f"PostgreSQL {found.server.version if found.server else major}"
    if major < VERSION_MIN:
        return critical("server-version", name, "Upgrade the server.")
    end = SUPPORTED_UNTIL.get(major)
    if end is not None and to_datetime(now).date().isoformat() > end:
        return warning("server-version", f"{name}, supported until {end}", "Plan its upgrade.")
    return fine("server-version", name)


def check_driver(found: ServerFacts) -> Finding:
    if found.driver == "python":
        return warning(
            "driver", "psycopg runs in pure Python", "pip install 'psycopg[binary]', or 'psycopg[c]' to build it here."
        )
    return fine("driver", f"psycopg, {found.driver}")


def check_settings(server: Server, relaxed: list[RoleSetting]) -> list[Finding]:
    return [
        check_writable(server),
        fine("fsync", "on") if server.fsync else critical("fsync", "off", f"ALTER SYSTEM SET fsync = on; {RELOAD}"),
        fine("full-page-writes", "on")
        if server.full_page_writes
        else critical("full-page-writes", "off", f"ALTER SYSTEM SET full_page_writes = on; {RELOAD}"),
        check_synchronous_commit(server, relaxed),
        fine("two-phase", f"max_prepared_transactions is {server.prepared_max}")
        if server.prepared_max
        else fine("two-phase", "max_prepared_transactions is 0: two_phase is not possible here"),
    ]


def check_writable(server: Server) -> Finding:
    if server.is_standby:
        return critical(
            "read-only",
            "the server is a standby",
            "Connect to the primary: name its host, or target_session_attrs=read-write.",
        )
    if server.is_read_only:
        return critical(
            "read-only",
            "transactions are read-only",
            "default_transaction_read_only is on, for the server, this database or this role: reset it.",
        )
    return fine("read-only", "can be written to")


def check_synchronous_commit(server: Server, relaxed: list[RoleSetting]) -> Finding:
    who = [each._asdict() for each in relaxed]
    remedy = "ALTER ROLE … RESET synchronous_commit, or ALTER DATABASE … or ALTER SYSTEM …, whichever set it."
    if server.synchronous_commit == "off":
        source = server.synchronous_commit_source
        return warning("synchronous-commit", f"off for sessions like this one, by the {source}", remedy, who)
    if relaxed:
        return warning("synchronous-commit", "off for sessions of others", remedy, who)
    return fine("synchronous-commit", server.synchronous_commit)


def check_connections(server: Server) -> Finding:
    room = server.connections_max - server.connections_reserved
    return graded(
        "connections",
        server.connections / room,
        f"{server.connections} of {room} in use",
        "Raise max_connections, run fewer workers, or put other clients behind a pool.",
        warning_from=CONNECTIONS_WARNING,
        critical_from=CONNECTIONS_CRITICAL,
    )


def check_replication(server: Server, found: ServerFacts) -> Finding:
    replicas = found.replicas or []
    waited_for = [each for each in replicas if each.sync_state in ("sync", "quorum")]
    waits = server.synchronous_standbys and server.synchronous_commit not in ("off", "local")
    if waits and found.replicas is not None and server.sees_others and not waited_for:
        return critical(
            "replication",
            f"commits wait for {server.synchronous_standbys!r}, and no such replica is there: none returns",
            f"Start that replica, or: ALTER SYSTEM SET synchronous_standby_names = ''; {RELOAD}",
        )
    who = [{"application": each.application, "state": each.state, "sync": each.sync_state} for each in replicas]
    if replicas and not waited_for:
        return fine("replication", f"{counted(len(replicas), 'replica')}, not waited for", who)
    if waited_for:
        return fine("replication", f"commits wait for {counted(len(waited_for), 'replica')}", who)
    return fine("replication", "no replica")


def check_sight(server: Server) -> Finding:
    if server.sees_others:
        return fine("others-hidden", "sessions of others can be seen")
    return warning(
        "others-hidden",
        "this role does not see what sessions of other roles do",
        "GRANT pg_read_all_stats to the role that looks.",
    )


def check_clock(gap: ClockGap) -> Finding:
    """Compare the clocks, without the part that the round trip may explain."""
    seen = (
        f"the server is {abs(gap.ahead_seconds):.3f} s {'ahead' if gap.ahead_seconds > 0 else 'behind'}, give or take "
    )
    return graded(
        "clock",
        abs(gap.ahead_seconds) - gap.uncertain_seconds,
        f"{seen}{gap.uncertain_seconds:.3f} s",
        "Have both machines follow a time server (chrony, systemd-timesyncd).",
        warning_from=CLOCK_SECONDS_WARNING,
        critical_from=CLOCK_SECONDS_CRITICAL,
    )


def check_tables(tables: list[Table], server: Server) -> list[Finding]:
    return [
        check_unlogged(tables),
        check_autovacuum(tables, server),
        check_dead_rows(tables),
        check_wraparound(tables, server),
        check_history(tables),
    ]


def check_unlogged(tables: list[Table]) -> Finding:
    names = [each.name for each in tables if each.is_unlogged]
    if names:
        return critical("unlogged-tables", ", ".join(names), f"ALTER TABLE {names[0]} SET LOGGED; the same for each.")
    return fine("unlogged-tables", "none")


def check_autovacuum(tables: list[Table], server: Server) -> Finding:
    off = [
        name for name, is_on in (("autovacuum", server.autovacuum), ("track_counts", server.track_counts)) if not is_on
    ]
    if off:
        return critical("autovacuum", f"{off[0]} is off", f"ALTER SYSTEM SET {off[0]} = on; {RELOAD}")
    names = [each.name for each in tables if not each.is_vacuumed]
    if names:
        return critical(
            "autovacuum", f"switched off for {', '.join(names)}", f"ALTER TABLE {names[0]} RESET (autovacuum_enabled)."
        )
    return fine("autovacuum", "on")


def check_dead_rows(tables: list[Table]) -> Finding:
    worst = max(tables, key=lambda each: each.dead_rows)
    return graded(
        "dead-rows",
        worst.dead_rows,
        f"{counted(worst.dead_rows, 'dead row')} in {worst.name}",
        f"See 'snapshots' and 'autovacuum': one of them keeps these rows. Then: VACUUM {worst.name}",
        warning_from=DEAD_ROWS_WARNING,
        critical_from=DEAD_ROWS_CRITICAL,
        who=[
            {"table": each.name, "rows": each.rows, "dead_rows": each.dead_rows, "table_bytes": each.bytes}
            for each in tables
            if each.dead_rows >= DEAD_ROWS_WARNING
        ],
    )


def check_wraparound(tables: list[Table], server: Server) -> Finding:
    oldest = max([server.age, *(each.age for each in tables)])
    forced = server.freeze_age_max
    return graded(
        "wraparound",
        oldest,
        f"{oldest:,} transactions since the oldest freeze; it is forced at {forced:,}",
        "VACUUM (FREEZE) in this database; see 'snapshots', 'prepared' and 'slots' for what kept it from being done.",
        warning_from=max(min(2 * forced, AGE_WARNING), 1.1 * forced),
        critical_from=AGE_CRITICAL,
    )


def _together(name: str, tables: list[Table]) -> tuple[int, int]:
    """The journal is several tables, a range of it each."""
    parts = [each for each in tables if each.name == name or each.name.startswith(f"{name}_")]
    return sum(each.rows for each in parts), sum(each.bytes for each in parts)


def check_history(tables: list[Table]) -> Finding:
    kept = {name: _together(name, tables) for name in HISTORY}
    seen = "; ".join(
        f"{name} has about {counted(rows, 'row')}, {size(used)} with its indexes" for name, (rows, used) in kept.items()
    )
    if any(rows > HISTORY_ROWS or used > HISTORY_BYTES for rows, used in kept.values()):
        return warning("history", seen, SHORTEN_HISTORY)
    return fine("history", seen)


def check_snapshots(found: ServerFacts, dead_rows_critical: int) -> Finding:
    """A snapshot is held for as long as its transaction is open, at the most. It does harm once dead rows pile up."""
    sessions = [each for each in found.transactions or [] if each.holds is not None]
    prepared = found.prepared or []
    who: list[Culprit] = [
        *(_session(each) for each in sessions if each.open_seconds >= SNAPSHOT_SECONDS),
        *(
            {"prepared": each.gid, "owner": each.owner, "open_seconds": each.age_seconds}
            for each in prepared
            if each.age_seconds >= SNAPSHOT_SECONDS
        ),
        *(
            {
                "pid": each.pid,
                "application": each.application,
                "state": "hot_standby_feedback",
                "transactions": each.holds,
            }
            for each in found.replicas or []
            if each.holds is not None and each.holds >= SNAPSHOT_TRANSACTIONS
        ),
        *(
            {"slot": each.name, "kind": each.kind, "transactions": each.holds}
            for each in found.slots or []
            if each.holds is not None and each.holds >= SNAPSHOT_TRANSACTIONS
        ),
    ]
    ages = [each.open_seconds for each in sessions] + [each.age_seconds for each in prepared]
    seen = f"the oldest was taken at most {span(max(ages))} ago" if ages else "none is held"
    if not who:
        return fine("snapshots", seen)
    seen = f"{counted(len(who), 'snapshot')} held for long; {seen}"
    remedy = (
        "End what holds it: SELECT pg_terminate_backend(PID); ROLLBACK PREPARED; drop the slot; or end the query on "
        "the standby. Long reports belong on a standby without hot_standby_feedback."
    )
    dead = max((each.dead_rows for each in found.tables or []), default=0)
    if dead >= dead_rows_critical:
        return critical("snapshots", f"{seen}; {dead:,} dead rows wait for their end", remedy, who[:CULPRITS_SHOWN])
    return warning("snapshots", seen, remedy, who[:CULPRITS_SHOWN])


def check_idle(found: ServerFacts) -> Finding:
    idle = [
        each
        for each in found.transactions or []
        if (each.state or "").startswith("idle in transaction") and each.state_seconds >= IDLE_SECONDS
    ]
    if not idle:
        return fine("idle-in-transaction", f"no session for longer than {span(IDLE_SECONDS)}")
    return warning(
        "idle-in-transaction",
        f"{counted(len(idle), 'session')}, the longest for {span(max(each.state_seconds for each in idle))}",
        "Have the application end its transactions; SELECT pg_terminate_backend(PID); set "
        "idle_in_transaction_session_timeout for its role. A stage that waits for the network belongs before its first "
        "ctx.sql.",
        [_session(each) for each in idle[:CULPRITS_SHOWN]],
    )


def check_prepared(found: ServerFacts) -> Finding:
    prepared = found.prepared or []
    old = [each for each in prepared if each.age_seconds >= PREPARED_SECONDS]
    if not old:
        return fine(
            "prepared", f"{counted(len(prepared), 'prepared transaction')}, none older than {span(PREPARED_SECONDS)}"
        )
    who = [
        {
            "gid": each.gid,
            "owner": each.owner,
            "open_seconds": each.age_seconds,
            "of": "stagepost" if is_ours(each) else "others",
        }
        for each in old[:CULPRITS_SHOWN]
    ]
    seen = f"{counted(len(old), 'prepared transaction')} older than {span(PREPARED_SECONDS)}"
    ours = sum(map(is_ours, old))
    if ours:
        return critical(
            "prepared",
            f"{seen}, {ours} of them Stagepost's",
            "Start a worker of its app, which settles what is in doubt. Do not end Stagepost's by hand: whether a "
            "message is done is for its other database to say.",
            who,
        )
    remedy = "Ask its coordinator; then COMMIT PREPARED or ROLLBACK PREPARED 'GID', as its owner."
    if max(each.age_seconds for each in old) >= FOREIGN_PREPARED_SECONDS_CRITICAL:
        return critical("prepared", seen, remedy, who)
    return warning("prepared", seen, remedy, who)


def check_slots(found: ServerFacts) -> Finding:
    slots = found.slots or []
    unread = [each for each in slots if not each.is_active]
    if not unread:
        return fine("slots", f"{counted(len(slots), 'slot')}, all read" if slots else "none")
    kept = max(each.kept_bytes or 0 for each in unread)
    seen = f"{counted(len(unread), 'slot')} that nobody reads, keeping {size(kept)} of log"
    remedy = "Start its reader, or: SELECT pg_drop_replication_slot('NAME')"
    who = [
        {"slot": each.name, "kind": each.kind, "kept_bytes": each.kept_bytes, "transactions": each.holds}
        for each in unread
    ]
    if kept >= SLOT_BYTES_CRITICAL:
        return critical("slots", seen, remedy, who)
    return warning("slots", seen, remedy, who)


def is_ours(prepared: PreparedTransaction) -> bool:
    return prepared.gid.startswith(OURS) or _decoded(prepared.gid).startswith(OURS)


def _decoded(gid: str) -> str:
    """``<number>_<base64>_<base64>`` is how drivers write a global id of three parts."""
    match gid.split("_"):
        case [_, first, _]:
            try:
                return base64.b64decode(first, validate=True).decode(errors="replace")
            except ValueError:
                return ""
        case _:
            return ""


def _session(each: TransactionOpen) -> Culprit:
    return {
        "pid": each.pid,
        "application": each.application,
        "user": each.user,
        "state": each.state,
        "open_seconds": each.open_seconds,
        "state_seconds": each.state_seconds,
    }
