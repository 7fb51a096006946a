from __future__ import annotations

from itertools import count
from pathlib import Path

from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.contract.comparison import compare_stores
from tests.toy_store.store import ToyStore


def test_the_sqlite_store_answers_as_the_memory_store_does(tmp_path: Path) -> None:
    numbers = count()
    compare_stores(lambda: SqliteStore(tmp_path / f"{next(numbers)}.db"), ToyStore)
