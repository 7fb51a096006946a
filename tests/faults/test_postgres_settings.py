"""Role, database or server are set to what a promise does not survive: Stagepost sets what its transactions need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from stagepost import App, Context, DeclarationError, NothingSent, Target
from stagepost.flow.clock import SystemClock
from stagepost.ports.registry import driver_of
from stagepost.runtime.settings import allowed_risks
from stagepost.store.postgres.store import PostgresStore, migrate_database
from stagepost.testing import Harness
from tests.servers.postgres import OwnServer
from tests.waiting import wait_until

FLOWS = 20


@dataclass
class Order:
    id: str


@pytest.fixture
def mortal_url(mortal_postgres: OwnServer) -> Iterator[str]:
    """An empty database on a server that forgets what was not forced to its disk when it is stopped at once."""
    url = mortal_postgres.new_database()
    yield url
    mortal_postgres.drop_database(url)


# Where a setting can come from. Stagepost's connections are made after it.
SOURCES = {
    "server": "ALTER SYSTEM SET {setting}",
    "database": "ALTER DATABASE {database} SET {setting}",
    "role": "ALTER ROLE postgres SET {setting}",
    "role in the database": "ALTER ROLE postgres IN DATABASE {database} SET {setting}",
}
UNDO = {
    "server": "ALTER SYSTEM RESET {name}",
    "database": "ALTER DATABASE {database} RESET {name}",
    "role": "ALTER ROLE postgres RESET {name}",
    "role in the database": "ALTER ROLE postgres IN DATABASE {database} RESET {name}",
}

Set = Callable[[str, str, str], None]


@pytest.fixture
def set_at(mortal_url: str) -> Iterator[Set]:
    undone: list[str] = []
    database = mortal_url.rpartition("/")[2]

    def say(statement: str) -> None:
        with psycopg.connect(mortal_url, autocommit=True) as connection:
            connection.execute(statement.encode())
            connection.execute("SELECT pg_reload_conf()")

    def make(source: str, name: str, value: str) -> None:
        undone.append(UNDO[source].format(database=database, name=name))
        say(SOURCES[source].format(database=database, setting=f"{name} TO '{value}'"))

    yield make
    for statement in undone:
        say(statement)


def count(url: str, what: str) -> Any:
    with closing(psycopg.connect(url)) as connection:
        (found,) = connection.execute(f"SELECT count(*) FROM {what}".encode()).fetchone() or (None,)
        return found


def stop_at_once(server: OwnServer) -> None:
    server.stop("immediate")
    server.start()


@pytest.mark.parametrize("source", SOURCES)
def test_what_was_started_handled_and_sent_is_on_the_disk_whatever_says_that_commits_need_not_wait(
    mortal_postgres: OwnServer, mortal_url: str, set_at: Set, source: str
) -> None:
    migrate_database(mortal_url)
    set_at(source, "synchronous_commit", "off")
    app = App("shop", database=mortal_url)
    ship: Target[Order, None] = app.remote("ship", Order)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.sql("INSERT INTO ledger VALUES (:id)", id=order.id)
        ctx.send(ship, order)

    with psycopg.connect(mortal_url) as connection:
        connection.execute("CREATE TABLE ledger (id text)")
    for n in range(FLOWS):
        app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
    app.close()
    stop_at_once(mortal_postgres)
    assert count(mortal_url, "stagepost_ready WHERE stage = 'pay'") == FLOWS
    with closing(Harness(app)) as worker:
        assert len(worker.drain()) == FLOWS
    stop_at_once(mortal_postgres)
    assert count(mortal_url, "ledger") == FLOWS
    assert count(mortal_url, "stagepost_ready WHERE stage = 'ship'") == FLOWS


def test_what_an_outbox_marks_as_sent_is_on_the_disk_of_a_queue_whose_commits_need_not_wait(
    mortal_postgres: OwnServer, mortal_url: str, set_at: Set, new_postgres: Callable[[], str]
) -> None:
    migrate_database(mortal_url)
    set_at("role in the database", "synchronous_commit", "off")
    here = new_postgres()
    app = App("shop", database=here, queue=mortal_url)
    ship: Target[Order, None] = app.remote("ship", Order)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.send(ship, order)

    for n in range(FLOWS):
        app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
    with closing(Harness(app)) as worker:
        assert len(worker.drain()) == FLOWS
    app.close()
    stop_at_once(mortal_postgres)
    assert count(here, "stagepost_inbox WHERE is_sent") == FLOWS
    assert count(mortal_url, "stagepost_ready WHERE stage = 'ship'") == FLOWS


@pytest.mark.parametrize("source", ["database", "role"])
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_transactions_of_stageposts_own_are_read_committed_whatever_the_default_is(
    mortal_url: str, set_at: Set, source: str, level: str
) -> None:
    """At another level two handlers that change one row fail."""
    store = PostgresStore(mortal_url)
    set_at(source, "default_transaction_isolation", level)
    levels: list[object] = []
    with closing(store.session()) as session:
        for is_durable in (True, False):
            session.begin(is_durable=is_durable)
            session.lend("pay", lambda: None)
            levels.append(session.execute("SELECT current_setting('transaction_isolation')", {}).scalar())
            session.take_back()
            session.commit()
    # Of those that keep the record of who lives.
    lives = store.liveness(SystemClock())
    (row,) = lives._cursor().execute("SELECT current_setting('transaction_isolation')").fetchall()
    lives.close()
    assert [*levels, *row] == ["read committed"] * 3


# Settings of how values are written and read. The handlers keep them.
SPELLINGS = {
    "dates of Germany": ("DateStyle", "German"),
    "dates of SQL": ("DateStyle", "SQL, DMY"),
    "intervals": ("IntervalStyle", "sql_standard"),
    "bytes": ("bytea_output", "escape"),
    "floats": ("extra_float_digits", "-15"),
    "half hours": ("timezone", "America/St_Johns"),
    "an offset": ("timezone", "<-03>+03"),
    "backslashes": ("standard_conforming_strings", "off"),
    "latin": ("client_encoding", "LATIN1"),
    "no encoding": ("client_encoding", "SQL_ASCII"),
    "arrays": ("array_nulls", "off"),
    "nulls": ("transform_null_equals", "on"),
    "identifiers": ("quote_all_identifiers", "on"),
    "a search path": ("search_path", "mine"),
}


@pytest.mark.parametrize("source", ["database", "role"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_flows_run_whatever_the_default_spelling_of_values_is(
    mortal_url: str, set_at: Set, source: str, spelling: str
) -> None:
    with psycopg.connect(mortal_url) as connection:
        connection.execute("CREATE SCHEMA mine")
    name, value = SPELLINGS[spelling]
    set_at(source, name, value)
    store = PostgresStore(mortal_url)
    order, moment = Order("é€\\'\""), SystemClock().now()
    app = App("shop", database=mortal_url)
    handled: list[Order] = []
    seen: list[object] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        handled.append(order)
        seen.append(ctx.sql("SELECT current_setting(:name)", name=name).scalar())

    app.start(pay, order, flow_id="é€\\")
    with closing(Harness(app)) as worker:
        worker.drain()
    app.close()
    assert handled == [order]
    # Not the encoding, because the driver's texts are UTF-8.
    with psycopg.connect(mortal_url) as connection:
        own = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
    assert name == "client_encoding" or (*seen,) == own
    with closing(store.session()) as session, closing(store.session()) as lost:
        assert session.run("terminate_backend", lost._backend or ()).fetchone() == (True,)
        session.begin(is_durable=True)
        session.retention.cut(moment)
        session.commit()
        (closed,) = session.retention.closed_ranges()
        assert 0 < closed.first < closed.next


# What no session can set


RISKS = {
    "fsync_off": ("ALTER SYSTEM SET fsync TO off", "ALTER SYSTEM RESET fsync", "set it on in"),
    "full_page_writes_off": (
        "ALTER SYSTEM SET full_page_writes TO off",
        "ALTER SYSTEM RESET full_page_writes",
        "set it on in",
    ),
    "unlogged_tables": ("ALTER TABLE stagepost_ready SET UNLOGGED", "", "SET LOGGED"),
}


@pytest.fixture
def safe_url(default_postgres: OwnServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database with Stagepost's tables on a server with PostgreSQL's own settings, and nothing allowed."""
    monkeypatch.delenv("STAGEPOST_ALLOW")
    url = default_postgres.new_database()
    migrate_database(url)
    yield url
    default_postgres.drop_database(url)


