"""Flows that start in the mode ``best_effort``: the database commits, and then the broker gets the messages."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from examples.jobs.directly import Job, hand_out
from stagepost import App, CommittedButMaybeNotSent, Context, DeclarationError, IdConflict, NothingSent, OutcomeUnknown
from stagepost.app.app import engine_of
from stagepost.broker.memory import MemoryBroker
from stagepost.flow.errors import CommitUnknown
from stagepost.flow.target import Target
from stagepost.runtime.assembly import queue_commit_of
from stagepost.runtime.direct_starter import DirectStarter
from stagepost.transaction.dispatcher import Dispatcher
from stagepost.transaction.steps import Halt
from tests.edges.direct_service import ABROAD, SECONDS, Order

SCHEMA = Path(__file__).parents[2] / "examples/jobs/schema.sql"


class Starter:
    """An app in the mode ``best_effort`` that starts flows at another service, and a dispatcher."""

    def __init__(self, url: str, broker: MemoryBroker) -> None:
        self.broker = broker
        self.app = App("shop", database=url, broker=broker.url, mode="best_effort", random=Random(1))
        self.book: Target[Order, None] = self.app.remote(ABROAD, Order)
        self.engine = engine_of(self.app)
        self.access = self.engine.access()
        with closing(broker.connect(SECONDS)) as connection:
            connection.prepare([ABROAD], "another store")

    def start(self, *order_ids: str, delay: float = 0) -> list[bool]:
        with self.app.initiate() as out:
            started = [out.send(self.book, Order(each), flow_id=each, delay=delay) for each in order_ids]
        return [each.is_new for each in started]

    def dispatch(self) -> None:
        dispatcher = Dispatcher(queue_commit_of(self.engine, self.access, "edge"), "shop/edge", Random(1))
        with closing(self.broker.connect(SECONDS)) as connection:
            while dispatcher.turn(connection):
                pass

    def sent(self) -> Counter[str]:
        return Counter(each.headers["stagepost-flow"] for each in self.broker.waiting(ABROAD))

    def rows(self) -> int:
        return sum(each.ready + each.delayed for each in self.access.session.queue.depths())

    def history(self, flow_id: str) -> list[str]:
        return [each.waypoint for each in self.access.session.journal.history(flow_id)]

    def close(self) -> None:
        self.access.close()
        self.app.close()


@pytest.fixture
def shop(direct_url: str, direct_broker: MemoryBroker) -> Iterator[Starter]:
    with closing(Starter(direct_url, direct_broker)) as shop:
        yield shop


def lose(shop: Starter) -> None:
    """Let the broker lose the connection with the next messages on it."""
    if shop.broker.is_atomic:
        shop.broker.cut_commit = "rolled back"
    else:
        shop.broker.cut_after = 0


def test_a_flow_starts_with_a_commit_and_a_message(shop: Starter) -> None:
    assert shop.start("o1", "o2") == [True, True]
    assert (shop.sent(), shop.rows()) == ({"o1": 1, "o2": 1}, 0)
    assert shop.history("o1") == ["accepted", "confirmed"]
    # A repeat finds no mark, so it sends nothing.
    assert shop.start("o1") == [False]
    assert (shop.sent(), shop.rows()) == ({"o1": 1, "o2": 1}, 0)


def test_a_broker_that_does_not_answer_starts_nothing(shop: Starter) -> None:
    shop.broker.is_down = True
    with pytest.raises(NothingSent) as caught:
        shop.start("o1", "o2")
    assert len(caught.value.message_ids) == 2
    shop.broker.is_down = False
    assert shop.start("o1") == [True]


@pytest.mark.parametrize("fault", ["lost", "refused"])
def test_a_failure_between_the_commits_names_the_ids_and_a_repeat_sends_them(shop: Starter, fault: str) -> None:
    if fault == "lost":
        lose(shop)
    else:
        shop.broker.refusing = {ABROAD}
    with shop.app.initiate() as probe:
        ids = [probe.send(shop.book, Order(each), flow_id=each).message_id for each in ("o1", "o2")]
        with pytest.raises(CommittedButMaybeNotSent, match="Take back what was committed") as caught:
            shop.start("o1", "o2")
        probe._acceptances.clear()
    assert sorted(caught.value.message_ids) == sorted(ids)
    shop.broker.refusing = set()
    assert shop.start("o1", "o2") == [False, False]
    assert shop.history("o1") == ["accepted", "doubted"]
    shop.dispatch()
    assert set(shop.sent()) == {"o1", "o2"}
    copies = {each.message_id for each in shop.broker.waiting(ABROAD)}
    assert copies == set(ids)
    assert shop.start("o1") == [False]
    assert shop.rows() == 0


def test_a_kill_between_the_commits_is_cured_by_the_same_ids(shop: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*arguments: Any) -> None:
        raise Halt

    with monkeypatch.context() as killed:
        killed.setattr(DirectStarter, "_send", die)
        with pytest.raises(Halt):
            shop.start("o1")
    assert shop.sent() == {}
    assert shop.start("o1") == [False]
    shop.dispatch()
    assert shop.sent() == {"o1": 1}


def test_a_commit_without_an_answer_is_cured_by_the_same_ids(shop: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    session_type = type(shop.access.session)
    commit = session_type.commit

    def fail(session: Any) -> None:
        commit(session)
        raise CommitUnknown("the answer was lost")

    with monkeypatch.context() as cut:
        cut.setattr(session_type, "commit", fail)
        with pytest.raises(OutcomeUnknown):
            shop.start("o1")
    assert shop.start("o1") == [False]
    shop.dispatch()
    assert shop.sent() == {"o1": 1}


def test_a_delayed_flow_and_one_in_an_alarm_leave_by_the_dispatcher(shop: Starter) -> None:
    shop.start("o1", delay=3_600)
    shop.broker.is_blocked = True
    shop.start("o2")
    assert (shop.rows(), shop.sent()) == (2, {})
    shop.broker.is_blocked = False
    shop.dispatch()
    assert shop.sent() == {"o2": 1}
    # Neither is in doubt.
    assert shop.start("o1", "o2") == [False, False]
    assert shop.rows() == 1


def test_other_content_under_a_known_id_is_refused(shop: Starter) -> None:
    shop.app.start(shop.book, Order("o1"), flow_id="o1", message_id="m1")
    with pytest.raises(IdConflict):
        shop.app.start(shop.book, Order("o2"), flow_id="o1", message_id="m1")
    assert shop.sent() == {"o1": 1}


def test_one_id_twice_in_one_start_sends_one_message(shop: Starter) -> None:
    with shop.app.initiate() as out:
        for _ in range(2):
            out.send(shop.book, Order("o1"), flow_id="o1", message_id="m1")
    assert (shop.sent(), shop.rows()) == ({"o1": 1}, 0)


def test_flows_in_the_callers_transaction_leave_by_the_dispatcher(shop: Starter, direct_url: str) -> None:
    if not direct_url.startswith("sqlite"):
        pytest.skip("the same code starts them on both stores")
    with closing(sqlite3.connect(direct_url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("INSERT INTO effect (order_id) VALUES ('o1')")
        with shop.app.initiate(connection=connection) as out:
            out.send(shop.book, Order("o1"), flow_id="o1")
    assert (shop.rows(), shop.sent()) == (1, {})
    shop.dispatch()
    assert shop.sent() == {"o1": 1}


def test_a_publication_goes_to_its_topic_at_the_broker(shop: Starter) -> None:
    prices = shop.app.topic("prices", Order)
    with closing(shop.broker.connect(SECONDS)) as connection:
        connection.prepare(["@prices", "watch@prices"], "another store")
    with shop.app.initiate() as out:
        out.publish(prices, Order("o1"), flow_id="o1")
    assert len(shop.broker.waiting("watch@prices")) == 1
    assert shop.rows() == 0


@pytest.mark.parametrize("settings", [{}, {"broker": "memory:starts", "queue": "sqlite:///queue.db"}])
def test_best_effort_without_a_broker_of_its_own_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    app = App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}", mode="best_effort", **settings)
    with pytest.raises(DeclarationError, match="starts flows over a broker"):
        app.start(app.remote(ABROAD, Order), Order("o1"), flow_id="o1")


def test_a_job_is_taken_back_where_the_broker_is_lost_between_the_commits(
    new_postgres: Callable[[], str], direct_broker: MemoryBroker
) -> None:
    url = new_postgres()
    with psycopg.connect(url) as connection:
        connection.execute(SCHEMA.read_bytes())
        connection.execute("DELETE FROM job")
        connection.execute("INSERT INTO job (id) VALUES ('j1')")
    with closing(Starter(url, direct_broker)) as shop:
        work: Target[Job, None] = shop.app.remote(ABROAD, Job)
        lose(shop)
        with pytest.raises(CommittedButMaybeNotSent) as caught:
            hand_out(shop.app, work, url)
        assert caught.value.message_ids == ("j1",)
        # The job is free again, and its second hand-out starts no second flow.
        assert hand_out(shop.app, work, url) == "j1"
        assert hand_out(shop.app, work, url) is None
        shop.dispatch()
        assert {each.message_id for each in direct_broker.waiting(ABROAD)} == {"j1"}


def test_a_best_effort_stage_that_starts_flows_does_so_in_its_own_commit(shop: Starter) -> None:
    def declared(app: App) -> None:
        @app.endpoint("shop.pay")
        def pay(ctx: Context, order: Order) -> None:
            with ctx.initiate() as out:
                out.send(shop.book, order, flow_id=f"other {order.order_id}")

    declared(shop.app)
    assert engine_of(shop.app).modes() == {"shop.pay": "best_effort"}
