"""PostgreSQL's errors in Stagepost's words: what may pass in a moment, what is down, and what is a defect."""

from __future__ import annotations

import psycopg

from stagepost.flow.errors import SchemaMismatch, StoreContention, StoreError, StoreUnavailable

# By SQLSTATE; appendix A of PostgreSQL's manual.
SERIALIZATION_FAILURE = "40001"
DEADLOCK_DETECTED = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
QUERY_CANCELED = "57014"
READ_ONLY_TRANSACTION = "25006"
CONTENDED = {SERIALIZATION_FAILURE, DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, QUERY_CANCELED}
# Connection, authorization, catalog, resources, the operator, the system, and damaged data. Those that come from
# outside, whatever the statement: no message is to blame.
OUTAGE_CLASSES = {"08", "53", "58", "XX"}
OUTAGES = {"57P01", "57P02", "57P03", "57P05", READ_ONLY_TRANSACTION}
UNAVAILABLE_CLASSES = OUTAGE_CLASSES | {"28", "3D"}
MISSING = {"42P01", "42703"}
REMEDIES = {
    "53100": "Free some disk space.",
    "53300": "Raise max_connections, or run fewer workers.",
    "28P01": "Check user and password in the database URL.",
    "28000": "Check the user in the database URL, and pg_hba.conf.",
    "3D000": "Create it, or check the database URL.",
    READ_ONLY_TRANSACTION: "It is a standby, or was made read-only: connect to the primary.",
}


def is_outage(error: psycopg.Error) -> bool:
    code = error.sqlstate
    if code is None:
        # Not an answer of the server: there was none.
        return isinstance(error, psycopg.OperationalError)
    return code in OUTAGES or code[:2] in OUTAGE_CLASSES


def translate(error: psycopg.Error, place: str) -> StoreError:
    code = error.sqlstate
    text = f"{place}: {one_line(error)}"
    if code in CONTENDED:
        return StoreContention(text)
    if is_outage(error) or (code is not None and code[:2] in UNAVAILABLE_CLASSES):
        return StoreUnavailable(f"{text}. {REMEDIES.get(code or '', '')}".rstrip())
    if code in MISSING:
        return SchemaMismatch(f"{text}. Run: stagepost migrate")
    return StoreError(text)


def one_line(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
