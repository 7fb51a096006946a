from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.books import Books
from tests.faults.crew import Crew


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if sys.platform != "linux":
        here = Path(__file__).parent
        for item in items:
            if item.path.is_relative_to(here):
                item.add_marker(pytest.mark.skip(reason="the fault tests find processes by Linux's /proc"))


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path / "bank.db")


@pytest.fixture
def crew(books: Books, tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(books, tmp_path)
    yield crew
    crew.disband()
