"""A bank in an SQLite file, with the lock files of its workers beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.faults.bank import LEDGER
from tests.faults.books import Books


class SqliteBooks(Books):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.locks = path.with_name(f"{path.name}-workers")
        super().__init__(f"sqlite:///{path}")
        with self.connected() as connection:
            for statement in LEDGER:
                connection.execute(statement)

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection:
            yield connection

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self.connected() as connection:
            return connection.execute(statement, parameters).fetchall()

    def registered(self) -> int:
        return len(list(self.locks.iterdir())) if self.locks.exists() else 0

    def hearts_beat_since(self, moment: float) -> int:
        return sum(each.stat().st_mtime > moment for each in self.locks.glob("*.lock"))

    def close(self) -> None:
        """Each connection ends with what it was asked."""
