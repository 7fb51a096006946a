"""Back-pressure: a receiver takes no more from the broker than the store and its stages can work off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stagepost.ports.circuits import CircuitBreaker, Pause
from stagepost.ports.session import Session
from stagepost.runtime.back_pressure import FAILED_MAX, LOOK_SECONDS, PROBE_WINDOW, TOTAL_SECONDS, BackPressure
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.clock import ManualClock
from stagepost.testing.contract.givens import NOW, a_row, committed, enqueued
from stagepost.transaction.arrivals import Entrance

WINDOW = 10
ORDERS = Entrance("shop.order", "shop.order")
SETTLE = Entrance("shop.order.settle", "shop.order.settle", takes_replies_alone=True)
REPLIES = Entrance("_replies.store", None, takes_replies_alone=True)
ALL = {each.address for each in (ORDERS, SETTLE, REPLIES)}


class Pressure:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.clock = ManualClock(NOW)
        self.made = BackPressure(session, [ORDERS, SETTLE, REPLIES], self.clock, window=WINDOW, outbound_max=50)

    def open(self, *, takes_publications: bool = True) -> set[str]:
        """Return the addresses that are received from, at a new look at everything."""
        self.clock.advance(LOOK_SECONDS + TOTAL_SECONDS)
        windows = self.made.windows(takes_publications=takes_publications)
        assert set(windows.values()) <= {WINDOW, PROBE_WINDOW}
        return set(windows)

    def put(self, count: int, stage: str, *, failures: int = 0, due_at: int | None = None) -> None:
        rows = [a_row(f"{stage}-{n}", stage, failures=failures, due_at=due_at) for n in range(count)]
        enqueued(self.session, *rows)

    def work_off(self, count: int, stage: str) -> None:
        with committed(self.session):
            self.session.queue.take(*self.session.queue.claim([stage], count, "w1", NOW))

    def pause(self, stage: str) -> None:
        with committed(self.session):
            self.session.circuits.lock(stage)
            self.session.circuits.keep(CircuitBreaker(stage, pause=Pause(NOW, NOW)))


@pytest.fixture
def pressure(tmp_path: Path) -> Iterator[Pressure]:
    with closing(SqliteStore(tmp_path / "shop.db").session()) as session:
        yield Pressure(session)


def test_an_idle_app_receives_from_all_of_its_addresses(pressure: Pressure) -> None:
    assert pressure.open() == ALL


def test_a_stage_stops_at_two_windows_and_goes_on_when_one_has_room(pressure: Pressure) -> None:
    pressure.put(2 * WINDOW - 1, "shop.order")
    assert pressure.open() == ALL
    pressure.put(1, "shop.order")
    assert pressure.open() == ALL - {"shop.order"}
    pressure.work_off(WINDOW, "shop.order")
    assert pressure.open() == ALL - {"shop.order"}
    pressure.work_off(1, "shop.order")
    assert pressure.open() == ALL


def test_claimed_messages_count_and_messages_sent_with_a_delay_do_not(pressure: Pressure) -> None:
    pressure.put(2 * WINDOW, "shop.order.settle", due_at=NOW + 10)
    assert pressure.open() == ALL
    pressure.put(2 * WINDOW, "shop.order")
    with committed(pressure.session):
        pressure.session.queue.claim(["shop.order"], 2 * WINDOW, "w1", NOW)
    assert pressure.open() == ALL - {"shop.order"}


def test_a_paused_stage_is_not_received_from(pressure: Pressure) -> None:
    pressure.put(1, "shop.order")
    pressure.pause("shop.order")
    assert pressure.open() == ALL - {"shop.order"}


def test_a_paused_stage_without_a_message_receives_one_to_probe_it(pressure: Pressure) -> None:
    pressure.pause("shop.order")
    assert pressure.open() == ALL
    windows = pressure.made.windows(takes_publications=True)
    assert (windows["shop.order"], windows["shop.order.settle"]) == (PROBE_WINDOW, WINDOW)
    assert pressure.made.probing == {"shop.order"}
    pressure.put(1, "shop.order", failures=1, due_at=NOW + 10)
    assert pressure.open() == ALL - {"shop.order"}
    assert pressure.made.probing == set()


def test_messages_that_wait_after_a_failure_have_a_bound_of_their_own(pressure: Pressure) -> None:
    pressure.put(FAILED_MAX - 1, "shop.order", failures=1, due_at=NOW + 10)
    assert pressure.open() == ALL
    pressure.put(1, "shop.order", failures=1, due_at=NOW + 10)
    assert pressure.open() == ALL - {"shop.order"}


def test_due_outbound_rows_stop_all_but_replies_while_the_broker_takes_publications(pressure: Pressure) -> None:
    pressure.put(2 * WINDOW, "@out/ledger.book")
    assert pressure.open() == ALL - {"shop.order"}
    assert pressure.open(takes_publications=False) == ALL


def test_rows_to_a_paused_destination_stop_nothing_below_the_limit(pressure: Pressure) -> None:
    pressure.put(2 * WINDOW, "@out/ledger.book")
    pressure.pause("@out/ledger.book")
    assert pressure.open() == ALL


@pytest.mark.parametrize("takes_publications", [True, False])
def test_all_outbound_rows_together_have_a_bound_also_in_an_alarm(pressure: Pressure, takes_publications: bool) -> None:
    pressure.put(25, "@out/ledger.book")
    pressure.pause("@out/ledger.book")
    pressure.put(25, "@out/ledger.close", due_at=NOW + 10)
    assert pressure.open(takes_publications=takes_publications) == ALL - {"shop.order"}


def test_the_store_is_looked_at_once_in_a_while(pressure: Pressure) -> None:
    assert pressure.open() == ALL
    pressure.pause("shop.order")
    assert set(pressure.made.windows(takes_publications=True)) == ALL
