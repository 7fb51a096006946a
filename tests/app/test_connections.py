"""Who holds a connection, who waits for one, and that they are told."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from stagepost import App, Context, DeclarationError, NothingSent, StoreContention, Target
from stagepost.app.app import engine_of
from stagepost.runtime.connections import ConnectionUsage
from stagepost.runtime.pool import Pool
from stagepost.store.sqlite.writer_lock import writer_locks
from stagepost.testing import ManualClock
from tests.app.open_files import open_files
from tests.app.test_starting_flows import Order
from tests.conftest import NewApp
from tests.waiting import PATIENCE_SECONDS, wait_until

IN_EVERY_MODE = True


class Thing:
    """A connection to nothing."""

    def __init__(self) -> None:
        self.is_rolled_back = False

    def rollback(self) -> None:
        self.is_rolled_back = True

    def close(self) -> None: ...


class Callers:
    """Threads that take one of a pool's connections and keep it until they are told to let go."""

    def __init__(self, pool: Pool[Thing]) -> None:
        self._pool = pool
        self._threads: list[threading.Thread] = []
        self._may_go: dict[str, threading.Event] = {}
        self.served: list[str] = []
        self.refused: list[str] = []

    def call(self, name: str) -> None:
        self._may_go[name] = threading.Event()
        thread = threading.Thread(target=self._take, name=name)
        self._threads.append(thread)
        thread.start()
        wait_until(lambda: self._is_known(name), f"{name} has one, or waits")

    def has_served_more_than(self, count: int) -> bool:
        return len(self.served) > count

    def let_go(self, name: str) -> None:
        self._may_go[name].set()

    def end(self) -> None:
        for name in self._may_go:
            self.let_go(name)
        for thread in self._threads:
            thread.join()

    def _is_known(self, name: str) -> bool:
        return name in (*self.served, *self.refused, *(each.holder.who for each in tuple(self._pool._waiting)))

    def _take(self) -> None:
        name = threading.current_thread().name
        try:
            with self._pool.taken():
                self.served.append(name)
                self._may_go[name].wait()
        except StoreContention as error:
            self.refused.append(f"{name}: {error}")


@contextmanager
def calling(pool: Pool[Thing]) -> Iterator[Callers]:
    callers = Callers(pool)
    yield callers
    callers.end()


def test_the_figures_say_how_many_there_are_and_who_has_one_since_when(clock: ManualClock) -> None:
    pool = Pool(Thing, clock, most=2)
    begin = clock.now()
    with calling(pool) as callers:
        for name in ("a", "b", "c", "d"):
            callers.call(name)
            clock.advance(1)
        figures = pool.figures()
        assert (figures.size, figures.most, figures.in_use, figures.waiting) == (2, 2, 2, 2)
        assert figures.longest_wait_ms == pytest.approx(2000)
        assert figures.holders == [
            ConnectionUsage(who="a", since=begin),
            ConnectionUsage(who="b", since=begin + 1_000_000),
        ]
    figures = pool.figures()
    assert (figures.size, figures.in_use, figures.waiting, figures.longest_wait_ms) == (2, 0, 0, 0)


def test_callers_are_served_in_order(clock: ManualClock) -> None:
    pool = Pool(Thing, clock, most=1)
    with calling(pool) as callers:
        for name in ("a", "b", "c", "d"):
            callers.call(name)
        for served, name in enumerate(("a", "b", "c"), 1):
            callers.let_go(name)
            wait_until(partial(callers.has_served_more_than, served), f"another one is served after {name}")
        assert callers.served == ["a", "b", "c", "d"]
    assert len(pool._idle) == 1


def test_who_waits_in_vain_is_told_who_holds_and_the_others_go_on(clock: ManualClock) -> None:
    pool = Pool(Thing, clock, most=1, patience_seconds=0.01)
    with calling(pool) as callers:
        callers.call("holder")
        clock.advance(7)
        callers.call("late")
        wait_until(lambda: callers.refused, "it has waited in vain")
        (refusal,) = callers.refused
        assert "all 1 connections" in refusal
        assert "7.0 s, is by holder" in refusal
        assert pool.figures().waiting == 0
        callers.let_go("holder")
        wait_until(lambda: pool.figures().in_use == 0, "it is free again")
        callers.call("next")
        assert callers.served == ["holder", "next"]


