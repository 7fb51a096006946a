"""``stagepost check``"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.shop import command, parsed, told_in_one_paragraph

APP = """
from dataclasses import dataclass
from stagepost import App, Context

app = App("payments", database="sqlite:///{folder}/payments.db")

@dataclass
class Order:
    id: str

def capture(order: Order) -> None: ...

card = app.effect("card", call=capture)

@app.endpoint("first")
def first(ctx: Context, order: Order) -> None:
    ctx.effect(card, order)
    ctx.sql("SELECT 1")

@app.endpoint("late"{batch})
def late(ctx: Context, order: Order) -> None:
    ctx.{use}
    ctx.effect(card, order)
"""


def write_app(folder: Path, monkeypatch: pytest.MonkeyPatch, use: str, batch: str = "") -> None:
    (folder / "checked_app.py").write_text(APP.format(folder=folder, use=use, batch=batch))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "checked_app", raising=False)


@pytest.mark.parametrize("use", ["sql('SELECT 1')", "connection", "session"])
def test_an_effect_within_the_transaction_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str) -> None:
    write_app(tmp_path, monkeypatch, use)
    found = command("check", "checked_app:app")
    assert found.exit_code == 1
    (line,) = found.stdout.splitlines()
    assert line.startswith("late (")
    assert "calls an effect in line 23, and line 22 has begun its transaction before" in line
    assert line.endswith("Call the effect first.")
    assert not (tmp_path / "payments.db").exists()


def test_an_app_without_faults_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_app(tmp_path, monkeypatch, "send")
    assert command("check", "checked_app:app").stdout == "checked_app:app: 3 stages, nothing found\n"
    assert parsed(command("check", "--json", "checked_app:app"))["advice"] == []


def test_a_declaration_that_cannot_work_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_app(tmp_path, monkeypatch, "send", ", batch=5")
    assert "batch=5" in told_in_one_paragraph(command("check", "checked_app:app"), 2)
