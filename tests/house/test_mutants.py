"""Each promise of ARCHITECTURE.md has a mutant, and each mutant fits the source and the tests as they are."""

from __future__ import annotations

import ast

import pytest

from tests.house.counting import SOURCE
from tests.house.ids import ROOT, collect
from tests.house.mutants import MUTANTS, mutated


def promises() -> list[str]:
    """The first cell of each row of the table."""
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    begin = lines.index("| promise | where it is kept | failure without it |") + 2
    rows = []
    for line in lines[begin:]:
        if not line.startswith("|"):
            break
        rows.append(line.split("|")[1].strip())
    return rows


def test_every_promise_has_a_mutant_and_every_mutant_a_promise() -> None:
    assert len(promises()) > 20
    assert {each.promise for each in MUTANTS} == set(promises())


def test_every_mutant_finds_its_text_exactly_once_and_changes_it() -> None:
    for mutant in MUTANTS:
        before = (SOURCE / mutant.file).read_text(encoding="utf-8")
        after = mutated(before, mutant)
        assert after != before, mutant
        if mutant.file.endswith(".py"):
            ast.parse(after)


@pytest.mark.more
def test_every_test_of_a_mutant_exists() -> None:
    # It raises where pytest does not find one of them.
    assert collect(*sorted({test for mutant in MUTANTS for test in mutant.tests}))
