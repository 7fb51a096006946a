"""Translate SQLite's errors into Stagepost's: contention, outages and defects."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from stagepost.flow.errors import StoreContention, StoreError, StoreExhausted, StoreRefused, StoreUnavailable
from stagepost.flow.texts import as_sentence
from stagepost.store.sqlite.disk import is_full

CONTENDED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
UNAVAILABLE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}
# These come from outside, so they count against no message.
OUTAGES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
# One statement can cause these alone, by writing more than there is room for.
EXHAUSTED = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM}
REMEDIES = {
    sqlite3.SQLITE_FULL: "Free some disk space.",
    sqlite3.SQLITE_IOERR: (
        "Check that its disk is mounted and that no quota is used up, and look into the system's log for errors of it."
    ),
    sqlite3.SQLITE_CANTOPEN: "Check that the folder exists and may be written to.",
    sqlite3.SQLITE_READONLY: "Check that the file, and its folder, may be written to.",
    sqlite3.SQLITE_CORRUPT: "Run PRAGMA integrity_check on it, and restore it from a backup.",
    sqlite3.SQLITE_NOTADB: "It is a file of something else: check the database URL.",
    sqlite3.SQLITE_NOMEM: "Give the process more memory.",
    sqlite3.SQLITE_PROTOCOL: "Too many processes open it at once: start fewer of them, or try again.",
}
# SQLite could not make or lengthen a file beside the database, and says only that.
FAILS_ON_A_FULL_DISK = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}


def is_outage(error: sqlite3.Error) -> bool:
    return _primary_code(error) in OUTAGES


def is_contention(error: sqlite3.Error) -> bool:
    return _primary_code(error) in CONTENDED


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    code = _primary_code(error)
    text = f"{path}: {error}"
    if is_contention(error):
        return StoreContention(f"{as_sentence(text)} Something else keeps it for writing: end its transaction.")
    if code in UNAVAILABLE:
        kind = StoreExhausted if code in EXHAUSTED else StoreUnavailable
        if code in FAILS_ON_A_FULL_DISK and is_full(path.parent):
            name = getattr(error, "sqlite_errorname", code)
            return kind(f"{text} ({name}), because its disk is full. {REMEDIES[sqlite3.SQLITE_FULL]}")
        return kind(f"{as_sentence(text)} {REMEDIES[code]}")
    return (StoreRefused if code == sqlite3.SQLITE_TOOBIG else StoreError)(text)


def _primary_code(error: sqlite3.Error) -> int:
    # The lower byte; the rest says more, for people.
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
