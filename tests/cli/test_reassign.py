"""``stagepost reassign``"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stagepost.app.app import engine_of
from stagepost.runtime.declarations import declare_stages
from tests.cli.shop import Shop, command, parsed, told_in_one_paragraph

RENAMED = """
from stagepost import App
from tests.cli.shop import pay, ship

app = App("store")
app.endpoint("shop.pay")(pay)
app.endpoint("shop.ship")(ship)
"""


@pytest.fixture
def renamed(shop: Shop, nowhere: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What names an app with the same endpoints and another name, and where it is."""
    Path("renamed_shop.py").write_text(RENAMED)
    monkeypatch.delitem(sys.modules, "renamed_shop", raising=False)
    declare_stages(engine_of(shop.app))
    return ["--app", "renamed_shop:app", "--database", shop.url]


def declared(shop: Shop) -> dict[str, str]:
    return {each.stage: each.app for each in shop.harness.access.session.declarations.listed()}


def test_it_gives_the_endpoints_that_are_named_to_the_app_and_no_others(shop: Shop, renamed: list[str]) -> None:
    result = command("reassign", "shop.pay", *renamed)
    assert (result.exit_code, result.stdout) == (0, "shop.pay: now declared by store, before by shop\n")
    assert declared(shop) == {"shop.pay": "store", "shop.ship": "shop"}
    told = parsed(command("reassign", "shop.pay", "shop.ship", "--json", *renamed))
    assert told == {"database": shop.url, "app": "store", "endpoints": {"shop.pay": [], "shop.ship": ["shop"]}}
    assert declared(shop) == {"shop.pay": "store", "shop.ship": "store"}


def test_an_endpoint_that_the_app_does_not_declare_is_refused(shop: Shop, renamed: list[str]) -> None:
    result = command("reassign", "shop.pay", "shop.mail", *renamed)
    assert "app 'store' has no endpoint 'shop.mail'; it has: shop.pay, shop.ship" in told_in_one_paragraph(result, 2)
    assert set(declared(shop).values()) == {"shop"}
