"""Checks of Stagepost's tables on a PostgreSQL server: their vacuum, their dead rows, their age, their size."""

from __future__ import annotations

from stagepost.ports.findings import (
    GIB,
    SHORTEN_HISTORY,
    WHY,
    Finding,
    counted,
    critical,
    fine,
    graded,
    size,
    warning,
)
from stagepost.store.postgres.server_facts import Server, Table

WHY |= {
    "unlogged-tables": "an unlogged table is empty after a crash",
    "autovacuum": "without it dead rows stay, and every claim walks over them",
    "dead-rows": "every claim walks over the dead rows that were not removed yet",
    "wraparound": "a server that runs out of transaction numbers refuses to write",
}

# A busy queue leaves some hundred thousand dead rows between two rounds of autovacuum.
DEAD_ROWS_WARNING = 1_000_000
DEAD_ROWS_CRITICAL = 10_000_000
# Autovacuum is forced at autovacuum_freeze_max_age. From AGE_CRITICAL on, it drops all other work.
AGE_WARNING = 1_200_000_000
AGE_CRITICAL = 1_600_000_000
HISTORY_ROWS = 100_000_000
HISTORY_BYTES = 50 * GIB
HISTORY = ("stagepost_journal", "stagepost_accepted")

RELOAD = "then: SELECT pg_reload_conf()."


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
