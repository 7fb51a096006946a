"""A bank in an SQLite file, with the lock files of its workers beside it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.books import InSqlite
from tests.faults.bank import LEDGER
from tests.faults.books import Books


class SqliteBooks(InSqlite, Books):
    def __init__(self, path: Path) -> None:
        InSqlite.__init__(self, path)
        Books.__init__(self)
        with self.connected() as connection:
            for statement in LEDGER:
                connection.execute(statement)

    def registered(self) -> int:
        return len(list(self.locks.iterdir())) if self.locks.exists() else 0

    def hearts_beat_since(self, moment: float) -> int:
        beats = 0
        for each in self.locks.glob("*.lock"):
            # A worker may have ended, or was taken for dead, since the listing.
            with suppress(FileNotFoundError):
                beats += each.stat().st_mtime > moment
        return beats

    def close(self) -> None:
        """Each connection ends with its statement."""
