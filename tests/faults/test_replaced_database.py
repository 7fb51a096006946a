"""A database that is taken away from under its worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.books import transfers
from tests.faults.sqlite_books import SqliteBooks
from tests.faults.worker_fleet import WorkerFleet
from tests.waiting import wait_until


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_worker_whose_database_is_taken_away_stops_and_says_so(
    how: str, books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    books.start(transfers(5))
    worker = fleet.command("--threads", "1")
    wait_until(books.is_drained, "it works")
    if how == "removed":
        books.path.unlink()
    else:
        (tmp_path / "restored.db").write_bytes(books.path.read_bytes())
        (tmp_path / "restored.db").rename(books.path)
    assert worker.wait() == 1
    assert worker.logged("database-replaced")
