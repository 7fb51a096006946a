"""``retention=`` of an app and of a stage: the stage wins, and a retention that cannot work is refused."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stagepost import App, Context, Redelivery
from stagepost.app.app import engine_of
from stagepost.flow.errors import DeclarationError
from stagepost.runtime.declarations import declare_stages
from stagepost.transaction.retention import read_rules


@dataclass
class Order:
    number: int


@dataclass
class Paid:
    number: int


def rules_of(*apps: App) -> dict[str, int | None]:
    for app in apps:
        declare_stages(engine_of(app))
    with closing(engine_of(apps[0]).store.session()) as session:
        rules = read_rules(session)
        scopes = ["orders.place", "orders.place.pay", "billing.pay", "topic:placed", "unknown", "broker:orders.place"]
        return {scope: rules.of_scope(scope) for scope in scopes} | {"gateway": rules.of_kind("gateway")}


def shop(path: Path, **settings: Any) -> App:
    return App("shop", database=f"sqlite:///{path / 'shop.db'}", **settings)


def test_a_stage_wins_over_its_type_and_a_type_over_the_app(tmp_path: Path) -> None:
    app = shop(tmp_path, retention={Order: "30d", Paid: timedelta(days=2), "initiations": "12w", "gateway": "48h"})
    place = app.staged("orders.place", reply=Paid)

    @place.stage(retention="1d")
    def begin(ctx: Context, order: Order) -> None:
        ctx.next(Paid(1))

    @place.stage
    def pay(ctx: Context, paid: Paid) -> Paid:
        return paid

    app.remote("billing.pay", Order)
    app.topic("placed", Order)
    assert rules_of(app) == {
        "orders.place": 24,
        "orders.place.pay": 48,
        "billing.pay": 30 * 24,
        "topic:placed": 30 * 24,
        "unknown": 12 * 7 * 24,
        "broker:orders.place": 7 * 24,
        "gateway": 48,
    }


def test_a_stage_of_several_types_keeps_its_ids_for_the_longest_one(tmp_path: Path) -> None:
    app = shop(tmp_path, retention={Order: "3d", Paid: "5d"})

    @app.endpoint("orders.place")
    def place(ctx: Context, order: Order) -> None: ...

    @place.handler
    def paid(ctx: Context, paid: Paid) -> None: ...

    assert rules_of(app)["orders.place"] == 5 * 24


def test_the_longest_retention_of_several_apps_counts_and_a_later_start_replaces_its_own(tmp_path: Path) -> None:
    def one(retention: str | None) -> App:
        app = shop(tmp_path, retention={} if retention is None else {Order: retention})
        app.remote("billing.pay", Order)
        return app

    other = App("other", database=one(None).database, retention={Order: "4d"})
    other.remote("billing.pay", Order)
    assert rules_of(one("9d"), other)["billing.pay"] == 9 * 24
    assert rules_of(one("2d"))["billing.pay"] == 4 * 24
    assert rules_of(one(None))["billing.pay"] == 4 * 24


@pytest.mark.parametrize("wrong", ["30", "30 d", "0d", "1.5h", "90m", 30, timedelta(minutes=90), "", None, "9999999d"])
def test_a_retention_that_is_no_span_is_refused(wrong: Any) -> None:
    with pytest.raises(DeclarationError, match="retention of Order must be a span of whole hours") as refused:
        App("shop", retention={Order: wrong})
    assert "'30d'" in str(refused.value)


def test_a_retention_of_a_broker_s_ids_may_only_be_longer() -> None:
    with pytest.raises(DeclarationError, match="Give it '7d' or more"):
        App("shop", retention={"broker": "6d"})
    App("shop", retention={"broker": "7d"})


def test_a_key_that_is_neither_a_type_nor_a_kind_is_refused() -> None:
    with pytest.raises(DeclarationError, match="its keys are message types, and the names initiations, gateway"):
        App("shop", retention={"orders": "30d"})
    with pytest.raises(DeclarationError, match="takes a dict"):
        App("shop", retention="30d")  # type: ignore[arg-type] # the mistake that is tested


def test_a_retention_shorter_than_the_redelivery_horizon_is_refused_when_it_is_declared() -> None:
    app = App("shop")
    with pytest.raises(DeclarationError, match=r"orders.place: its retention of 2 hours is shorter .* of 2\.\d hours"):

        @app.endpoint("orders.place", redelivery=Redelivery.fixed(every_seconds=600, times=6), retention="2h")
        def place(ctx: Context, order: Order) -> None: ...


def test_a_retention_of_a_type_that_is_too_short_for_a_stage_is_refused_at_the_start(tmp_path: Path) -> None:
    app = shop(tmp_path, retention={Order: "2h"})

    @app.endpoint("orders.place", redelivery=Redelivery.fixed(every_seconds=600, times=6))
    def place(ctx: Context, order: Order) -> None: ...

    with pytest.raises(DeclarationError, match=r"orders\.place: its retention of 2 hours is shorter"):
        declare_stages(engine_of(app))


@pytest.mark.parametrize(
    ("redelivery", "seconds"),
    [
        (Redelivery.none(), 10),
        (Redelivery(redeliveries=2, first_seconds=1, factor=2, jitter=0), 33),
        (Redelivery(redeliveries=4, first_seconds=1, factor=2, cap_seconds=3, jitter=0), 59),
        (Redelivery(redeliveries=3, first_seconds=0, jitter=0), 40),
        (Redelivery(redeliveries=10**9, first_seconds=1, factor=1, cap_seconds=1, jitter=0), 11 * 10**9 + 10),
        (Redelivery(redeliveries=1, first_seconds=4, jitter=0.5), 26),
    ],
)
def test_the_horizon_is_the_longest_time_that_all_attempts_can_take(redelivery: Redelivery, seconds: float) -> None:
    assert redelivery.horizon_seconds(10) == seconds
