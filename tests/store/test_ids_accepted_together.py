"""Several sessions accept the same ids on PostgreSQL: each id has one content, whatever the order of the commits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from stagepost import App, IdConflict, NothingSent, StoreContention, Target
from stagepost.flow import ids
from stagepost.store.postgres.session import PostgresSession
from stagepost.store.postgres.store import PostgresStore
from stagepost.testing.contract.givens import an_acceptance, committed
from tests.waiting import wait_until

LEVELS = ("read committed", "repeatable read", "serializable")
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@dataclass
class Order:
    id: str
    amount: int


@pytest.fixture
def url(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


@pytest.fixture
def foreign(url: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield connection


@pytest.fixture
def session(url: str) -> Iterator[PostgresSession]:
    with closing(PostgresStore(url).session()) as session:
        yield session


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, url: str, foreign: psycopg.Connection[Any]) -> str:
    """The isolation level that every new connection to the database has by default."""
    level = str(request.param)
    name = url.rpartition("/")[2]
    foreign.execute(f"ALTER DATABASE {name} SET default_transaction_isolation TO '{level}'")
    return level


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with closing(App("shop", database=url)) as app:
        yield app


def wait_for_a_waiter(foreign: psycopg.Connection[Any]) -> None:
    wait_until(lambda: foreign.execute(WAITING).fetchone() == (1,), "the other session waits for the id")


def outcome_of(start: Callable[[], list[bool]]) -> list[bool] | type[Exception]:
    try:
        return start()
    except (IdConflict, NothingSent) as error:
        return type(error)


def while_another_session_commits(
    app: App,
    pay: Target[Order, None],
    url: str,
    foreign: psycopg.Connection[Any],
    amount: int,
    start: Callable[[], list[bool]],
) -> list[bool] | type[Exception]:
    """Start flows while another transaction has accepted one of their ids. It commits when ``start`` waits for it."""
    found: list[list[bool] | type[Exception]] = []
    thread = threading.Thread(target=lambda: found.append(outcome_of(start)))
    with closing(psycopg.connect(url)) as mine:
        with app.initiate(connection=mine) as out:
            out.send(pay, Order("2", amount), flow_id="order:2")
        thread.start()
        wait_for_a_waiter(foreign)
        mine.commit()
    thread.join()
    return found[0]


@pytest.mark.parametrize("amount", [1, 2], ids=["equal content", "other content"])
@pytest.mark.parametrize("caller", ["Stagepost's connection", "the caller's, autocommit", "the caller's transaction"])
def test_content_that_another_session_commits_meanwhile_decides_the_verdict(
    app: App, url: str, foreign: psycopg.Connection[Any], level: str, caller: str, amount: int
) -> None:
    pay: Target[Order, None] = app.remote("pay", Order)
    own = psycopg.connect(url, autocommit=caller.endswith("autocommit"))

    def start() -> list[bool]:
        with closing(own):
            with app.initiate(connection=None if caller.startswith("Stagepost") else own) as out:
                handles = [out.send(pay, Order(n, 1), flow_id=f"order:{n}") for n in "123"]
            own.commit()
            return [each.is_new for each in handles]

    outcome = while_another_session_commits(app, pay, url, foreign, amount, start)
    if level != "read committed" and not caller.startswith("Stagepost"):
        # The caller's snapshot is older than the row. PostgreSQL refuses the insert, and nothing starts.
        assert outcome is NothingSent
    else:
        assert outcome == ([True, False, True] if amount == 1 else IdConflict)
    flows = [flow for (flow,) in foreign.execute("SELECT flow_id FROM stagepost_ready ORDER BY flow_id")]
    assert flows == (["order:1", "order:2", "order:3"] if isinstance(outcome, list) else ["order:2"])
    assert foreign.execute("SELECT key FROM stagepost_accepted ORDER BY key").fetchall() == [
        (key,) for key in sorted(ids.from_key(flow, "pay", 0) for flow in flows)
    ]


def test_content_that_is_committed_between_the_two_statements_is_read_by_the_second(
    session: PostgresSession, foreign: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One statement would read the digests in the snapshot of its insert."""
    with committed(session):
        session.accepted.accept([an_acceptance("a"), an_acceptance("b")])
    before_the_digests(session, monkeypatch, lambda: foreign.execute("UPDATE stagepost_accepted SET digest = 'new'"))
    with committed(session):
        verdicts = session.accepted.accept([an_acceptance(key) for key in "abc"])
    assert [each.outcome for each in verdicts] == ["conflict", "conflict", "started"]


def test_an_id_that_is_deleted_between_the_two_statements_is_an_error_and_no_verdict(
    session: PostgresSession, foreign: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with committed(session):
        session.accepted.accept([an_acceptance("a"), an_acceptance("b")])
    before_the_digests(session, monkeypatch, lambda: foreign.execute("DELETE FROM stagepost_accepted WHERE key = 'b'"))
    with (
        pytest.raises(StoreContention, match="message b to pay was accepted before, and that was deleted"),
        committed(session),
    ):
        session.accepted.accept([an_acceptance(key) for key in "abc"])
    assert foreign.execute("SELECT key FROM stagepost_accepted").fetchall() == [("a",)]


def before_the_digests(session: PostgresSession, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call ``act`` between the insert of the keys and the look for the digests of those that were known."""

    def run(statement: Any, parameters: Any = ()) -> Any:
        if statement == "find_accepted":
            act()
        return session.run(statement, parameters)

    monkeypatch.setattr(session.accepted, "_run", run)
