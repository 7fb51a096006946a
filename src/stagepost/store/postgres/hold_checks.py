"""Checks of what holds a PostgreSQL server up: transactions that stay open, prepared ones, and slots."""

from __future__ import annotations

import base64

from stagepost.ports.findings import (
    GIB,
    HOUR,
    MINUTE,
    WHY,
    Culprit,
    Finding,
    counted,
    critical,
    fine,
    size,
    span,
    warning,
)
from stagepost.store.postgres import table_checks
from stagepost.store.postgres.server_facts import PreparedTransaction, ServerFacts, TransactionOpen

WHY |= {
    "snapshots": "no dead row younger than the oldest snapshot is removed: the queue's tables grow with every message",
    "idle-in-transaction": "a session that does nothing within a transaction keeps its locks, and often a snapshot",
    "prepared": "a prepared transaction keeps its locks and its snapshot, across restarts too, until somebody ends it",
    "slots": "a replication slot that nobody reads keeps the write-ahead log until the disk is full",
}

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


def check_snapshots(found: ServerFacts) -> Finding:
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
    if dead >= table_checks.DEAD_ROWS_WARNING:
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
