"""The snippet of ``docs/idempotency.md`` runs, and does what its page says."""

from __future__ import annotations

import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stagepost import App
from stagepost.testing import Harness

PAGE = Path(__file__).parents[2] / "docs/idempotency.md"


class Processor:
    def __init__(self) -> None:
        self.captures: dict[str, str] = {}

    def post(self, path: str, body: object, *, headers: dict[str, str], timeout: float) -> dict[str, str]:
        assert (path, timeout) == ("/captures", 30)
        return {"id": self.captures.setdefault(headers["Idempotency-Key"], f"c{len(self.captures) + 1}")}

    def get(self, path: str, query: dict[str, str]) -> dict[str, str] | None:
        found = self.captures.get(query["key"])
        return None if found is None else {"id": found}


def test_the_snippet_captures_once_and_writes_the_payment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEPOST_DATABASE", f"sqlite:///{tmp_path / 'payments.db'}")
    snippet = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert snippet is not None
    processor = Processor()
    module = ModuleType("payments")
    monkeypatch.setitem(sys.modules, "payments", module)
    names: dict[str, Any] = vars(module)
    names["processor"] = processor
    exec(compile(snippet[1], str(PAGE), "exec", dont_inherit=True), names)
    app: App = names["app"]
    with closing(sqlite3.connect(tmp_path / "payments.db")) as file:
        file.execute("CREATE TABLE payment (hold TEXT, capture TEXT)")
    app.start(names["settle"], names["CaptureRequest"]("h1", 100), flow_id="hold:h1")
    with closing(Harness(app)) as harness:
        harness.drain()
        assert harness.dead_letters() == []
    with closing(sqlite3.connect(tmp_path / "payments.db")) as file:
        assert file.execute("SELECT hold, capture FROM payment").fetchall() == [("h1", "c1")]
    assert list(processor.captures.values()) == ["c1"]
    app.close()
