"""The settings of a delivery, from code and from a table of a TOML file. Each mistake is named with its remedy."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from stagepost import App, Context, DeclarationError, Redelivery
from stagepost.gateway.out import Delivery, deliver, read_delivery
from tests.deliveries.messages import Placed

SECRET = "whsec_" + "QUJDRA" * 8
URL = "https://shop.example/take"


def test_a_table_has_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", SECRET)
    monkeypatch.setenv("SHOP_TOKEN", "Bearer t")
    table = tomllib.loads(
        """
        url = "https://shop.example/take"
        secret_variables = ["SHOP_SECRET"]
        timeout_seconds = 10
        connect_seconds = 2.5
        concurrency = 8
        pause_after = 5
        error_header = "X-Error"
        error_field = "error.code"
        report_to = "orders.refused"
        allow_private = ["shop.internal"]
        [headers]
        X-Shop = "1"
        [header_variables]
        Authorization = "SHOP_TOKEN"
        [statuses]
        409 = "taken"
        [redelivery]
        kind = "fixed"
        every_seconds = 60
        times = 100
        """
    )
    assert read_delivery("route orders, deliver", table) == Delivery(
        url=URL,
        secret=[SECRET],
        headers={"X-Shop": "1", "Authorization": "Bearer t"},
        redelivery=Redelivery.fixed(every_seconds=60, times=100),
        timeout_seconds=10,
        connect_seconds=2.5,
        concurrency=8,
        pause_after=5,
        statuses={"409": "taken"},
        error_header="X-Error",
        error_field="error.code",
        report_to="orders.refused",
        allow_private=["shop.internal"],
    )


def test_intervals_may_grow() -> None:
    table = {"url": URL, "redelivery": {"kind": "exponential", "redeliveries": 3, "first_seconds": 2, "factor": 3}}
    assert read_delivery("d", table).redelivery == Redelivery.exponential(3, first_seconds=2, factor=3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "has no url"),
        ({"url": URL, "retries": 3}, "has 'retries'"),
        ({"url": "ftp://shop.example/"}, "https://host/path"),
        ({"url": "https:///path"}, "https://host/path"),
        ({"url": "https://shop.example:99999/"}, "not valid"),
        ({"url": "https://[::1/"}, "not valid"),
        ({"url": "https://ann:canary@shop.example/"}, "contains a password"),
        ({"url": "https://shop.example/a b"}, "must be escaped"),
        ({"url": "https://zürich.example/"}, "must be escaped"),
        ({"url": URL + "#part"}, "without a fragment"),
        ({"url": "http://shop.example/"}, "not encrypted"),
        ({"url": URL, "secret": "canary"}, "whsec_"),
        ({"url": URL, "secret": "whsec_" + "QUJD"}, "whsec_"),
        ({"url": URL, "secret_variables": ["NO_SUCH_VARIABLE"]}, "which is not set"),
        ({"url": URL, "headers": {"Content-Type": "x"}}, "cannot have the header"),
        ({"url": URL, "headers": {"A\r\nB": "x"}}, "cannot have the header"),
        ({"url": URL, "headers": {"A": "canary\r\nB: c"}}, "printable ASCII"),
        ({"url": URL, "timeout_seconds": 0}, "above 0"),
        ({"url": URL, "timeout_seconds": "5"}, "above 0"),
        ({"url": URL, "concurrency": 0}, "1 to 256"),
        ({"url": URL, "concurrency": "4"}, "wrong type"),
        ({"url": URL, "statuses": {"99": "taken"}}, "from 200 to 599"),
        ({"url": URL, "statuses": {"409": "ok"}}, "taken, refused, misplaced, failed"),
        ({"url": URL, "redelivery": {"kind": "never"}}, "fixed"),
        ({"url": URL, "redelivery": 5}, "fixed"),
        ({"url": URL, "redelivery": {"kind": "fixed", "often": 1}}, "does not know"),
        ({"url": URL, "redelivery": {"kind": "fixed", "every_seconds": -1}}, "first_seconds"),
        ({"url": URL, "allow_private": "shop.internal"}, "list of hosts"),
        ({"url": URL, "ca_file": "/no/such/file"}, "which is no file"),
        ({"url": 7}, "wrong type"),
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy_and_without_secrets(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=words) as caught:
        read_delivery("route orders, deliver", settings)
    assert "canary" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    delivery = Delivery(url=URL, secret=SECRET, headers={"Authorization": "Bearer canary"})
    assert SECRET not in repr(delivery)
    assert "canary" not in repr(delivery)


def test_threads_of_an_endpoint_are_checked(app: App) -> None:
    for threads in (0, 257, True):
        with pytest.raises(DeclarationError, match="threads must be a whole number"):

            @app.endpoint("pay", threads=threads)
            def pay(ctx: Context, placed: Placed) -> None: ...


def test_a_delivery_in_an_app_of_two_databases_is_refused(tmp_path: Path) -> None:
    from stagepost.app.app import engine_of

    app = App("shop", database=f"sqlite:///{tmp_path}/a.db", queue=f"sqlite:///{tmp_path}/b.db")
    deliver(app, "orders.out", Delivery(url=URL))
    with pytest.raises(DeclarationError, match="single"):
        engine_of(app).modes()
