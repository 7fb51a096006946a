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


@pytest.fixture
def graves(shop: Shop) -> Shop:
    """Five dead letters: two of one group, two of others, one that killed its process."""
    shop.order("order:1", "fail")
    shop.order("order:2", "fail")
    shop.order("order:3", "refuse")
    shop.order("order:4", "fail-late")
    shop.run()
    shop.died("order:5")
    return shop
