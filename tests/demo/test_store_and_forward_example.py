"""The chain of HTTP services: nothing is lost or doubled with the gateway, and something with each mistake."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.store_and_forward.__main__ import cells, line, main
from examples.store_and_forward.chain import MISTAKES, ORDERS, Outcome, run
from tests.places import bare_environment

LOSING = {
    "client-retries",
    "re-insert-in-code",
    "commit-before-answer",
    "error-reply-commits",
    "acknowledge-on-receipt",
    "answer-ignored",
}
DOUBLING = {"check-in-the-reader", "new-id-on-retry"}


# Chance decides whether a kill, or another reader, comes in between. Two runs without any are rare enough.
BY_CHANCE = ("re-insert-in-code", "check-in-the-reader")


@pytest.mark.more
def test_the_gateway_loses_and_doubles_nothing_and_each_mistake_does(tmp_path: Path) -> None:
    def run_apart(number: int, mistake: str | None) -> Outcome:
        folder = tmp_path / str(number)
        folder.mkdir()
        return run(mistake, folder, bare_environment())

    mistakes = (None, *MISTAKES, *BY_CHANCE)
    # A run mostly waits.
    with ThreadPoolExecutor(len(mistakes)) as threads:
        runs = list(zip(mistakes, threads.map(run_apart, range(len(mistakes)), mistakes), strict=True))
    cure = runs[0][1]
    assert (cure.reached, cure.lost, cure.doubled) == (ORDERS, 0, 0)
    # Some answers were lost, and some deliveries failed.
    assert cure.sent > ORDERS
    assert cure.read > ORDERS
    assert {mistake for mistake, found in runs if found.lost} == LOSING
    assert {mistake for mistake, found in runs if found.doubled} == DOUBLING
    # Orders that are inserted again are behind all others, and each retry in the client holds a thread.
    found = dict(runs)
    assert found["re-insert-in-code"].displaced > 0
    assert found["client-retries"].held > 1


def test_a_line_of_the_command_has_each_count() -> None:
    shown = line(cells("late", Outcome(sent=1, read=2, reached=3, doubled=4, held=5, displaced=6)))
    assert shown.split() == ["late", "1", "2", "3", str(ORDERS - 3), "4", "5", "6"]


def test_an_unknown_mistake_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["late"]) == 2
    assert "there is no mistake 'late'" in capsys.readouterr().err
