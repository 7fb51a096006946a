"""``stagepost resume``, and how ``stagepost status`` shows a paused stage."""

from __future__ import annotations

import pytest

from tests.cli.shop import Shop, command, parsed, told_in_one_paragraph


@pytest.fixture
def paused(shop: Shop) -> Shop:
    """Ten orders that failed one after the other, and one that waits."""
    for n in range(11):
        shop.order(f"order:{n}", "fail")
    for _ in range(10):
        shop.harness.run_one()
    shop.harness.access.claimer.release(shop.harness.access.session.queue.owned("harness/1"), "node")
    return shop


def test_status_says_what_is_paused_since_when_and_why(paused: Shop) -> None:
    text = command("status", "--database", paused.url).stdout
    assert "shop.pay  paused for " in text
    assert "0 probes failed" in text
    assert "last error: ValueError: order 1 cannot be paid" in text
    (found,) = parsed(command("status", "--json", "--database", paused.url))["paused"]
    assert found["stage"] == "shop.pay"
    assert found["error"] == "ValueError: order 1 cannot be paid"
    assert len(found["messages"]) == 10
    assert found["pause"]["probes"] == 0


def test_resuming_ends_the_pause_at_once(paused: Shop) -> None:
    claimer = paused.harness.access.claimer
    assert claimer.claim(["shop.pay"], 10, "shop/1", "node") == []
    ended = command("resume", "shop.pay", "--database", paused.url)
    assert (ended.exit_code, ended.stdout) == (0, "shop.pay is no longer paused\n")
    assert parsed(command("status", "--json", "--database", paused.url))["paused"] == []
    assert len(claimer.claim(["shop.pay"], 10, "shop/1", "node")) == 10


def test_resuming_what_is_not_paused_says_what_is(paused: Shop) -> None:
    told = told_in_one_paragraph(command("resume", "shop.shop", "--database", paused.url), 1)
    assert told == "shop.shop is not paused; paused are: shop.pay\n"
    command("resume", "shop.pay", "--database", paused.url)
    told = told_in_one_paragraph(command("resume", "shop.pay", "--database", paused.url), 1)
    assert told == "shop.pay is not paused; paused are: none\n"
