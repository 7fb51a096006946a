from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command finds a database or an app that it was not told of."""
    folder = tmp_path / "nowhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("STAGEPOST_DATABASE", raising=False)
    monkeypatch.delenv("STAGEPOST_APP", raising=False)
