"""The memory store against the contract: it is the oracle, so it must not be laxer than the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stagepost.app.stores import Access, access
from stagepost.store.memory.store import MemoryStore
from stagepost.testing import ManualClock
from stagepost.testing.contract import OneWriterContract, StoreContract, TransportContract


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class TestMemoryStore(StoreContract, OneWriterContract):
    @pytest.fixture
    def scribble(self) -> Callable[[Any, str], None]:
        return lambda connection, text: connection.append(text)

    @pytest.fixture
    def scribbles(self, store: MemoryStore) -> Callable[[], list[str]]:
        return lambda: list(store.tables.ledger.values())


class TestDatabaseTransportInMemory(TransportContract):
    @pytest.fixture
    def make_access(self, store: MemoryStore, clock: ManualClock) -> Callable[[], Access]:
        return lambda: access(store.session(), clock)
