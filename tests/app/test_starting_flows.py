"""Flows that start outside any stage, in a transaction of their own: all of a block or nothing, and each id once."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import (
    App,
    CommitUnknown,
    Context,
    HandlerError,
    IdConflict,
    IllegalCall,
    InitiationError,
    InvalidId,
    NothingSent,
    OutcomeUnknown,
    StoreContention,
    StoreError,
    Target,
)
from stagepost.app.app import engine_of
from stagepost.flow.ids import node_name
from stagepost.store.postgres.session import PostgresSession
from stagepost.store.sqlite import connection as sqlite_connection
from stagepost.store.sqlite import writer_lock
from stagepost.store.sqlite.session import SqliteSession
from stagepost.testing import Harness
from tests.toy_store.store import ToySession

if TYPE_CHECKING:
    from tests.conftest import NewApp

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True


@dataclass
class Order:
    id: str
    amount: int = 0


@dataclass
class Receipt:
    id: str


@pytest.fixture
def arrived() -> list[str]:
    return []


@pytest.fixture
def pay(app: App, arrived: list[str]) -> Target[Order, Receipt]:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> Receipt:
        arrived.append(order.id)
        return Receipt(order.id)

    return pay


@pytest.fixture
def ship(app: App, arrived: list[str]) -> Target[Order, None]:
    @app.endpoint("ship")
    def ship(ctx: Context, order: Order) -> None:
        arrived.append(f"ship {order.id}")

    return ship


# Starting


@pytest.mark.in_one_database
def test_a_flow_that_is_started_is_there_when_start_returns(
    app: App, harness: NewHarness, pay: Target[Order, Receipt], arrived: list[str]
) -> None:
    started = app.start(pay, Order("o1"), flow_id="order:1")
    assert (started.flow_id, started.is_new) == ("order:1", True)
    worker = harness()
    (accepted,) = worker.history("order:1")
    assert (accepted.waypoint, accepted.message_id, accepted.node) == ("accepted", started.message_id, node_name("app"))
    worker.drain()
    assert arrived == ["o1"]


def test_a_repeat_starts_nothing_and_says_so_also_when_the_flow_has_long_ended(
    app: App, harness: NewHarness, pay: Target[Order, Receipt], arrived: list[str]
) -> None:
    first = app.start(pay, Order("o1"), flow_id="order:1")
    again = app.start(pay, Order("o1"), flow_id="order:1")
    harness().drain()
    later = app.start(pay, Order("o1"), flow_id="order:1")
    assert [each.is_new for each in (first, again, later)] == [True, False, False]
    assert len({each.message_id for each in (first, again, later)}) == 1
    assert harness().drain() == []
    assert arrived == ["o1"]


@dataclass
class Amount:
    value: float
    limit: float | None = None
    parts: list[float] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    shares: dict[str, float] = field(default_factory=dict)
    currency: str = "EUR"


@dataclass
class LabelledAmount(Amount):
    label: str = "not of the declared type"


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (Amount(5), Amount(5.0)),
        (Amount(5.0), Amount(5)),
        (Amount(1.5, 3), Amount(1.5, 3.0)),
        (Amount(1.5, parts=[1, 2.5]), Amount(1.5, parts=[1.0, 2.5])),
        (Amount(1.5, shares={"b": 1, "a": 2}), Amount(1.5, shares={"a": 2.0, "b": 1.0})),
        (Amount(1.5, tags={"a", "b"}), Amount(1.5, tags={"b", "a"})),
        (Amount(1.5), LabelledAmount(1.5)),
    ],
)
def test_another_spelling_of_one_value_is_the_same_content(app: App, first: Amount, again: Amount) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, amount: Amount) -> None: ...

    assert app.start(pay, first, flow_id="flow").is_new
    assert not app.start(pay, again, flow_id="flow").is_new
    with pytest.raises(IdConflict):
        app.start(pay, Amount(6), flow_id="flow")


def test_the_same_id_for_other_content_is_a_conflict_and_starts_nothing(
    app: App, harness: NewHarness, pay: Target[Order, Receipt], arrived: list[str]
) -> None:
    started = app.start(pay, Order("o1", 10), flow_id="order:1")
    with pytest.raises(IdConflict) as caught:
        app.start(pay, Order("o1", 11), flow_id="order:1")
    assert (caught.value.scope, caught.value.key) == ("pay", started.message_id)
    assert caught.value.digest != caught.value.accepted_digest
    assert "Nothing was started" in str(caught.value)
    assert len(harness().drain()) == 1
    # And the app goes on.
    assert app.start(pay, Order("o2"), flow_id="order:2").is_new


def test_the_same_flow_id_may_go_to_several_targets_and_several_times_to_one(
    app: App, harness: NewHarness, pay: Target[Order, Receipt], ship: Target[Order, None], arrived: list[str]
) -> None:
    with app.initiate() as out:
        first = [out.send(pay, Order("a"), flow_id="same"), out.send(pay, Order("b"), flow_id="same")]
        first.append(out.send(ship, Order("a"), flow_id="same"))
    assert [each.is_new for each in first] == [True, True, True]
    with app.initiate() as out:
        again = [out.send(pay, Order("a"), flow_id="same"), out.send(pay, Order("b"), flow_id="same")]
    assert [each.is_new for each in again] == [False, False]
    assert [each.message_id for each in again] == [each.message_id for each in first[:2]]
    harness().drain()
    assert sorted(arrived) == ["a", "b", "ship a"]


def test_a_message_id_of_the_callers_own_decides_instead_of_the_flow_id(app: App, pay: Target[Order, Receipt]) -> None:
    started = app.start(pay, Order("o1"), flow_id="order:1", message_id="invoice 7")
    assert started.message_id == "invoice 7"
    assert not app.start(pay, Order("o1"), flow_id="order:2", message_id="invoice 7").is_new
    with pytest.raises(IdConflict):
        app.start(pay, Order("o2"), flow_id="order:1", message_id="invoice 7")
    with app.initiate() as out:
        by_key = out.send(pay, Order("o1"), flow_id="order:3", message_id="invoice 8")
        derived = out.send(pay, Order("o1"), flow_id="order:3")
    assert (by_key.message_id, derived.is_new) == ("invoice 8", True)
    assert not app.start(pay, Order("o1"), flow_id="order:3").is_new


def test_a_block_that_raises_starts_nothing(app: App, harness: NewHarness, pay: Target[Order, Receipt]) -> None:
    def change_my_mind() -> None:
        with app.initiate() as out:
            out.send(pay, Order("o1"), flow_id="order:1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_my_mind()
    assert harness().history("order:1") == []
    assert app.start(pay, Order("o2"), flow_id="order:1").is_new


@pytest.mark.parametrize("raises", ["outer", "inner", "neither"])
def test_a_block_inside_a_block_starts_its_flows_by_itself(
    app: App, harness: NewHarness, pay: Target[Order, Receipt], arrived: list[str], raises: str
) -> None:
    def start(name: str) -> None:
        with app.initiate() as out:
            out.send(pay, Order(name), flow_id=name)
            if name == "outer":
                with suppress(ZeroDivisionError):
                    start("inner")
            if name == raises:
                raise ZeroDivisionError

    with suppress(ZeroDivisionError):
        start("outer")
    harness().drain()
    assert sorted(arrived) == sorted({"outer", "inner"} - {raises})


def test_of_a_block_with_a_conflict_nothing_starts(app: App, harness: NewHarness, pay: Target[Order, Receipt]) -> None:
    app.start(pay, Order("o2"), flow_id="order:2")

    def start_three() -> None:
        with app.initiate() as out:
            for n in (1, 2, 3):
                out.send(pay, Order("x"), flow_id=f"order:{n}")

    with pytest.raises(IdConflict):
        start_three()
    assert [harness().history(f"order:{n}") for n in (1, 3)] == [[], []]


def test_a_block_that_repeats_itself_with_other_content_is_a_conflict(
    app: App, harness: NewHarness, pay: Target[Order, Receipt]
) -> None:
    def start_twice() -> None:
        with app.initiate() as out:
            out.send(pay, Order("a"), flow_id="f", message_id="m")
            out.send(pay, Order("b"), flow_id="f", message_id="m")

    with pytest.raises(IdConflict):
        start_twice()
    assert harness().history("f") == []


def test_an_empty_block_opens_nothing(new_app: NewApp, tmp_path: Path) -> None:
    app = new_app(database=f"sqlite:///{tmp_path / 'missing' / 'shop.db'}")
    with app.initiate():
        pass


def test_whether_a_flow_is_new_is_known_only_after_the_block(app: App, pay: Target[Order, Receipt]) -> None:
    with app.initiate() as out:
        started = out.send(pay, Order("o1"), flow_id="order:1")
        with pytest.raises(RuntimeError, match=r"is_new is known after"):
            _ = started.is_new
        assert "not written yet" in repr(started)
    assert started.is_new
    assert repr(started) == f"<Started order:1 {started.message_id}: started>"
    assert "started before" in repr(app.start(pay, Order("o1"), flow_id="order:1"))


def test_an_initiation_is_for_one_block(app: App, pay: Target[Order, Receipt]) -> None:
    initiation = app.initiate()
    with pytest.raises(IllegalCall, match="this initiation is not open"):
        initiation.send(pay, Order("o1"), flow_id="order:1")
    with initiation as out:
        out.send(pay, Order("o1"), flow_id="order:1")
    with pytest.raises(IllegalCall, match="used once"), initiation:
        pass


# Wrong calls: refused when the call is made, before anything is written

WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a message of another type": ({"message": Receipt("r")}, IllegalCall, "pay takes a Order, not a Receipt"),
    "a wrong value in a field": ({"message": Order(1)}, HandlerError, "a Order cannot be sent as it is"),  # type: ignore[arg-type]
    "an empty flow id": ({"flow_id": ""}, InvalidId, "flow_id must not be empty"),
    "a flow id that is no text": ({"flow_id": 17}, InvalidId, "flow_id must be a str, not int: 17"),
    "a flow id that is too long": ({"flow_id": "x" * 201}, InvalidId, "flow_id is 201 characters long"),
    "a flow id of two lines": ({"flow_id": "a\nb"}, InvalidId, "flow_id must be printable"),
    "an empty message id": ({"message_id": ""}, InvalidId, "message_id must not be empty"),
    "a negative delay": ({"delay": -1}, IllegalCall, "delay must be a number of seconds from 0"),
    "a property that is no JSON": ({"properties": {"a": {1}}}, IllegalCall, "property 'a'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_call_is_refused_and_starts_nothing(
    app: App, harness: NewHarness, pay: Target[Order, Receipt], what: str
) -> None:
    options, error, text = WRONG[what]
    with pytest.raises(error) as caught:
        app.start(pay, **{"message": Order("o1"), "flow_id": "order:1", **options})
    assert text in str(caught.value)
    assert harness().history("order:1") == []
    assert app.start(pay, Order("o1"), flow_id="order:1").is_new


def test_a_reply_can_be_asked_only_of_one_that_replies_and_for_one_that_takes_it(
    app: App, pay: Target[Order, Receipt], ship: Target[Order, None]
) -> None:
    with pytest.raises(IllegalCall, match=r"ship never replies, so reply_to=pay would wait forever. Leave reply_to"):
        app.start(ship, Order("o1"), flow_id="order:1", reply_to=pay)
    with pytest.raises(IllegalCall, match="pay replies with a Receipt, but ship takes a Order"):
        app.start(pay, Order("o1"), flow_id="order:1", reply_to=ship)


# What can go wrong with the database, by type


@pytest.fixture
def on_sqlite(new_sqlite: Callable[[], str], clock: Any) -> App:
    return App("shop", database=new_sqlite(), clock=clock)


def test_a_database_that_says_no_means_that_nothing_was_sent(on_sqlite: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_TIMEOUT_SECONDS", 0)
    monkeypatch.setattr(writer_lock, "WAIT_SECONDS_MAX", 0)
    target: Target[Order, None] = on_sqlite.remote("pay", Order)
    on_sqlite.start(target, Order("o0"), flow_id="order:0")
    path = on_sqlite.database.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(NothingSent, match=r"nothing was started: .*database is locked") as caught:
            on_sqlite.start(target, Order("o1"), flow_id="order:1", message_id="m1")
        assert caught.value.message_ids == ("m1",)
        assert isinstance(caught.value, InitiationError)
        assert isinstance(caught.value.__cause__, StoreContention)
    assert on_sqlite.start(target, Order("o1"), flow_id="order:1", message_id="m1").is_new


def test_a_database_that_cannot_be_opened_means_that_nothing_was_sent(new_app: NewApp, tmp_path: Path) -> None:
    app = new_app(database=f"sqlite:///{tmp_path / 'missing' / 'shop.db'}")
    target: Target[Order, None] = app.remote("pay", Order)
    with pytest.raises(NothingSent):
        app.start(target, Order("o1"), flow_id="order:1")


def test_a_delay_beyond_all_time_is_a_wrong_call(on_sqlite: App) -> None:
    target: Target[Order, None] = on_sqlite.remote("pay", Order)
    for delay in (1e15, float("inf"), float("nan"), "soon", None, True):
        with pytest.raises(IllegalCall, match=r"delay must be a number of seconds from 0 to .*, ten years"):
            on_sqlite.start(target, Order("o1"), flow_id="order:1", delay=delay)  # type: ignore[arg-type]


@pytest.mark.parametrize("stood", [True, False])
def test_a_commit_without_an_answer_is_an_unknown_outcome_and_trying_again_is_safe(
    app: App,
    harness: NewHarness,
    pay: Target[Order, Receipt],
    arrived: list[str],
    monkeypatch: pytest.MonkeyPatch,
    stood: bool,
) -> None:
    app.start(pay, Order("o0"), flow_id="order:0")

    def lose_the_answer(session: SqliteSession | ToySession | PostgresSession) -> None:
        monkeypatch.undo()
        if stood:
            session.commit()
        raise CommitUnknown("connection lost")

    monkeypatch.setattr(SqliteSession, "commit", lose_the_answer)
    monkeypatch.setattr(ToySession, "commit", lose_the_answer)
    monkeypatch.setattr(PostgresSession, "commit", lose_the_answer)
    with pytest.raises(OutcomeUnknown, match="Try again with the same ids") as caught:
        app.start(pay, Order("o1"), flow_id="order:1")
    again = app.start(pay, Order("o1"), flow_id="order:1")
    assert caught.value.message_ids == (again.message_id,)
    assert again.is_new is not stood
    harness().drain()
    assert sorted(arrived) == ["o0", "o1"]


# Threads


def test_flows_may_be_started_from_any_thread(
    app: App, harness: NewHarness, pay: Target[Order, Receipt], arrived: list[str]
) -> None:
    assert engine_of(app).store.identity
    begin = threading.Barrier(4)
    is_new: list[bool] = []

    def start(number: int) -> None:
        begin.wait()
        for n in range(10):
            app.start(pay, Order(f"{number}-{n}"), flow_id=f"order:{number}-{n}")
            is_new.append(app.start(pay, Order(f"shared {n}"), flow_id=f"shared:{n}").is_new)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(is_new) == 10
    harness().drain()
    assert len(arrived) == len(set(arrived)) == 4 * 10 + 10


def test_threads_that_start_their_first_flows_at_once_use_one_store(on_sqlite: App) -> None:
    begin = threading.Barrier(4)
    stores: list[object] = []

    def look() -> None:
        begin.wait()
        try:
            stores.append(engine_of(on_sqlite).store)
        except StoreError as error:
            stores.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores == [engine_of(on_sqlite).store] * 4


def test_threads_that_come_and_go_leave_no_session_each_behind(app: App, pay: Target[Order, Receipt]) -> None:
    for n in range(10):
        thread = threading.Thread(target=app.start, args=(pay, Order("o")), kwargs={"flow_id": f"order:{n}"})
        thread.start()
        thread.join()
    assert len(engine_of(app).flow_starter.pool._idle) == 1


@pytest.mark.in_one_database
def test_a_session_on_which_something_went_wrong_is_used_again(
    app: App, harness: NewHarness, pay: Target[Order, Receipt]
) -> None:
    app.start(pay, Order("o1", 1), flow_id="order:1")
    for _ in range(3):
        with pytest.raises(IdConflict):
            app.start(pay, Order("o1", 2), flow_id="order:1")
    assert len(engine_of(app).flow_starter.pool._idle) == 1
    assert app.start(pay, Order("o2"), flow_id="order:2").is_new
    assert len(harness().history("order:2")) == 1
