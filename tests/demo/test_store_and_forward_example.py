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
# A run mostly waits, so several of them fit on one core.
AT_ONCE = 3


@pytest.mark.more
def test_the_gateway_loses_and_doubles_nothing_and_each_mistake_does(tmp_path: Path) -> None:
    def run_in_its_folder(mistake: str | None) -> Outcome:
        folder = tmp_path / str(mistake)
        folder.mkdir()
        return run(mistake, folder, bare_environment())

    with ThreadPoolExecutor(AT_ONCE) as threads:
        cure, *outcomes = threads.map(run_in_its_folder, (None, *MISTAKES))
    assert (cure.reached, cure.lost, cure.doubled) == (ORDERS, 0, 0)
    # Some answers were lost, and some deliveries failed.
    assert cure.sent > ORDERS
    assert cure.read > ORDERS
    found = dict(zip(MISTAKES, outcomes, strict=True))
    assert {name for name, each in found.items() if each.lost} == LOSING
    assert {name for name, each in found.items() if each.doubled} == DOUBLING
    # Orders that are inserted again are behind all others, and each retry in the client holds a thread.
    assert found["re-insert-in-code"].displaced > 0
    assert found["client-retries"].held > 1


def test_a_line_of_the_command_has_each_count() -> None:
    shown = line(cells("late", Outcome(sent=1, read=2, reached=3, doubled=4, held=5, displaced=6)))
    assert shown.split() == ["late", "1", "2", "3", str(ORDERS - 3), "4", "5", "6"]


def test_an_unknown_mistake_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["late"]) == 2
    assert "there is no mistake 'late'" in capsys.readouterr().err