def test_the_first_who_waits_for_long_says_so_and_names_the_one_that_holds_longest(
    clock: ManualClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.runtime.pool.SCARCE_SECONDS", 0.05)
    pool = Pool(Thing, clock, most=2, patience_seconds=PATIENCE_SECONDS)
    with caplog.at_level(logging.WARNING), calling(pool) as callers:
        for name in ("culprit", "another"):
            callers.call(name)
            clock.advance(2)
        callers.call("first")
        callers.call("second")
        # While nobody lets go. Afterwards "second" may be the first to wait for long.
        (record,) = tuple(wait_until(lambda: caplog.records, "somebody is told"))
    assert record.__dict__["event"] == "connections-scarce"
    assert "all 2 are in use, the longest for 4.0 s by culprit" in record.getMessage()


def test_one_that_cannot_be_opened_takes_nobodys_place(clock: ManualClock) -> None:
    def make() -> Thing:
        raise StoreContention("no")

    pool = Pool(make, clock, most=1)
    for _ in range(3):
        with pytest.raises(StoreContention), pool.taken():
            pass
    assert pool.figures().size == 0


def test_an_error_in_the_block_rolls_back_and_gives_it_back(clock: ManualClock) -> None:
    pool = Pool(Thing, clock, most=1)
    with pytest.raises(ZeroDivisionError), pool.taken() as thing:
        raise ZeroDivisionError
    assert thing.is_rolled_back
    assert (pool.figures().size, pool.figures().in_use) == (1, 0)


# The app's


def test_an_app_says_who_starts_flows_and_refuses_those_who_wait_in_vain(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(connections_max=1)
    pay: Target[Order, None] = app.remote("pay", Order)
    app.start(pay, Order("o1"), flow_id="order:1")
    assert (app.connections().size, app.connections().in_use, app.connections().most) == (1, 0, 1)
    monkeypatch.setattr(engine_of(app).flow_starter.pool, "_patience_seconds", 0.01)
    with engine_of(app).flow_starter.pool.taken():
        (holder,) = app.connections().holders
        assert holder.who == threading.current_thread().name
        with pytest.raises(NothingSent, match="raise connections_max"):
            app.start(pay, Order("o2"), flow_id="order:2")
    assert app.start(pay, Order("o2"), flow_id="order:2").is_new
    assert app.connections().size == 1
    app.close()


def test_many_callers_share_few_connections(new_app: NewApp) -> None:
    app = new_app(connections_max=2)
    pay: Target[Order, None] = app.remote("pay", Order)
    is_new: list[bool] = []

    def start(number: int) -> None:
        is_new.append(app.start(pay, Order(str(number)), flow_id=f"order:{number}").is_new)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_new == [True] * 12
    assert app.connections().size <= 2
    app.close()


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "ten"])
def test_a_number_of_connections_that_is_none_is_refused(new_sqlite: Callable[[], str], count: object) -> None:
    with pytest.raises(DeclarationError, match="connections_max must be a whole number above 0"):
        App("shop", database=new_sqlite(), connections_max=count)  # type: ignore[arg-type]


# Apps that are forgotten


def shop_with_one_flow(url: str) -> App:
    app = App("shop", database=url)

    @app.endpoint("place")
    def place(ctx: Context, order: Order) -> None: ...

    app.start(app.target("place"), Order("1"), flow_id="order 1")
    return app


def test_an_app_is_forgotten_in_the_middle_of_whatever_its_thread_does(new_sqlite: Callable[[], str]) -> None:
    """The garbage collector runs within any call. It waited for a lock that its own thread held."""

    def collect() -> None:
        shop_with_one_flow(new_sqlite())
        with writer_locks._lock:
            gc.collect()

    collecting = threading.Thread(target=collect, daemon=True)
    collecting.start()
    wait_until(lambda: not collecting.is_alive(), "the app is forgotten")


def test_what_a_forgotten_app_had_open_is_closed_when_another_one_starts_flows(new_sqlite: Callable[[], str]) -> None:
    forgotten, other = new_sqlite(), new_sqlite()
    shop_with_one_flow(forgotten)
    gc.collect()
    app = shop_with_one_flow(other)
    assert is_open_here(other)
    assert not is_open_here(forgotten)
    app.close()


def test_an_error_in_closing_what_a_forgotten_app_had_concerns_nobody_else(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Thing):
        def close(self) -> None:
            raise OSError("the disk is gone")

    pool = Pool(Broken, clock)
    with pool.taken():
        pass
    del pool
    gc.collect()
    for _ in range(2):
        with Pool(Thing, clock).taken():
            pass
    (record,) = [each for each in caplog.records if "dropped app" in each.message]
    assert "the disk is gone" in str(record.exc_info)


def is_open_here(url: str) -> bool:
    return any(file.startswith(url.removeprefix("sqlite:///")) for file in open_files())
