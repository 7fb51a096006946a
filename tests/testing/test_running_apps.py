"""An app that a test runs: on databases of its own, as often as wanted, with its dead letters seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost import App, Context, DeclarationError, testing
from stagepost.app.app import engine_of
from stagepost.testing import ManualClock


@dataclass
class Order:
    number: int


def new_shop(database: str | None = None, queue: str | None = None) -> App:
    app = App("shop", database=database, queue=queue)

    @app.endpoint("orders.place")
    def place(ctx: Context, order: Order) -> None:
        if order.number < 0:
            ctx.refuse(f"order {order.number}")
        ctx.sql("INSERT INTO sale (number) VALUES (:number)", number=order.number)

    return app


def order(shop: testing.RunningApp, number: int) -> None:
    shop.app.start(shop.app.target("orders.place"), Order(number), flow_id=f"order:{number}")


def test_one_app_runs_on_a_new_store_in_each_block_and_is_as_before_afterwards() -> None:
    app = new_shop(database="postgresql://production.invalid/shop")
    before = engine_of(app)
    for _ in range(2):
        with testing.run(app, "memory:") as shop:
            shop.sql("CREATE TABLE sale (number INTEGER)")
            order(shop, 1)
            shop.drain()
            assert [tuple(row) for row in shop.sql("SELECT number FROM sale")] == [(1,)]
    assert engine_of(app) is before
    assert app.database == "postgresql://production.invalid/shop"


def test_settings_of_the_machine_do_not_count_in_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("STAGEPOST_DATABASE", "STAGEPOST_QUEUE"):
        monkeypatch.setenv(variable, "postgresql://production.invalid/shop")
    monkeypatch.setenv("STAGEPOST_BROKER", "amqp://production.invalid")
    with testing.run(new_shop(), "memory:") as shop:
        assert shop.app.queue is None
        assert engine_of(shop.app).databases.broker is None
        shop.sql("CREATE TABLE sale (number INTEGER)")
        order(shop, 1)
        assert len(shop.drain()) == 1


def test_an_app_that_declares_a_queue_runs_in_the_mode_of_production() -> None:
    app = new_shop(database="postgresql://production.invalid/shop", queue="postgresql://production.invalid/queue")
    with testing.run(app, "memory:") as shop:
        assert set(engine_of(app).modes().values()) == {"outbox"}
        shop.sql("CREATE TABLE sale (number INTEGER)")
        order(shop, 1)
        shop.drain()
        assert shop.sql("SELECT count(*) FROM sale").scalar() == 1


@pytest.mark.parametrize("broker", ["amqp://production.invalid", None], ids=["declared", "of the settings"])
def test_stages_that_consume_from_a_broker_run_on_what_the_store_holds(broker: str | None) -> None:
    app = App("shop", broker=broker, local=False, mode="best_effort")

    @app.endpoint("orders.book", guard="proactive")
    def book(ctx: Context, order: Order) -> None:
        ctx.sql("INSERT INTO sale (number) VALUES (:number)", number=order.number)

    @app.endpoint("orders.route", mode="transport")
    def route(ctx: Context, order: Order) -> None:
        ctx.send(book, order)

    @app.endpoint("orders.place", mode="outbox")
    def place(ctx: Context, order: Order) -> None:
        ctx.send(route, order)

    with testing.run(app, "memory:") as shop:
        shop.sql("CREATE TABLE sale (number INTEGER)")
        order(shop, 1)
        assert len(shop.drain()) == 3
        for known, new in ((2, 3), (3, 4)):
            with app.initiate() as out:
                numbers = [str(known), str(new)]
                messages = [Order(known), Order(new)]
                out.together(book, messages, flow_id=f"file:{known}", message_ids=numbers)
        shop.drain()
        assert sorted(row["number"] for row in shop.sql("SELECT number FROM sale")) == [1, 2, 3, 4]


def test_an_app_keeps_its_own_database_if_none_is_given(tmp_path: Path) -> None:
    app = new_shop(database=f"sqlite:///{tmp_path}/shop.db")
    with testing.run(app) as shop:
        shop.sql("CREATE TABLE sale (number INTEGER)")
        order(shop, 1)
        shop.drain()
    with testing.run(app) as shop:
        assert shop.sql("SELECT count(*) FROM sale").scalar() == 1


def test_a_dead_letter_that_was_not_expected_fails_the_drain_with_the_handlers_traceback() -> None:
    with testing.run(new_shop, "memory:") as shop:
        order(shop, -1)
        with pytest.raises(AssertionError) as caught:
            shop.drain()
    text = str(caught.value)
    assert "unexpected dead letter of orders.place in flow 'order:-1', refused: stagepost.Refuse: order -1" in text
    assert "ctx.refuse" in text
    assert "call expect_dead_letters('orders.place') before drain" in text


def test_expected_dead_letters_are_counted_by_stage_and_reason() -> None:
    with testing.run(new_shop, "memory:") as shop:
        shop.expect_dead_letters("orders.place")
        shop.expect_dead_letters("orders.place", reason="refused")
        order(shop, -1)
        order(shop, -2)
        shop.drain()
        order(shop, -3)
        with pytest.raises(AssertionError, match="order -3"):
            shop.drain()


def test_another_reason_than_the_expected_one_is_not_expected() -> None:
    with testing.run(new_shop, "memory:") as shop:
        shop.expect_dead_letters("orders.place", reason="exhausted")
        order(shop, -1)
        with pytest.raises(AssertionError, match=r"refused: stagepost\.Refuse: order -1"):
            shop.drain()
        shop.expect_dead_letters("orders.place", -1, reason="exhausted")


def test_an_expected_dead_letter_that_did_not_come_fails_the_end_of_the_block() -> None:
    running = testing.run(new_shop, "memory:")
    shop = running.__enter__()
    shop.expect_dead_letters("orders.place", 2)
    shop.drain()
    with pytest.raises(AssertionError, match=r"expected dead letters are missing: 2 of orders\.place"):
        running.__exit__(None, None, None)


def test_an_error_in_the_block_is_not_replaced_by_missing_dead_letters() -> None:
    def fail() -> None:
        with testing.run(new_shop, "memory:") as shop:
            shop.expect_dead_letters("orders.place")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_two_apps_of_one_name_and_their_same_endpoints_do_not_meet_in_one_process() -> None:
    with testing.run(new_shop, "memory:") as one, testing.run(new_shop, "memory:") as other:
        for each, number in ((one, 1), (other, 2)):
            each.sql("CREATE TABLE sale (number INTEGER)")
            order(each, number)
            each.drain()
        assert [each.sql("SELECT number FROM sale").scalar() for each in (one, other)] == [1, 2]


def test_apps_beside_each_other_share_messages_and_time_and_subscribe_in_each_block() -> None:
    shop, billing = App("shop"), App("billing")
    prices = shop.topic("prices", Order)
    seen: list[tuple[int, float]] = []

    @shop.endpoint("shop.change")
    def change(ctx: Context, price: Order) -> None:
        ctx.publish(prices, price, delay=60)

    @billing.subscribe(billing.topic("prices", Order), "billing.on_price")
    def on_price(ctx: Context, price: Order) -> None:
        seen.append((price.number, clock.monotonic()))

    for seed in range(4):
        clock = ManualClock()
        with (
            testing.run(shop, "memory:", seed=seed, clock=clock) as selling,
            testing.run(billing, beside=selling, seed=seed) as charging,
        ):
            shop.start(change, Order(seed), flow_id="price")
            selling.drain(charging)
    assert seen == [(seed, 60) for seed in range(4)]


def test_dead_letters_of_the_other_apps_fail_the_drain_too() -> None:
    shop, mail = App("shop"), App("mail")

    @shop.endpoint("shop.begin")
    def begin(ctx: Context, order: Order) -> None:
        ctx.send(shop.remote("mail.send", Order), order)

    @mail.endpoint("mail.send")
    def send(ctx: Context, order: Order) -> None:
        ctx.refuse("no address")

    with testing.run(shop, "memory:") as selling, testing.run(mail, beside=selling) as mailing:
        shop.start(begin, Order(1), flow_id="flow")
        with pytest.raises(AssertionError, match=r"dead letter of mail\.send .*no address"):
            selling.drain(mailing)


@pytest.mark.parametrize("name", ["loaded_factory:make_app()", "loaded_factory:app"])
def test_an_app_is_named_or_made_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loaded_factory.py").write_text(
        "from stagepost import App\ndef make_app():\n    return App('made')\napp = make_app()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with testing.run(name, "memory:") as made:
        assert made.app.name == "made"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "loaded_odd:make_app",
            r"is a function, not a stagepost.App: write loaded_odd:make_app\(\) if it makes an app",
        ),
        ("loaded_odd:broken()", r"calling loaded_odd:broken\(\) failed:\n.*in broken.*ZeroDivisionError"),
        ("loaded_odd:number()", "is a int, not a stagepost.App"),
    ],
)
def test_a_wrong_factory_is_refused_with_the_reason(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loaded_odd.py").write_text(
        "from stagepost import App\nnumber = 17\ndef make_app():\n    return App('made')\ndef broken():\n    1 / 0\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DeclarationError, match=f"(?s){said}"), testing.run(name, "memory:"):
        pass


def test_the_databases_of_a_block_end_with_it_and_a_row_factory_is_not_needed(
    new_postgres: Callable[[], str],
) -> None:
    with testing.run(new_shop, new_postgres()) as shop:
        shop.sql("CREATE TABLE sale (number integer)")
        order(shop, 5)
        shop.drain()
        assert shop.sql("SELECT number FROM sale WHERE number = :number", number=5).one()["number"] == 5
