"""What can be wrong with a PostgreSQL server, and with who else uses it."""

from __future__ import annotations

from stagepost.flow.clock import to_datetime
from stagepost.flow.vitals import ClockGap, RoleSetting, Server, ServerVitals, Table
from stagepost.observe.checks.finding import (
    GIB,
    SHORTEN_HISTORY,
    Finding,
    counted,
    critical,
    fine,
    graded,
    size,
    warning,
)
from stagepost.observe.checks.holding import check_idle, check_prepared, check_slots, check_snapshots
from stagepost.observe.checks.queue import (
    check_backlogs,
    check_paused,
    check_queue,
    check_undeclared,
    check_unseen,
    check_version,
)

VERSION_MIN = 13
# The last days of their support, as its project has announced them.
SUPPORTED_UNTIL = {13: "2025-11-13", 14: "2026-11-12", 15: "2027-11-11", 16: "2028-11-09", 17: "2029-11-08"}
# What a clock may be off by.
CLOCK_SECONDS_WARNING = 1.0
CLOCK_SECONDS_CRITICAL = 30.0
CONNECTIONS_WARNING, CONNECTIONS_CRITICAL = 0.8, 0.95
# A busy queue leaves some hundred thousand between two rounds of autovacuum.
DEAD_ROWS_WARNING = 1_000_000
DEAD_ROWS_CRITICAL = 10_000_000
# Autovacuum forces itself at autovacuum_freeze_max_age; from the second one on, it drops all else.
AGE_WARNING = 1_200_000_000
AGE_CRITICAL = 1_600_000_000
HISTORY_ROWS = 100_000_000
HISTORY_BYTES = 50 * GIB
HISTORY = ("stagepost_journal", "stagepost_accepted")

RELOAD = "then: SELECT pg_reload_conf()."


def check_server(found: ServerVitals, now: int) -> list[Finding]:
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
    if found.queue is not None:
        findings += check_queue(found.queue, now)
    if found.paused is not None:
        findings.append(check_paused(found.paused, now))
    if found.undeclared is not None and found.queue is not None:
        findings.append(check_undeclared(found.undeclared, found.queue))
    if found.backlogs is not None:
        findings += check_backlogs(found.backlogs, now)
    return findings + check_unseen(found.unseen)


def check_server_version(found: ServerVitals, now: int) -> Finding:
    major = found.version_number // 10_000
    name = f"PostgreSQL {found.server.version if found.server else major}"
    if major < VERSION_MIN:
        return critical("server-version", name, "Upgrade the server.")
    end = SUPPORTED_UNTIL.get(major)
    if end is not None and to_datetime(now).date().isoformat() > end:
        return warning("server-version", f"{name}, supported until {end}", "Plan its upgrade.")
    return fine("server-version", name)


def check_driver(found: ServerVitals) -> Finding:
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


def check_replication(server: Server, found: ServerVitals) -> Finding:
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
    """What the round trip may account for is not held against it."""
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


def check_history(tables: list[Table]) -> Finding:
    kept = [each for each in tables if each.name in HISTORY]
    seen = "; ".join(
        f"{each.name} has about {counted(each.rows, 'row')}, {size(each.bytes)} with its indexes" for each in kept
    )
    if any(each.rows > HISTORY_ROWS or each.bytes > HISTORY_BYTES for each in kept):
        return warning("history", seen, SHORTEN_HISTORY)
    return fine("history", seen)