@pytest.mark.parametrize("risk", RISKS)
def test_a_server_that_voids_a_promise_is_refused_with_the_remedy_unless_it_is_allowed(
    safe_url: str, risk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay: Target[Order, None] = Target("pay", Order, None)

    def is_new(flow_id: str, **options: Any) -> bool:
        with closing(App("shop", database=safe_url, **options)) as app:
            return app.start(pay, Order("o"), flow_id=flow_id).is_new

    assert is_new("before")
    make, undo, remedy = RISKS[risk]
    with psycopg.connect(safe_url, autocommit=True) as connection:
        # A server tells of its settings once it has read them again.
        connection.execute(make.encode())
        connection.execute("SELECT pg_reload_conf()")
        name = risk.removesuffix("_off")
        if undo:
            wait_until(lambda: is_off(safe_url, name), f"{name} is off")
        try:
            with pytest.raises(NothingSent, match=remedy) as caught:
                is_new("refused")
            assert f"App(allow=('{risk}',)) or STAGEPOST_ALLOW={risk}" in str(caught.value)
            assert is_new("by the app", allow=(risk,))
            monkeypatch.setenv("STAGEPOST_ALLOW", f"{risk}, unlogged_tables")
            assert is_new("by the environment")
            monkeypatch.delenv("STAGEPOST_ALLOW")
            with closing(driver_of(safe_url).open_existing(safe_url, "here").session()) as looking:
                assert len(looking.queue.depths()) == 1
        finally:
            if undo:
                connection.execute(undo.encode())
                connection.execute("SELECT pg_reload_conf()")
                # Other tests have this server too.
                wait_until(lambda: not is_off(safe_url, name), f"{name} is on")


def is_off(url: str, name: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT current_setting(%s)", (name,)).fetchone() == ("off",)


@pytest.mark.parametrize("names", [("fsync",), ("fsync_off", "all"), "fsync_off"])
def test_what_may_not_be_allowed_is_refused_when_it_is_said(names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeclarationError, match=r"allow= of app 'shop' may hold fsync_off, .*, and not"):
        App("shop", allow=names)
    monkeypatch.setenv("STAGEPOST_ALLOW", "fsync")
    with pytest.raises(DeclarationError, match=r"STAGEPOST_ALLOW may hold fsync_off, .*, and not 'fsync'"):
        allowed_risks()
