"""Handlers that take their time, while everybody else lives on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import stores
from tests.faults.books import Books
from tests.faults.scenarios import slow
from tests.faults.worker_fleet import WorkerFleet


@pytest.mark.more
@stores.on_both
@pytest.mark.parametrize("holds_the_lock", [True, False], ids=["holding the write lock", "holding nothing"])
def test_a_handler_slower_than_the_heartbeat_makes_nobody_look_dead_and_nothing_doubled(
    holds_the_lock: bool, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert slow(books, fleet, tmp_path, holds_the_lock=holds_the_lock) == []
