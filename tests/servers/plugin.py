"""Fixtures: a server for each process of the test run, and an empty database for each test that asks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stagepost.store.postgres.store import migrate_database
from stagepost.testing.postgres import CannotBeHadError, account_for_the_server
from tests.servers.postgres import Server, running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    # Not in pytest's own folder, which only its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="stagepost-postgres-"))
    try:
        if account_for_the_server() is not None:
            folder.chmod(0o755)
        with running(folder / "server") as server:
            yield server
    except CannotBeHadError as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL: {reason}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def migrated_template(postgres_server: Server) -> str:
    """The name of a database with Stagepost's tables, to be copied."""
    url = postgres_server.new_database()
    migrate_database(url)
    return url.rpartition("/")[2]


@pytest.fixture
def new_postgres(postgres_server: Server, migrated_template: str) -> Iterator[Callable[[], str]]:
    """The URL of an empty store, another one each time."""
    made: list[str] = []

    def make() -> str:
        url = postgres_server.new_database(migrated_template)
        # The uuid is made with the tables, and copied with them.
        made.append(url)
        return url

    yield make
    for url in made:
        postgres_server.drop_database(url)
