"""``trace`` and ``status`` tell about calls to the outside; ``dead replay`` and ``dead edit`` wait for their undo."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stagepost import App, Context, Redelivery
from stagepost.testing import Harness, ManualClock
from tests.cli.shop import command, parsed
from tests.places import place
from tests.transaction.outside import CaptureRequest, Cards, card_of
from tests.transaction.shops import Order


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def url(request: pytest.FixtureRequest) -> str:
    return place(request)()


@pytest.fixture
def cards() -> Cards:
    return Cards()


@pytest.fixture
def app(url: str, cards: Cards, clock: ManualClock) -> Iterator[App]:
    app = App("shop", database=url, clock=clock, redelivery=Redelivery.fixed(every_seconds=1, times=1))
    card = card_of(app, cards, has_query=False, has_undo=True)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.effect(card, CaptureRequest(order.id, order.amount))
        if order.amount < 0:
            ctx.refuse("no such account")

    yield app
    app.close()


def raise_away() -> None:
    raise ConnectionError("away")


def run(app: App, order: Order, harness_of: Callable[..., Harness]) -> None:
    app.start(app.target("pay"), order, flow_id=f"order:{order.id}")
    harness_of(app).drain()


def test_a_call_without_a_result_is_told_of(
    app: App, url: str, cards: Cards, harness_of: Callable[..., Harness]
) -> None:
    cards.after = raise_away
    app.start(app.target("pay"), Order("1"), flow_id="order:1")
    harness_of(app).run_one()
    found = parsed(command("status", "--json", "--database", url))["effects"]
    assert (found["unknown"], found["repeated"], found["doubted"]) == (1, 0, 0)
    assert "1 effects called and without a result" in command("status", "--database", url).stdout
    assert "effect card  called, without a result  1 call" in command("trace", "order:1", "--database", url).stdout


def test_repeats_and_doubts_are_told_of(app: App, url: str, cards: Cards, harness_of: Callable[..., Harness]) -> None:
    cards.after = raise_away
    run(app, Order("1"), harness_of)
    text = command("status", "--database", url).stdout
    assert "1 calls of effects possibly repeated" in text
    assert "1 effects possibly done, not undone" in text
    found = command("trace", "order:1", "--database", url).stdout
    assert "effect card  possibly done, not undone  2 calls  1 possibly repeated" in found


def test_a_trace_has_the_effects_below_their_messages_and_none_of_their_contents(
    app: App, url: str, harness_of: Callable[..., Harness]
) -> None:
    run(app, Order("hold-7", -1), harness_of)
    found = parsed(command("trace", "order:hold-7", "--json", "--database", url))
    pay, undo = found["messages"]
    assert [(each["name"], each["state"]) for each in pay["effects"]] == [("card", "undone")]
    assert [(each["name"], each["state"]) for each in undo["effects"]] == [("card/undo", "done")]
    assert (undo["stage"], undo["cause_id"], undo["standing"]) == ("shop.undo.card", pay["message_id"], "committed")
    assert [each["node"] for each in pay["effects"][0]["calls"]] != []
    assert '"hold"' not in command("trace", "order:hold-7", "--json", "--database", url).stdout


def test_a_store_without_effects_has_none_to_tell_of(url: str, clock: ManualClock) -> None:
    app = App("shop", database=url, clock=clock)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    app.start(pay, Order("1"), flow_id="order:1")
    assert parsed(command("status", "--json", "--database", url))["effects"]["unknown"] == 0
    assert parsed(command("trace", "order:1", "--json", "--database", url))["messages"][0]["effects"] == []
    app.close()


def test_a_dead_undo_refuses_replay_and_edit_with_its_number(
    app: App, url: str, cards: Cards, harness_of: Callable[..., Harness]
) -> None:
    cards.before_void = raise_away
    run(app, Order("1", -1), harness_of)
    refused = command("dead", "replay", "1", "--database", url)
    assert refused.exit_code != 0
    assert "the order to undo it is the dead letter 2" in refused.stderr
    edited = command("dead", "edit", "1", "--set", "messages.0.body.amount=5", "--database", url)
    assert edited.exit_code != 0
    assert "replay 2 first" in edited.stderr
    cards.before_void = lambda: None
    assert command("dead", "replay", "2", "--database", url).exit_code == 0
    harness_of(app).drain()
    assert command("dead", "replay", "1", "--database", url).exit_code == 0
    assert cards.kept == []
