"""What is published reaches everybody who subscribes, of whatever app: once, and with the stage that publishes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import App, Context, Endpoint, IdConflict, IllegalCall, Redelivery, Topic
from stagepost.app.app import engine_of
from stagepost.ports.journal import Waypoint
from stagepost.ports.subscriptions import Subscription
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing import Harness, ManualClock
from stagepost.testing.contract.givens import committed
from tests.toy_store.store import ToyStore

if TYPE_CHECKING:
    from tests.conftest import Ledger

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True


@dataclass
class Price:
    item: str
    cents: int = 0


@dataclass
class Change:
    item: str


@pytest.fixture
def arrived() -> list[str]:
    return []


@pytest.fixture
def prices(app: App) -> Topic[Price]:
    return app.topic("prices", Price)


def subscribe(app: App, topic: Topic[Price], name: str, arrived: list[str]) -> None:
    @app.subscribe(topic, name)
    def on_price(ctx: Context, price: Price) -> None:
        arrived.append(f"{name} {price.item}")


@pytest.fixture
def change(app: App, prices: Topic[Price]) -> Endpoint[Change, None]:
    @app.endpoint("shop.change")
    def change(ctx: Context, change: Change) -> None:
        ctx.publish(prices, Price(change.item))

    return change


def published(worker: Harness, flow_id: str = "flow") -> list[Waypoint]:
    return [each for each in worker.history(flow_id) if each.kind == "publish"]


def subscribed(worker: Harness, *subscribers: str) -> None:
    """As other apps on the same database do."""
    with committed(worker.access.session):
        for each in subscribers:
            worker.access.session.subscriptions.put(Subscription("prices", each, "another app"))


def waiting(worker: Harness, stage: str) -> list[str]:
    return [each.message_id for each in worker.access.claimer.claim([stage], 10, "other/1", "test")]


# From a stage


def test_every_subscriber_gets_one_copy_in_a_message_of_its_own(
    app: App, harness: NewHarness, prices: Topic[Price], change: Endpoint[Change, None], arrived: list[str]
) -> None:
    for name in ("billing.on_price", "search.on_price"):
        subscribe(app, prices, name, arrived)
    app.start(change, Change("tea"), flow_id="flow")
    worker = harness()
    worker.drain()
    assert sorted(arrived) == ["billing.on_price tea", "search.on_price tea"]
    assert len({each.message_id for each in worker.history("flow")}) == 3


def test_subscribers_of_other_apps_on_the_same_database_get_theirs(
    app: App, harness: NewHarness, change: Endpoint[Change, None]
) -> None:
    worker = harness()
    subscribed(worker, "billing.on_price", "search.on_price")
    app.start(change, Change("tea"), flow_id="flow")
    worker.drain()
    assert [len(waiting(worker, each)) for each in ("billing.on_price", "search.on_price")] == [1, 1]


def test_a_copy_is_journalled_as_sent_to_its_subscriber_by_the_stage_that_published(
    app: App, harness: NewHarness, change: Endpoint[Change, None]
) -> None:
    worker = harness()
    subscribed(worker, "billing.on_price", "search.on_price")
    started = app.start(change, Change("tea"), flow_id="flow")
    worker.drain()
    sent = published(worker)
    assert [each.stage for each in sent] == ["billing.on_price", "search.on_price"]
    for each in sent:
        assert (each.waypoint, each.detail, each.cause_id, each.ordinal) == (
            "sent",
            "shop.change",
            started.message_id,
            0,
        )
        assert waiting(worker, each.stage) == [each.message_id]


def test_what_nobody_subscribes_to_is_published_all_the_same(
    app: App, harness: NewHarness, change: Endpoint[Change, None]
) -> None:
    app.start(change, Change("tea"), flow_id="flow")
    worker = harness()
    worker.drain()
    assert [each.waypoint for each in worker.history("flow")] == ["accepted", "received", "committed"]


def test_a_stage_that_fails_has_published_nothing(
    app: App, harness: NewHarness, prices: Topic[Price], ledger: Ledger
) -> None:
    worker = harness()
    subscribed(worker, "billing.on_price", "search.on_price")

    @app.endpoint("shop.change")
    def change(ctx: Context, change: Change) -> None:
        ctx.publish(prices, Price(change.item))
        ledger.write(ctx, f"attempt {ctx.attempt}")
        ctx.publish(prices, Price(change.item, 1))
        if ctx.attempt == 1:
            raise ValueError

    app.start(change, Change("tea"), flow_id="flow")
    worker = harness()
    worker.run_one()
    assert published(worker) == []
    assert waiting(worker, "billing.on_price") == []
    worker.drain()
    assert ledger.entries == ["attempt 2"]
    assert len({each.message_id for each in published(worker)}) == 4
    assert len({(each.stage, each.ordinal) for each in published(worker)}) == 4


def changing(app: App, *topics: Topic[Price]) -> Endpoint[Change, None]:
    @app.endpoint("shop.change")
    def change(ctx: Context, change: Change) -> None:
        for each in topics:
            ctx.publish(each, Price(change.item))

    return change


def test_a_copys_id_depends_on_no_other_subscriber_and_on_no_other_topic(
    new_app: Callable[..., App], harness_of: NewHarness
) -> None:
    found = []
    for others, topics in (([], ["prices"]), (["aaa", "zzz"], ["stocks", "prices"])):
        app = new_app()
        change = changing(app, *(app.topic(name, Price) for name in topics))
        worker = harness_of(app)
        subscribed(worker, "billing.on_price", *others)
        app.start(change, Change("tea"), flow_id="flow")
        worker.drain()
        found += [each.message_id for each in published(worker) if each.stage == "billing.on_price"]
    assert len(found) == 2
    assert found[0] == found[1]


def test_one_who_subscribes_to_two_topics_gets_different_messages_with_different_ordinals(
    app: App, harness: NewHarness, prices: Topic[Price]
) -> None:
    """The audit takes two messages of one cause, kind, target and ordinal for one that was sent twice."""
    change = changing(app, prices, app.topic("stocks", Price))
    worker = harness()
    with committed(worker.access.session):
        for topic in ("prices", "stocks"):
            worker.access.session.subscriptions.put(Subscription(topic, "billing.on_price", "books"))
    app.start(change, Change("tea"), flow_id="flow")
    worker.drain()
    sent = published(worker)
    assert [each.ordinal for each in sent] == [0, 1]
    assert len({each.message_id for each in sent}) == 2


def test_a_subscriber_that_fails_comes_again_by_itself(
    app: App, harness: NewHarness, prices: Topic[Price], change: Endpoint[Change, None], arrived: list[str]
) -> None:
    subscribe(app, prices, "search.on_price", arrived)

    @app.subscribe(prices, "billing.on_price", redelivery=Redelivery.fixed(every_seconds=1, times=2))
    def on_price(ctx: Context, price: Price) -> None:
        arrived.append(f"attempt {ctx.attempt}")
        raise ValueError

    app.start(change, Change("tea"), flow_id="flow")
    worker = harness()
    worker.drain()
    assert sorted(arrived) == ["attempt 1", "attempt 2", "attempt 3", "search.on_price tea"]
    assert [each.stage for each in worker.dead_letters()] == ["billing.on_price"]


def test_what_is_published_with_a_delay_is_due_when_it_has_passed(
    app: App, harness: NewHarness, prices: Topic[Price], arrived: list[str], clock: ManualClock
) -> None:
    subscribe(app, prices, "billing.on_price", arrived)

    @app.endpoint("shop.change")
    def change(ctx: Context, change: Change) -> None:
        ctx.publish(prices, Price(change.item), delay=60)

    app.start(change, Change("tea"), flow_id="flow")
    worker = harness()
    before = clock.now()
    worker.run_one()
    assert worker.run_one() is None
    worker.drain()
    assert arrived == ["billing.on_price tea"]
    assert clock.now() - before == 60_000_000


def test_the_message_and_the_flows_properties_are_those_of_the_moment_of_the_call(
    app: App, harness: NewHarness, prices: Topic[Price]
) -> None:
    seen: list[Any] = []

    @app.subscribe(prices, "billing.on_price")
    def on_price(ctx: Context, price: Price) -> None:
        seen.append((price, ctx.properties["tenant"], ctx.flow_id, ctx.sender))

    @app.endpoint("shop.change")
    def change(ctx: Context, change: Change) -> None:
        price = Price(change.item, 5)
        ctx.properties["tenant"] = "a"
        ctx.publish(prices, price)
        price.cents = 7
        ctx.properties["tenant"] = "b"

    app.start(change, Change("tea"), flow_id="flow")
    harness().drain()
    assert seen == [(Price("tea", 5), "a", "flow", "shop.change")]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ctx, prices: ctx.publish(prices, Change("tea")), "topic:prices takes a Price, not a Change"),
        (lambda ctx, prices: ctx.publish("prices", Price("tea")), "'prices' is no topic to publish to"),
        (lambda ctx, prices: ctx.publish(prices, Price("tea"), delay=-1), "delay must be a number of seconds"),
    ],
)
def test_what_cannot_be_published_is_an_illegal_call(
    app: App, harness: NewHarness, prices: Topic[Price], call: Callable[[Context, Topic[Price]], None], text: str
) -> None:
    @app.endpoint("shop.change")
    def change(ctx: Context, change: Change) -> None:
        call(ctx, prices)

    app.start(change, Change("tea"), flow_id="flow")
    worker = harness()
    worker.drain()
    (letter,) = worker.dead_letters()
    assert text in letter.summary


# From an initiation


def test_an_initiation_publishes_to_those_who_subscribe(
    app: App, harness: NewHarness, prices: Topic[Price], arrived: list[str]
) -> None:
    for name in ("billing.on_price", "search.on_price"):
        subscribe(app, prices, name, arrived)
    with app.initiate() as out:
        started = out.publish(prices, Price("tea"), flow_id="flow", properties={"tenant": "a"})
    assert started.is_new
    worker = harness()
    worker.drain()
    assert sorted(arrived) == ["billing.on_price tea", "search.on_price tea"]
    accepted = published(worker)
    assert [(each.waypoint, each.stage) for each in accepted] == [
        ("accepted", "billing.on_price"),
        ("accepted", "search.on_price"),
    ]


@pytest.mark.in_one_database
def test_a_publication_is_let_in_once_also_for_those_who_subscribed_since(
    app: App, harness: NewHarness, prices: Topic[Price]
) -> None:
    worker = harness()
    subscribed(worker, "billing.on_price")
    outcomes = []
    for _ in range(2):
        with app.initiate() as out:
            started = out.publish(prices, Price("tea"), flow_id="flow")
        outcomes.append(started.is_new)
        subscribed(worker, "search.on_price")
    assert outcomes == [True, False]
    assert [len(waiting(worker, each)) for each in ("billing.on_price", "search.on_price")] == [1, 0]
    with pytest.raises(IdConflict), app.initiate() as out:
        out.publish(prices, Price("coffee"), flow_id="flow")


def test_several_publications_of_one_flow_and_a_send_of_the_same_flow_have_ids_of_their_own(
    app: App, harness: NewHarness, prices: Topic[Price], arrived: list[str]
) -> None:
    subscribe(app, prices, "prices", arrived)
    with app.initiate() as out:
        out.publish(prices, Price("tea"), flow_id="flow")
        out.publish(prices, Price("tea"), flow_id="flow")
        out.send(app.target("prices"), Price("tea"), flow_id="flow")
    worker = harness()
    worker.drain()
    assert arrived == ["prices tea"] * 3
    assert len({each.message_id for each in worker.history("flow")}) == 3


def test_a_stages_own_initiation_publishes_with_the_stage(
    app: App, harness: NewHarness, prices: Topic[Price], arrived: list[str]
) -> None:
    subscribe(app, prices, "billing.on_price", arrived)

    @app.endpoint("shop.change")
    def change(ctx: Context, change: Change) -> None:
        with ctx.initiate() as out:
            out.publish(prices, Price(f"{change.item} {ctx.attempt}"), flow_id=f"price:{ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError

    app.start(change, Change("tea"), flow_id="flow")
    harness().drain()
    assert arrived == ["billing.on_price tea 2"]


def test_what_an_initiation_cannot_publish_it_refuses(app: App, prices: Topic[Price]) -> None:
    wrong: Any = Change("tea")
    with app.initiate() as out:
        with pytest.raises(IllegalCall, match="takes a Price, not a Change"):
            out.publish(prices, wrong, flow_id="flow")
        with pytest.raises(IllegalCall, match="is no topic"):
            out.publish(wrong, Price("tea"), flow_id="flow")
    with pytest.raises(IllegalCall, match="not open"):
        out.publish(prices, Price("tea"), flow_id="flow")


# Who subscribes


def subscriptions(app: App) -> list[Subscription]:
    with closing(engine_of(app).store.session()) as session:
        return sorted(session.subscriptions.listed(["prices"]))


def test_an_app_subscribes_when_it_opens_its_store_and_when_more_was_declared_then(
    app: App, prices: Topic[Price], arrived: list[str]
) -> None:
    subscribe(app, prices, "billing.on_price", arrived)
    billing = Subscription("prices", "billing.on_price", "shop")
    assert subscriptions(app) == [billing]
    subscribe(app, prices, "search.on_price", arrived)
    assert subscriptions(app) == [billing, Subscription("prices", "search.on_price", "shop")]


def test_what_was_published_before_somebody_subscribed_he_misses(
    app: App, harness: NewHarness, prices: Topic[Price], change: Endpoint[Change, None], arrived: list[str]
) -> None:
    app.start(change, Change("tea"), flow_id="f1")
    harness().drain()
    subscribe(app, prices, "billing.on_price", arrived)
    app.start(change, Change("coffee"), flow_id="f2")
    harness().drain()
    assert arrived == ["billing.on_price coffee"]


@pytest.mark.in_one_database
def test_a_subscription_outlives_the_app_that_declared_it(new_app: Callable[..., App], arrived: list[str]) -> None:
    first = new_app()
    if isinstance(engine_of(first).store, ToyStore):
        pytest.skip("a memory store ends with its app")
    prices = first.topic("prices", Price)
    subscribe(first, prices, "billing.on_price", arrived)
    engine_of(first).access().session.close()
    later = App("later", database=first.database)
    with later.initiate() as out:
        out.publish(later.topic("prices", Price), Price("tea"), flow_id="flow")
    with closing(Harness(first)) as worker:
        worker.drain()
    assert arrived == ["billing.on_price tea"]


@pytest.mark.in_one_database
def test_a_process_that_starts_again_waits_for_no_writer_to_say_what_is_known(
    app: App, prices: Topic[Price], arrived: list[str]
) -> None:
    store = engine_of(app).store
    if not isinstance(store, SqliteStore):
        pytest.skip("only there is one writer")
    subscribe(app, prices, "billing.on_price", arrived)
    assert engine_of(app).store
    again = App("shop", database=app.database)
    subscribe(again, again.topic("prices", Price), "billing.on_price", arrived)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert engine_of(again).store.identity == store.identity
