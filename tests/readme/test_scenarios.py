"""``docs/contributing/scenarios.md`` names tests that exist, and each scenario has one or the reason why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/contributing/scenarios.md"
EXCUSES = ("not there by design: ", "not there yet", "not tested")


def the_rows() -> Iterator[tuple[str, str]]:
    """Each scenario, and what the page says of it."""
    for line in PAGE.read_text().splitlines():
        if line.startswith("| ") and not line.startswith(("| scenario |", "| --- |")):
            _, scenario, said, _ = (cell.strip() for cell in line.split("|"))
            yield scenario, said


@cache
def named_in(path: Path) -> set[str]:
    """Its tests, as pytest takes their names behind the path. Parsed and not imported: some need a server."""
    found = set[str]()
    for node in ast.parse(path.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        before = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {f"{before}{each.name}" for each in inner if isinstance(each, ast.FunctionDef)}
    return {each for each in found if each.rpartition("::")[2].startswith("test_")}


@pytest.mark.parametrize("reference", sorted(set(re.findall(r"`([^`]*::[^`]*)`", PAGE.read_text()))), ids=str)
def test_a_test_that_the_page_names_exists(reference: str) -> None:
    path, _, name = reference.partition("::")
    assert (ROOT / path).is_file(), f"{path} is not there"
    assert name in named_in(ROOT / path), f"{path} has no {name}"


def test_every_scenario_names_a_test_or_says_why_there_is_none() -> None:
    rows = list(the_rows())
    assert len(rows) > 100
    silent = [scenario for scenario, said in rows if "::" not in said and not said.startswith(EXCUSES)]
    assert silent == []
