"""Each mistake of the example does its own damage and no other, and the flow without a mistake does none."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from examples.mistakes.app import MISTAKES
from examples.mistakes.count import SEEDS, count

PAGE = Path(__file__).parents[2] / "docs/mistakes.md"
DAMAGES = {
    "": None,
    "after-commit-hook": "lost_mails",
    "send-before-commit": "doubled_mails",
    "server-made-ids": "doubled_invoices",
    "connection-held": "kept_out",
    "message-order": "wrong_states",
}


@pytest.mark.parametrize("mistake", [pytest.param(each, marks=pytest.mark.more if each else []) for each in DAMAGES])
def test_a_mistake_does_its_own_damage_and_no_other(mistake: str) -> None:
    found = asdict(count(mistake))
    assert found.pop("runs") > SEEDS
    assert {name for name, runs in found.items() if runs} == ({DAMAGES[mistake]} if mistake else set())


def test_the_page_has_a_row_with_the_cure_of_each_mistake() -> None:
    text = PAGE.read_text()
    assert all(f"| `{each}`: " in text for each in MISTAKES)
    assert set(MISTAKES) == set(DAMAGES) - {""}
