"""``stagepost unsubscribe``"""

from __future__ import annotations

from stagepost.ports.subscriptions import Subscription
from stagepost.testing.contract.givens import committed
from tests.cli.shop import Shop, command, parsed


def subscribe(shop: Shop, *subscribers: str) -> None:
    with committed(shop.harness.access.session):
        for each in subscribers:
            shop.harness.access.session.subscriptions.put(Subscription("prices", each, "billing"))


def subscribers(shop: Shop) -> list[str]:
    return [each.subscriber for each in shop.harness.access.session.subscriptions.listed(["prices"])]


def test_it_ends_one_subscription_and_no_other(shop: Shop) -> None:
    subscribe(shop, "billing.on_price", "billing.total")
    told = command("unsubscribe", "prices", "billing.on_price", "--database", shop.url)
    assert (told.exit_code, told.stdout) == (0, "billing.on_price gets no more copies of publications to prices\n")
    assert subscribers(shop) == ["billing.total"]


def test_one_that_there_is_not_is_bad_news_and_names_those_there_are(shop: Shop) -> None:
    subscribe(shop, "billing.on_price")
    told = command("unsubscribe", "prices", "billing.on_prise", "--database", shop.url)
    assert told.exit_code == 1
    assert (
        told.stderr == "billing.on_prise does not subscribe to prices; its subscribers: billing.on_price (of billing)\n"
    )
    assert "its subscribers: none" in command("unsubscribe", "price", "billing.on_price", "--database", shop.url).stderr
    assert subscribers(shop) == ["billing.on_price"]


def test_json_says_whether_there_was_one(shop: Shop) -> None:
    subscribe(shop, "billing.on_price")
    wanted = {"topic": "prices", "subscriber": "billing.on_price"}
    arguments = ("unsubscribe", "prices", "billing.on_price", "--json", "--database", shop.url)
    assert parsed(command(*arguments)) == {**wanted, "ended": True}
    assert parsed(command(*arguments)) == {**wanted, "ended": False}
