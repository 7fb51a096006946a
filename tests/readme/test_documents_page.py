"""The module of ``docs/documents.md`` runs as it is written there, on a real Redis."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stagepost import testing
from stagepost.store.document.redis import RedisDocuments
from tests.servers.redis import RedisServer

PAGE = Path(__file__).parents[2] / "docs/documents.md"


@pytest.fixture
def bank(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    redis_server.clear()
    found = re.search(r"<!-- file: bank.py -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "documents_page.py").write_text(found[1].replace("redis://localhost:6379/0", redis_server.url))
    monkeypatch.syspath_prepend(str(tmp_path))
    bank = importlib.import_module("documents_page")
    monkeypatch.delitem(sys.modules, "documents_page")
    return bank


def test_the_bank_of_the_page_books_into_documents_and_prints(bank: ModuleType, redis_server: RedisServer) -> None:
    with testing.run(bank.app, "memory:") as running:
        running.sql("CREATE TABLE line (account INTEGER, balance INTEGER)")
        for number, cents in enumerate((100, 150)):
            bank.app.start(bank.book, bank.Booking(7, cents), flow_id=f"booking:{number}")
        running.drain()
        assert sorted(row[1] for row in running.sql("SELECT account, balance FROM line"))[-1] == 250
    body = json.loads(RedisDocuments(redis_server.url).read("account:7").body)
    assert body["balance"] == 250
    assert sorted(token for token, _ in body["processed"].values()) == [1, 1]
