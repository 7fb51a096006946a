"""The sender decides in its own commit which messages leave the store: outbound rows."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.flow.target import Target
from stagepost.ports.declarations import Declaration
from stagepost.runtime.declarations import declare_stages, undeclared
from stagepost.testing.contract.givens import NOW, committed
from stagepost.testing.harness import running

BROKER = "memory://nowhere"
REPLIES = "shop.reply.0198c0de-0000-7000-8000-000000000001"


@dataclass
class Order:
    order_id: str


@dataclass
class Answer:
    order_id: str


class Shop:
    """An app whose stage sends to its own endpoint, to another app's of this store, and to another service's."""

    def __init__(self, url: str, *, broker: str | None = BROKER, local: bool = True) -> None:
        self.app = App("shop", database=url, broker=broker, local=local)
        self.abroad: Target[Order, Any] = self.app.remote("ledger.reserve", Order)
        self.beside: Target[Order, Any] = self.app.remote("bank.pay", Order)
        self.prices = self.app.topic("prices", Order)

        @self.app.endpoint("shop.done")
        def done(ctx: Context, order: Order) -> None: ...

        @self.app.subscribe(self.prices, "shop.seen")
        def seen(ctx: Context, order: Order) -> None: ...

        @self.app.endpoint("shop.order")
        def order(ctx: Context, order: Order) -> None:
            ctx.send(self.abroad, order)
            ctx.send(self.beside, order)
            ctx.send(done, order)
            ctx.publish(self.prices, order)

        self.order = order
        with closing(engine_of(self.app).store.session()) as session, committed(session):
            session.declarations.put([Declaration("bank.pay", "bank.pay", "bank")])

    def waiting(self) -> list[str]:
        with closing(engine_of(self.app).store.session()) as session:
            return sorted(each.stage for each in session.queue.depths() if each.ready or each.delayed)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


def handle_order(shop: Shop) -> list[str]:
    """Return the stages at which messages wait after the one run of ``shop.order``."""
    shop.app.start(shop.order, Order("o1"), flow_id="f1")
    with running(shop.app) as harness:
        harness.run_one()
    return shop.waiting()


def test_a_stage_sends_over_the_broker_what_no_app_of_its_store_declares(url: str) -> None:
    found = handle_order(Shop(url))
    assert found == ["@out/@prices", "@out/ledger.reserve", "bank.pay", "shop.done", "shop.seen"]


def test_without_a_broker_every_message_waits_for_its_stage(url: str) -> None:
    shop = Shop(url, broker=None)
    assert handle_order(shop) == ["bank.pay", "ledger.reserve", "shop.done", "shop.seen"]
    with closing(engine_of(shop.app).store.session()) as session:
        assert [each.stage for each in undeclared(session, list)] == ["ledger.reserve", "shop.done", "shop.seen"]


def test_a_stage_that_was_dropped_is_no_stage_of_this_store(url: str) -> None:
    shop = Shop(url)
    with closing(engine_of(shop.app).store.session()) as session, committed(session):
        session.declarations.put([Declaration("bank.pay", "bank.pay", "bank", dropped_at=NOW)])
    found = handle_order(shop)
    assert found == ["@out/@prices", "@out/bank.pay", "@out/ledger.reserve", "shop.done", "shop.seen"]


def test_local_false_sends_every_message_over_the_broker(url: str) -> None:
    shop = Shop(url, local=False)
    shop.app.start(shop.order, Order("o1"), flow_id="f1")
    assert shop.waiting() == ["@out/shop.order"]


@pytest.mark.parametrize(("to", "place"), [("ledger.reserve", "@out/ledger.reserve"), ("bank.pay", "bank.pay")])
def test_a_flow_starts_over_the_broker_or_here(url: str, to: str, place: str) -> None:
    shop = Shop(url)
    shop.app.start(shop.app.remote(to, Order), Order("o1"), flow_id="f1", delay=60)
    assert shop.waiting() == [place]


def test_a_reply_goes_to_the_store_that_its_address_names(url: str) -> None:
    shop = Shop(url)
    ours = engine_of(shop.app).store_uuid
    theirs = "11111111-2222-4333-8444-555555555555"
    for number, store in enumerate((ours, theirs)):
        address: object = shop.app.remote("shop.done", Order)
        address.address = f"{REPLIES}@{store}"  # type: ignore[attr-defined]
        shop.app.start(address, Order("o1"), flow_id=f"f{number}")  # type: ignore[arg-type]
    assert shop.waiting() == [f"@out/_replies.{theirs}", f"{REPLIES}@{ours}"]


def test_a_stage_claims_no_outbound_row_and_no_report_misses_its_stage(url: str) -> None:
    shop = Shop(url)
    declare_stages(engine_of(shop.app))
    handle_order(shop)
    with running(shop.app) as harness:
        assert len(harness.drain()) == 2
        assert undeclared(harness.access.session, list) == []
    assert shop.waiting() == ["@out/@prices", "@out/ledger.reserve", "bank.pay"]


def test_a_row_that_waits_for_its_stage_stays_here_whatever_is_declared_later(url: str) -> None:
    shop = Shop(url)
    shop.app.start(shop.order, Order("o1"), flow_id="f1")
    other = App("shop", database=url, broker=BROKER)
    declare_stages(engine_of(other))
    assert shop.waiting() == ["shop.order"]
    with running(shop.app) as harness:
        harness.run_one()
    assert "@out/shop.order" not in shop.waiting()
