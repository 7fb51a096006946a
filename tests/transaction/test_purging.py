"""A purge removes the ids whose retention is over, and no others, by hours in which a housekeeper ran."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost import App, Context, Redelivery
from stagepost.app.app import engine_of
from stagepost.flow.clock import HOUR
from stagepost.flow.effects import EffectId
from stagepost.ports.dead_letters import Selection
from stagepost.ports.inbox import InboxRow
from stagepost.ports.retention import FIRST_HANDLED
from stagepost.runtime.access import Access
from stagepost.runtime.purge_service import count_hour, purge_all
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing import Harness, ManualClock
from stagepost.testing.contract.givens import NOW, a_letter, a_waypoint, buried, recorded
from stagepost.transaction.queue_commit import committing
from stagepost.transaction.retention import Rules

DAY = 24
RULES = Rules({"@initiations": 7 * DAY, "@gateway": DAY})


@dataclass
class Order:
    number: int
    fault: str = ""


class LeapingClock(ManualClock):
    def leap_to(self, moment: int) -> None:
        self._now = moment


class Shop:
    """An app whose housekeeper runs when a test says so."""

    def __init__(self, app: App, clock: LeapingClock) -> None:
        self.app = app
        self.clock = clock
        self.handled: list[int] = []

        @app.endpoint("pay", redelivery=Redelivery.none())
        def pay(ctx: Context, order: Order) -> None:
            if order.fault:
                raise ValueError(order.fault)
            self.handled.append(order.number)

        self.pay = pay
        self.harness = Harness(app)
        self.access = self.harness.access

    def order(self, number: int, fault: str = "", *, delay: float = 0) -> bool:
        started = self.app.start(self.pay, Order(number, fault), flow_id=f"order:{number}", delay=delay)
        return started.is_new

    def keep_house(self, hours: int) -> None:
        """Count so many hours, one after the other."""
        for _ in range(hours):
            self.clock.advance(3600)
            count_hour(self.access, self.clock)

    def inbox(self) -> int:
        stage, everything = "pay", 10**6
        return len(self.access.work.retention.old_handled(stage, everything, FIRST_HANDLED, 99))

    def purge(self, rules: Rules | None = RULES, *, dry_run: bool = False) -> Counter[str]:
        removed: Counter[str] = Counter()
        for each in purge_all(self.access, rules=rules, dry_run=dry_run):
            removed[each.what] += each.rows
        return +Counter({what: rows for what, rows in removed.items() if what.startswith("ids")})


@pytest.fixture(params=["one", "two"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    clock = LeapingClock(NOW)
    queue = f"sqlite:///{tmp_path / 'queue.db'}" if request.param == "two" else None
    return Shop(App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}", queue=queue, clock=clock), clock)


def test_an_id_goes_after_its_retention_and_not_before(shop: Shop) -> None:
    shop.keep_house(1)
    assert shop.order(1)
    shop.harness.drain()
    shop.keep_house(7 * DAY)
    assert not shop.purge()
    assert not shop.order(1)
    shop.keep_house(1)
    assert set(shop.purge()) == {"ids of pay"}
    assert shop.order(1)


def test_an_outage_makes_no_id_old(shop: Shop) -> None:
    shop.order(1)
    shop.harness.drain()
    shop.clock.advance(8 * DAY * 3600)
    shop.keep_house(2)
    assert not shop.purge()
    assert not shop.order(1)


@pytest.mark.parametrize("leap", [9 * DAY, -9 * DAY, 40_000])
def test_a_leap_of_the_clock_makes_no_id_old(shop: Shop, leap: int) -> None:
    shop.keep_house(3)
    now = shop.clock.now()
    shop.order(1)
    shop.harness.drain()
    shop.clock.leap_to(now + leap * HOUR)
    shop.keep_house(2)
    shop.order(2)
    shop.harness.drain()
    shop.clock.leap_to(now)
    shop.keep_house(2)
    assert not shop.purge()
    assert not shop.order(1)
    assert not shop.order(2)


def test_an_id_is_pinned_while_its_flow_is_open(shop: Shop) -> None:
    shop.order(1, delay=60 * DAY * 3600)
    shop.order(2)
    shop.harness.run_one()
    shop.keep_house(8 * DAY)
    assert set(shop.purge()) == {"ids of pay"}
    assert not shop.order(1)
    assert shop.order(2)


def test_an_id_is_pinned_while_its_dead_letter_lives(shop: Shop) -> None:
    shop.order(1, "lost")
    shop.harness.drain()
    shop.keep_house(8 * DAY)
    assert not shop.purge()
    assert not shop.order(1, "lost")
    dead_letters = shop.access.session.dead_letters
    (letter,) = dead_letters.select(Selection("all"))
    with committing(shop.access.session):
        dead_letters.remove(letter.id)
    assert set(shop.purge()) == {"ids of pay"}


def test_more_ids_than_a_batch_go_in_several_and_pinned_ones_are_passed_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.transaction.purge_batches.BATCH", 3)
    for number in range(10):
        shop.order(number, "lost" if number % 2 else "")
    shop.harness.drain()
    shop.keep_house(8 * DAY)
    databases = 2 if engine_of(shop.app).databases.has_two else 1
    assert shop.purge(dry_run=True) == {"ids of pay": 5 * databases}
    assert shop.purge() == {"ids of pay": 5 * databases}
    assert [shop.order(number, "lost" if number % 2 else "") for number in range(4)] == [True, False, True, False]


def test_a_message_that_has_not_reached_the_queue_keeps_its_id(tmp_path: Path) -> None:
    clock = LeapingClock(NOW)
    urls = {name: f"sqlite:///{tmp_path / name}.db" for name in ("shop", "queue")}
    shop = Shop(App("shop", database=urls["shop"], queue=urls["queue"], clock=clock), clock)
    shop.order(1)
    shop.keep_house(8 * DAY)
    assert not shop.purge()
    assert not shop.order(1)
    shop.harness.drain()
    assert set(shop.purge()) == {"ids of pay"}


def test_ids_of_a_broker_stay_for_a_week_at_least_and_those_of_the_gateway_as_declared() -> None:
    rules = Rules()
    assert rules.of_scope("pay") == 400 * DAY
    assert rules.of_scope("gateway:orders shop") == 7 * DAY
    assert rules.of_scope("broker:pay") == 7 * DAY
    assert Rules({"pay": 30 * DAY}).of_scope("broker:pay") == 30 * DAY
    assert Rules({"pay": DAY, "@broker": DAY}).of_scope("broker:pay") == 7 * DAY


def test_a_row_of_the_inbox_goes_a_week_later_unless_its_flow_is_open(tmp_path: Path) -> None:
    clock = LeapingClock(NOW)
    urls = {name: f"sqlite:///{tmp_path / name}.db" for name in ("shop", "queue")}
    shop = Shop(App("shop", database=urls["shop"], queue=urls["queue"], clock=clock), clock)
    shop.order(1)
    shop.order(2)
    shop.harness.drain()
    assert shop.inbox() == 2
    buried(shop.access.session, a_letter("another", flow_id="order:2"))
    shop.keep_house(7 * DAY)
    shop.purge()
    assert shop.inbox() == 2
    shop.keep_house(1)
    shop.purge()
    assert shop.inbox() == 1


def test_a_row_of_the_inbox_that_is_not_marked_never_goes(tmp_path: Path) -> None:
    clock = LeapingClock(NOW)
    urls = {name: f"sqlite:///{tmp_path / name}.db" for name in ("shop", "queue")}
    shop = Shop(App("shop", database=urls["shop"], queue=urls["queue"], clock=clock), clock)
    with committing(shop.access.work):
        shop.access.work.inbox.admit(InboxRow("pay", "unmarked", "digest", NOW, NOW))
        shop.access.work.inbox.keep("pay", "unmarked", b"produced")
    shop.keep_house(30 * DAY)
    shop.purge()
    assert shop.access.work.inbox.find("pay", "unmarked") is not None


def test_an_effect_goes_after_the_lines_of_its_flow(tmp_path: Path) -> None:
    clock = LeapingClock(NOW)
    store = SqliteStore(tmp_path / "store.db")
    with closing(Access(store.session(), clock)) as access, closing(store.apart.session()) as apart:
        with committing(apart):
            for flow in ("gone", "journalled", "open"):
                apart.effects.add(EffectId(f"m-{flow}", "pay", 0, "", "card", 0), flow, 0, "d", b"{}")
        recorded(access.session, a_waypoint("m-journalled", "journalled"))
        buried(access.session, a_letter("m-open", flow_id="open"))
        removed = {each.what: each.rows for each in purge_all(access, store, dry_run=True)}
        assert removed == {"effects": 1}
        assert [each.rows for each in purge_all(access, store)] == [1]
        assert [flow for _, flow in apart.effects.flows(0, 9)] == ["journalled", "open"]


def test_a_token_of_a_message_that_called_nothing_goes_after_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.transaction.purge_batches.BATCH", 2)
    store = SqliteStore(tmp_path / "store.db")
    with closing(Access(store.session(), LeapingClock(NOW))) as access, closing(store.apart.session()) as apart:
        names = ["waits", "waits too", "gone", "journalled"]
        for name in names:
            with committing(apart):
                apart.effects.raise_token(f"m-{name}", "pay", 1)
        recorded(access.session, *(a_waypoint(f"m-{name}", name) for name in names if name != "gone"))
        # Tokens of letters that wait keep no younger one.
        buried(access.session, *(a_letter(f"m-{name}", flow_id=name) for name in names[:2]))
        found = [each for each in purge_all(access, store, rules=Rules()) if each.what == "tokens of messages"]
        assert sum(each.rows for each in found) == 1
        assert [each.message_id for each in apart.effects.tokens(0, 9)] == ["m-waits", "m-waits too", "m-journalled"]


def test_effects_of_dead_letters_do_not_keep_the_younger_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.transaction.purge_batches.BATCH", 3)
    store = SqliteStore(tmp_path / "store.db")
    flows = ("dead-1", "dead-2", "dead-3", "gone", "lives-1", "lives-2", "lives-3", "lives-4")
    with closing(Access(store.session(), LeapingClock(NOW))) as access, closing(store.apart.session()) as apart:
        with committing(apart):
            for flow in flows:
                apart.effects.add(EffectId(f"m-{flow}", "pay", 0, "", "card", 0), flow, 0, "d", b"{}")
        for flow in flows:
            if flow != "gone":
                recorded(access.session, a_waypoint(f"m-{flow}", flow))
            if flow.startswith("dead"):
                buried(access.session, a_letter(f"m-{flow}", flow_id=flow))
        found = [each for each in purge_all(access, store, rules=Rules()) if each.what == "effects"]
        assert [(each.rows, each.pinned) for each in found] == [(0, 3), (1, 2), (0, 2)]
        assert "gone" not in {flow for _, flow in apart.effects.flows(0, 99)}
