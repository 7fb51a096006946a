from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.books import Books
from tests.faults.postgres_books import PostgresBooks
from tests.faults.sqlite_books import SqliteBooks
from tests.faults.two_books import TwoBooks
from tests.faults.worker_fleet import WorkerFleet
from tests.processes import ProcessGroup
from tests.servers.proxy import Proxy


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if sys.platform != "linux":
        here = Path(__file__).parent
        for item in items:
            if item.path.is_relative_to(here):
                item.add_marker(pytest.mark.skip(reason="the fault tests find processes by Linux's /proc"))


@pytest.fixture
def store() -> str:
    """Where the bank is kept. What is no matter of SQLite alone is tried on both: see ``stores``. With a
    mode behind it, its messages are in another database like it."""
    return "sqlite"


@pytest.fixture
def books(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Books]:
    name, _, mode = store.partition("-")

    def make(file: str) -> Books:
        if name == "postgres":
            return PostgresBooks(request.getfixturevalue("new_postgres")())
        return SqliteBooks(tmp_path / file)

    books = TwoBooks(make("bank.db"), make("messages.db"), mode) if mode else make("bank.db")
    yield books
    books.close()


@pytest.fixture
def proxy(books: Books, fleet: WorkerFleet) -> Iterator[Proxy]:
    """The fleet reaches its database through it; the judge does not."""
    proxy = Proxy(books.url)
    fleet.url = proxy.url
    yield proxy
    fleet.kill_all()
    proxy.close()


@pytest.fixture
def fleet(books: Books, tmp_path: Path) -> Iterator[WorkerFleet]:
    fleet = WorkerFleet(books, tmp_path)
    yield fleet
    fleet.kill_all()


@pytest.fixture
def processes() -> Iterator[ProcessGroup]:
    group = ProcessGroup()
    yield group
    group.kill_all()
