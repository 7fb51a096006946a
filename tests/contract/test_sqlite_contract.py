"""The SQLite store, in a real file, against the contract."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stagepost.runtime.access import Access
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing import ManualClock
from stagepost.testing.contract import (
    ArchivesContract,
    CursorsContract,
    EffectsContract,
    RetentionContract,
    StagingsContract,
    StoreContract,
)
from stagepost.testing.contract.threads import OneWriterContract
from tests.contract.claiming import ClaimingContract


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "store.db")


class TestSqliteStore(
    StoreContract,
    ArchivesContract,
    CursorsContract,
    EffectsContract,
    RetentionContract,
    StagingsContract,
    OneWriterContract,
):
    @pytest.fixture
    def scribble(self, store: SqliteStore) -> Callable[[Any, str], None]:
        with closing(sqlite3.connect(store.path)) as connection:
            connection.execute("CREATE TABLE note (text TEXT)")
        return lambda connection, text: connection.cursor().execute("INSERT INTO note VALUES (?)", (text,))

    @pytest.fixture
    def scribbles(self, store: SqliteStore) -> Callable[[], list[str]]:
        def read() -> list[str]:
            with closing(sqlite3.connect(store.path)) as connection:
                return [text for (text,) in connection.execute("SELECT text FROM note ORDER BY rowid")]

        return read


class TestClaimingOnSqlite(ClaimingContract):
    @pytest.fixture
    def make_access(self, store: SqliteStore, clock: ManualClock) -> Callable[[], Access]:
        return lambda: Access(store.session(), clock)
