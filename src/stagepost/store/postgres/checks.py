"""Checks of a PostgreSQL server and of its other users."""

from __future__ import annotations

from stagepost.flow.clock import to_datetime
from stagepost.ports.findings import (
    WHY,
    Finding,
    check_version,
    counted,
    critical,
    fine,
    graded,
    warning,
)
from stagepost.store.postgres.hold_checks import check_idle, check_prepared, check_slots, check_snapshots
from stagepost.store.postgres.server_facts import ClockGap, RoleSetting, Server, ServerFacts
from stagepost.store.postgres.table_checks import RELOAD, check_tables

WHY |= {
    "server-unreachable": "without its database nothing starts, and what runs waits",
    "server-version": "Stagepost needs PostgreSQL 13 or newer, and one past its support gets no corrections",
    "driver": "psycopg in pure Python takes several times the processor time for each message",
    "read-only": "workers write with every message",
    "fsync": "when the server's machine crashes, what was committed is lost, and the whole database may be damaged",
    "full-page-writes": "a page that was half written when the machine crashed cannot be repaired",
    "synchronous-commit": "Stagepost's own transactions wait for the disk; connections of your own, such as those "
    "given to app.initiate(connection=…), may lose what they committed when the machine crashes",
    "replication": "with replicas that are not waited for, a failover loses the last commits",
    "two-phase": "the mode two_phase, for two databases, prepares transactions",
    "clock": "workers write by their own clocks when a message is due and when it came: it runs early, or late",
    "others-hidden": "other sessions cannot be seen, so that long transactions and paused workers go unnoticed",
    "connections": "when they are used up, new workers cannot start, and lost connections cannot be made again",
}

VERSION_MIN = 13
# The last day of support of each version, as the PostgreSQL project has announced it.
SUPPORTED_UNTIL = {13: "2025-11-13", 14: "2026-11-12", 15: "2027-11-11", 16: "2028-11-09", 17: "2029-11-08"}
# The tolerated difference of the clocks.
CLOCK_SECONDS_WARNING = 1.0
CLOCK_SECONDS_CRITICAL = 30.0
CONNECTIONS_WARNING, CONNECTIONS_CRITICAL = 0.8, 0.95


def check_server(found: ServerFacts, now: int) -> list[Finding]:
    findings = [check_server_version(found, now), check_driver(found)]
    if found.server is not None:
        findings += check_settings(found.server, found.relaxed or [])
        findings += [check_connections(found.server), check_replication(found.server, found), check_sight(found.server)]
    if found.clock is not None:
        findings.append(check_clock(found.clock))
    findings += [check_snapshots(found), check_idle(found), check_prepared(found), check_slots(found)]
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
