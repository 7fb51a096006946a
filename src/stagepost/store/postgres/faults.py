"""Translate PostgreSQL's errors into Stagepost's: contention, outages and defects."""

from __future__ import annotations

import psycopg

from stagepost.flow.errors import (
    SchemaMismatch,
    StoreContention,
    StoreError,
    StoreExhausted,
    StoreRefused,
    StoreUnavailable,
)
from stagepost.flow.texts import as_sentence

# By SQLSTATE; appendix A of PostgreSQL's manual.
SERIALIZATION_FAILURE = "40001"
DEADLOCK_DETECTED = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
QUERY_CANCELED = "57014"
READ_ONLY_TRANSACTION = "25006"
# Stagepost's own code: see take_claimed.sql.
LEASE_LOST = "SP001"
CONTENDED = {SERIALIZATION_FAILURE, DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, QUERY_CANCELED}
# Errors of the connection, resources, the operator, the system, and damaged data. They come from outside, so they count
# against no message.
OUTAGE_CLASSES = {"08", "53"}
OUTAGES = {"57P01", "57P02", "57P03", "57P05", "58000", "58030", "XX001", "XX002", READ_ONLY_TRANSACTION}
# Codes of these classes that the statement itself causes, at every attempt: a wrong number of parameters, and more
# temporary files than allowed. XX000 is no outage either, because functions raise it for any unexpected state.
BLAMED = {"08P01", "53400"}
# A pooler's error when the server ended the connection without an error, or with one that the pooler did not read.
BY_POOLER = "08P01"
# Codes that one statement can cause alone, by asking for too much: insufficient_resources, disk_full, out_of_memory.
EXHAUSTED = {"53000", "53100", "53200"}
# The server ended the connection and its transaction, because the transaction was idle for too long.
IDLE_IN_TRANSACTION = "25P03"
# The answer to every statement in a transaction after one has failed.
IN_FAILED_TRANSACTION = "25P02"
UNAVAILABLE_CLASSES = OUTAGE_CLASSES | {"28", "3D"}
# data_exception, program_limit_exceeded
REFUSED_CLASSES = {"22", "54"}
MISSING = {"42P01", "42703"}
REMEDIES = {
    "53100": "Free some disk space.",
    "53300": "Raise max_connections, or run fewer workers.",
    "28P01": "Check user and password in the database URL.",
    "28000": "Check the user in the database URL, and pg_hba.conf.",
    "3D000": "Create it, or check the database URL.",
    READ_ONLY_TRANSACTION: "It is a standby, or was made read-only: connect to the primary.",
}
# The driver passes on no code for a refused connection, so its text decides.
REFUSALS = {
    "too many connections": "53300",
    "connection slots": "53300",
    "password authentication failed": "28P01",
    "pg_hba.conf": "28000",
    "role ": "28000",
    "does not exist": "3D000",
}


def is_outage(error: psycopg.Error) -> bool:
    code = error.sqlstate
    if code is None:
        # The server did not answer.
        return isinstance(error, psycopg.OperationalError)
    if code == BY_POOLER and error.diag.severity == "FATAL":
        return True
    return code in OUTAGES or (code[:2] in OUTAGE_CLASSES and code not in BLAMED)


def is_elsewhere(error: psycopg.Error) -> bool:
    """Return whether a connection of the server itself failed, for example that of a foreign table. This one works."""
    return error.sqlstate is not None and error.sqlstate.startswith("08")


def translate(error: psycopg.Error, place: str) -> StoreError:
    return _translated(
        error.sqlstate, one_line(error), place, is_away=is_outage(error), is_refused=_refuses_data(error)
    )


def translate_code(code: str | None, message: str, place: str) -> StoreError:
    """Translate an error of ADBC. Only the first line of its message holds no data of rows."""
    (line, *_) = message.strip().splitlines() or ["the server did not answer"]
    return _translated(code, line, place, is_away=code is None or code in OUTAGES, is_refused=False)


def _translated(code: str | None, message: str, place: str, *, is_away: bool, is_refused: bool) -> StoreError:
    text = f"{place}: {message}"
    if code in CONTENDED:
        return StoreContention(text)
    if is_away or (code is not None and code[:2] in UNAVAILABLE_CLASSES):
        kind = StoreExhausted if code in EXHAUSTED else StoreUnavailable
        return kind(f"{as_sentence(text)} {REMEDIES.get(code or _refusal(text), '')}".rstrip())
    if is_refused:
        return StoreRefused(text)
    if code in MISSING:
        return SchemaMismatch(f"{as_sentence(text)} Run: stagepost migrate")
    return StoreError(text)


def _refuses_data(error: psycopg.Error) -> bool:
    """Return whether the data itself is refused: by the server, or by the driver, which sends it nothing."""
    return isinstance(error, psycopg.DataError) if error.sqlstate is None else error.sqlstate[:2] in REFUSED_CLASSES


def one_line(error: psycopg.Error) -> str:
    """Return the error's message without the server's details, which hold data of rows."""
    return " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__


def _refusal(text: str) -> str:
    _, fatal, reason = text.partition("FATAL: ")
    return next((code for words, code in REFUSALS.items() if fatal and words in reason), "")
