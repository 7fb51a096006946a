"""The snippets of docs/gateway_consumers.md run, and its table of settings is one that a delivery takes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from stagepost.gateway.configuration import Configuration
from stagepost.gateway.out import read_delivery
from tests.places import bare_environment

PAGE = (Path(__file__).parents[2] / "docs" / "gateway_consumers.md").read_text()


def snippets(kind: str) -> list[str]:
    return [str(each) for each in re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)]


def run(folder: Path, *snippets: str) -> str:
    file = folder / "page.py"
    file.write_text("\n\n".join(snippets))
    ended = subprocess.run(
        [sys.executable, str(file)], cwd=folder, env=bare_environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_delivery_of_the_page_can_be_declared(tmp_path: Path) -> None:
    assert run(tmp_path, snippets("python")[0]) == ""


def test_the_receiver_of_the_page_does_the_work_once(tmp_path: Path) -> None:
    _, function, middleware = snippets("python")
    said = run(tmp_path, function).strip()
    assert f"It prints `{said}`" in PAGE
    assert run(tmp_path, middleware) == ""


def test_the_table_of_the_page_is_a_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", re.findall(r"whsec_\S+=", PAGE)[0])
    monkeypatch.setenv("SHOP_AUTHORIZATION", "Bearer t")
    (text,) = snippets("toml")
    configuration = msgspec.convert(tomllib.loads(text), Configuration)
    delivery = read_delivery("deliver", configuration.route[0].deliver or {})
    assert delivery.concurrency == 8
    assert len(delivery.keys) == 1


@pytest.mark.parametrize("setting", ["concurrency", "timeout_seconds", "pause_after", "statuses", "allow_private"])
def test_the_page_names_the_settings(setting: str) -> None:
    assert f"`{setting}`" in PAGE
