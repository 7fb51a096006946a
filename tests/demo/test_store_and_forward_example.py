"""The chain of HTTP services: nothing is lost or doubled with the gateway, and something with each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.store_and_forward.__main__ import main
from examples.store_and_forward.chain import MISTAKES, ORDERS, run
from tests.places import bare_environment

LOSING = {
    "client-retries",
    "commit-before-answer",
    "error-reply-commits",
    "acknowledge-on-receipt",
    "answer-ignored",
}
# The others run with make soak.
IN_CI = {"re-insert-in-code", "new-id-on-retry"}
DOUBLING = {"check-in-the-reader", "new-id-on-retry"}


@pytest.mark.more
def test_the_gateway_loses_and_doubles_nothing(tmp_path: Path) -> None:
    found = run(None, tmp_path, bare_environment())
    assert (found.reached, found.lost, found.doubled) == (ORDERS, 0, 0)
    # Some answers were lost, and some deliveries failed.
    assert found.sent > ORDERS
    assert found.read > ORDERS


@pytest.mark.parametrize(
    "mistake", [pytest.param(each, marks=pytest.mark.more if each in IN_CI else pytest.mark.soak) for each in MISTAKES]
)
def test_each_mistake_shows_in_the_counts(mistake: str, tmp_path: Path) -> None:
    found = run(mistake, tmp_path, bare_environment())
    assert (found.lost > 0) or mistake not in LOSING
    assert (found.doubled > 0) or mistake not in DOUBLING
    if mistake == "re-insert-in-code":
        assert found.displaced > 0
    if mistake == "client-retries":
        assert found.held > 1


def test_an_unknown_mistake_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["late"]) == 2
    assert "there is no mistake 'late'" in capsys.readouterr().err
