"""The matrix of broker, store and mode: what cannot work is refused before anything runs, with the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stagepost import App, Context, DeclarationError, Redelivery
from stagepost.app.app import engine_of
from stagepost.app.endpoints import stages_of
from stagepost.ports.broker import BrokerFeatures
from stagepost.runtime.edge import check_broker, entrances_of
from stagepost.runtime.modes import check_direct
from tests.edges.direct_service import broker_named

BROKER = "memory:matrix"


@dataclass
class Order:
    order_id: str


def an_app(endpoint: str = "shop.order", **settings: Any) -> App:
    app = App("shop", **({"database": "sqlite:///shop.db", "broker": BROKER} | settings))

    @app.endpoint(endpoint)
    def order(ctx: Context, order: Order) -> None: ...

    return app


def modes(app: App) -> set[str]:
    return set(engine_of(app).modes().values())


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, "single"),
        ({"mode": "single"}, "single"),
        # Behind a broker, outbox in one database is the same as single.
        ({"mode": "outbox"}, "single"),
        ({"queue": "sqlite:///queue.db"}, "outbox"),
        ({"database": "postgresql:///shop", "queue": "postgresql:///queue", "mode": "two_phase"}, "two_phase"),
        ({"local": False}, "single"),
        ({"mode": "best_effort"}, "best_effort"),
        ({"mode": "transport", "database": "postgresql:///shop"}, "transport"),
    ],
)
def test_a_stage_behind_a_broker_runs_as_without_one(settings: dict[str, Any], mode: str) -> None:
    assert modes(an_app(**settings)) == {mode}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"broker": "kafka://host"}, "not a broker URL"),
        ({"broker": "sqlite:///shop.db"}, "not a broker URL"),
        ({"broker": ""}, "broker of app 'shop' must be a URL"),
        ({"broker": 7}, "broker of app 'shop' must be a URL"),
        ({"broker": None, "local": False}, "local=False .* leave local= out"),
        ({"broker": None, "mode": "outbox"}, "single is stronger"),
        ({"mode": "best_effort", "broker": None}, "starts flows over a broker. Name one with broker="),
        ({"mode": "transport", "broker": None}, "or leave mode= out: in one database single is stronger"),
        ({"mode": "best_effort", "queue": "sqlite:///queue.db"}, "leave queue= out, or leave mode= out"),
        ({"mode": "transport", "queue": "sqlite:///queue.db"}, "Leave queue= out, or use outbox"),
        (
            {"mode": "transport", "redelivery": Redelivery.fixed(blocking=True)},
            "Leave blocking= out, or use mode='outbox'",
        ),
        ({"endpoint": "_shop"}, "must begin with a letter"),
        ({"endpoint": "9shop"}, "must begin with a letter"),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        modes(an_app(**settings))


def test_the_name_of_a_later_stage_must_suit_the_broker_too() -> None:
    app = an_app()
    staged = app.staged("shop.pay")

    @staged.stage
    def first(ctx: Context, order: Order) -> None: ...

    def bigger(ctx: Context, order: Order) -> None: ...

    bigger.__name__ = "größer"
    staged.stage(bigger)
    with pytest.raises(DeclarationError, match="größer"):
        modes(app)


def test_a_flow_starts_only_where_its_messages_can_leave(tmp_path: Path) -> None:
    app = an_app("_shop", database=f"sqlite:///{tmp_path / 'shop.db'}")
    with pytest.raises(DeclarationError, match="must begin with a letter"):
        app.start(app.target("_shop"), Order("o1"), flow_id="o1")


def test_an_app_receives_at_its_stages_and_at_the_address_of_its_replies(tmp_path: Path) -> None:
    app = an_app(database=f"sqlite:///{tmp_path / 'shop.db'}")
    staged = app.staged("shop.pay")

    @staged.stage
    def first(ctx: Context, order: Order) -> None: ...

    @staged.stage
    def second(ctx: Context, order: Order) -> None: ...

    found = {each.address: each.takes_replies_alone for each in entrances_of(engine_of(app))}
    replies = f"_replies.{engine_of(app).store_uuid}"
    assert found == {"shop.order": False, "shop.pay": False, "shop.pay.second": True, replies: True}


# Foreign messages


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"accepts": "xml", "id_from": "header:id", "producer": "erp"}, "must be 'json'"),
        ({"accepts": "json", "producer": "erp"}, "id_from"),
        ({"accepts": "json", "id_from": "header:id"}, "producer"),
        ({"accepts": "json", "id_from": "header:id", "producer": "erp", "producer_from": "header:p"}, "producer"),
        ({"accepts": "json", "id_from": "id", "producer": "erp"}, "id_from must be"),
        ({"accepts": "json", "id_from": "header:", "producer": "erp"}, "id_from must be"),
        ({"id_from": "header:id"}, "accepts='json'"),
    ],
)
def test_an_endpoint_that_takes_foreign_messages_names_their_ids(settings: dict[str, Any], words: str) -> None:
    app = App("shop")
    with pytest.raises(DeclarationError, match=words):
        app.endpoint("shop.foreign", **settings)


def test_only_the_first_stage_of_an_endpoint_takes_foreign_messages() -> None:
    app = App("shop")

    @app.endpoint("shop.foreign", accepts="json", id_from="field:number", producer="erp")
    def foreign(ctx: Context, order: Order) -> None: ...

    (stage,) = stages_of(foreign)
    assert stage.foreign is not None
    assert (stage.foreign.id_from, stage.foreign.producer) == ("field:number", "erp")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch": 5}, "Leave batch= out, or use mode='outbox'"),
    ],
)
@pytest.mark.parametrize("mode", ["best_effort", "transport"])
def test_a_direct_mode_refuses_what_it_cannot_keep(mode: Any, settings: dict[str, Any], words: str) -> None:
    app = an_app()

    @app.endpoint("shop.pay", mode=mode, **settings)
    def pay(ctx: Context, order: Order) -> None: ...

    with pytest.raises(DeclarationError, match=words):
        modes(app)


@pytest.mark.parametrize("settings", [{"guard": "reactive"}, {"guard": "none"}, {"key": ["order_id"]}])
def test_transport_refuses_a_guard_and_a_business_key(settings: dict[str, Any]) -> None:
    app = an_app()

    @app.endpoint("shop.pay", mode="transport", **settings)
    def pay(ctx: Context, order: Order) -> None: ...

    with pytest.raises(DeclarationError, match=r"the broker alone commits there\. Leave key= and guard= out"):
        modes(app)


@pytest.mark.parametrize("settings", [{"guard": "reactive"}, {"guard": "none"}, {"key": ["order_id"]}])
def test_best_effort_takes_a_guard_and_a_business_key(settings: dict[str, Any]) -> None:
    app = an_app()

    @app.endpoint("shop.pay", mode="best_effort", **settings)
    def pay(ctx: Context, order: Order) -> None: ...

    assert modes(app) == {"single", "best_effort"}


@pytest.mark.parametrize(
    ("product", "words"),
    [("apache-activemq-artemis", "would lose messages. Use mode='outbox'"), ("RabbitMQ", "Give it at most 1500 s")],
)
def test_a_connected_broker_that_breaks_the_promise_is_refused(product: str, words: str) -> None:
    app = an_app(mode="best_effort", time_limit=1501)
    engine = engine_of(app)
    features = BrokerFeatures(product, "1", is_atomic=False, finds_unroutable=True, body_bytes_max=None)
    with pytest.raises(DeclarationError, match=words):
        check_direct(engine.stages().values(), engine.modes(), features)
    check_direct(engine.stages().values(), engine.modes(), features._replace(product="ActiveMQ", is_atomic=True))


@pytest.mark.parametrize("is_atomic", [False, True])
def test_a_broker_without_transactions_is_said_at_the_start(
    tmp_path: Path, is_atomic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_named(f"memory:said-{is_atomic}", is_atomic=is_atomic)
    app = an_app(database=f"sqlite:///{tmp_path / 'shop.db'}", broker=broker.url, mode="transport")
    check_broker(engine_of(app))
    said = [each.message for each in caplog.records if getattr(each, "event", "") == "at-least-once"]
    assert [text.startswith("memory has no transactions, so shop.order may handle") for text in said] == (
        [] if is_atomic else [True]
    )
    app.close()
