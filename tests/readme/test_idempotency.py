"""The snippet of ``docs/idempotency.md`` runs, and does what its page says."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stagepost import App
from stagepost.testing import Harness
from stagepost.testing.running import run_statement

PAGE = Path(__file__).parents[2] / "docs/idempotency.md"


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def accounts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[App, dict[str, Any]]]:
    """The app of the snippets that keep accounts, on a database with their tables."""
    url = request.getfixturevalue(f"new_{request.param}")()
    monkeypatch.setenv("STAGEPOST_DATABASE", url)
    module = ModuleType("accounts")
    monkeypatch.setitem(sys.modules, "accounts", module)
    for each in snippets("python"):
        if "accounts" in each:
            exec(compile(each, str(PAGE), "exec", dont_inherit=True), vars(module))
    app: App = vars(module)["app"]
    for statement in ";".join(snippets("sql")).split(";"):
        if statement.strip():
            run_statement(app, statement)
    yield app, vars(module)
    app.close()


def drained(app: App, seed: int = 0) -> None:
    with closing(Harness(app, seed=seed)) as harness:
        harness.drain()
        assert harness.dead_letters() == []


def test_an_event_table_recognises_a_cause_that_comes_again(accounts: tuple[App, dict[str, Any]]) -> None:
    app, names = accounts
    for number, cause in enumerate(["a", "b", "a", "b"]):
        command = names["Deposit"]("olga", 100 + number % 2, cause)
        app.start(names["deposit"], command, flow_id=f"deposit:{number}")
    drained(app)
    for table in ("event", "booked"):
        found = run_statement(app, f"SELECT version, cents FROM {table} ORDER BY version")
        assert sorted(row["cents"] for row in found) == [100, 101], table
        assert [row["version"] for row in found] == [1, 2]


@pytest.mark.parametrize("seed", range(3))
def test_numbered_messages_are_applied_in_their_order(accounts: tuple[App, dict[str, Any]], seed: int) -> None:
    app, names = accounts
    for copy in range(2):
        for number in range(1, 7):
            app.start(names["change"], names["Change"]("olga", number, number), flow_id=f"{copy}:{number}")
    drained(app, seed)
    applied = run_statement(app, "SELECT number, cents FROM applied")
    assert sorted(tuple(row) for row in applied) == [(number, number) for number in range(1, 7)]
    assert run_statement(app, "SELECT done FROM progress").scalar() == 6


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
    (snippet,) = [each for each in snippets("python") if "app.effect(" in each]
    processor = Processor()
    module = ModuleType("payments")
    monkeypatch.setitem(sys.modules, "payments", module)
    names: dict[str, Any] = vars(module)
    names["processor"] = processor
    exec(compile(snippet, str(PAGE), "exec", dont_inherit=True), names)
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
