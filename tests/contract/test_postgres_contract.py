"""The PostgreSQL store, on a real server, against the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from stagepost.runtime.access import Access
from stagepost.store.postgres.store import PostgresStore
from stagepost.testing import ManualClock
from stagepost.testing.contract import (
    ArchivesContract,
    CursorsContract,
    EffectsContract,
    RetentionContract,
    StagingsContract,
    StoreContract,
)
from tests.contract.claiming import ClaimingContract


@pytest.fixture
def url(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


@pytest.fixture
def store(url: str) -> PostgresStore:
    return PostgresStore(url)


class TestPostgresStore(
    StoreContract, ArchivesContract, CursorsContract, EffectsContract, RetentionContract, StagingsContract
):
    @pytest.fixture
    def scribble(self, url: str) -> Callable[[Any, str], None]:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE note (id bigint GENERATED ALWAYS AS IDENTITY, text text)")
        return lambda connection, text: connection.execute("INSERT INTO note (text) VALUES (%s)", (text,))

    @pytest.fixture
    def scribbles(self, url: str) -> Callable[[], list[str]]:
        def read() -> list[str]:
            with psycopg.connect(url) as connection:
                return [text for (text,) in connection.execute("SELECT text FROM note ORDER BY id")]

        return read


class TestClaimingOnPostgres(ClaimingContract):
    @pytest.fixture
    def make_access(self, store: PostgresStore, clock: ManualClock) -> Callable[[], Access]:
        return lambda: Access(store.session(), clock)
