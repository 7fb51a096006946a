"""``app.initiate(connection=…)`` on PostgreSQL: flows join the caller's transaction, whatever the settings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.abc import AdaptContext
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import dict_row
from psycopg.types.string import StrDumper

from stagepost import App, DeclarationError, IdConflict, NothingSent, OutcomeUnknown, StagepostError, Target
from stagepost.store.postgres.store import migrate_database
from tests.servers.postgres import OwnServer, Server
from tests.servers.proxy import Loss, Proxy


@pytest.fixture
def url(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


@pytest.fixture
def foreign(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Another connection of the caller's."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield connection


def terminate(foreign: psycopg.Connection[Any], pid: int) -> None:
    """Returns when it is gone."""
    foreign.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))


@dataclass
class Order:
    id: str


@pytest.fixture
def app(url: str) -> App:
    return App("shop", database=url)


@pytest.fixture
def pay(app: App) -> Target[Order, None]:
    return app.remote("pay", Order)


@pytest.fixture
def connect(url: str) -> Iterator[Callable[..., psycopg.Connection[Any]]]:
    opened: list[psycopg.Connection[Any]] = []

    def make(**options: Any) -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(url, **options))
        return opened[-1]

    with psycopg.connect(url) as first:
        first.execute("CREATE TABLE cart (id text)")
    yield make
    for each in opened:
        each.close()


Connect = Callable[..., psycopg.Connection[Any]]


def start(app: App, connection: object, target: Target[Order, None], *names: str) -> list[bool]:
    with app.initiate(connection=connection) as out:
        handles = [out.send(target, Order(name), flow_id=f"order:{name}") for name in names]
    return [each.is_new for each in handles]


def found(foreign: psycopg.Connection[Any]) -> tuple[list[str], list[str]]:
    """What is committed: the caller's carts, and the flows that have started."""
    carts = [cart for (cart,) in foreign.execute("SELECT id FROM cart ORDER BY id")]
    return carts, [flow for (flow,) in foreign.execute("SELECT flow_id FROM stagepost_ready ORDER BY id")]


def status(connection: psycopg.Connection[Any]) -> str:
    return connection.info.transaction_status.name


def test_in_the_callers_transaction_flows_start_when_it_commits_and_never_when_it_rolls_back(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any]
) -> None:
    connection = connect()
    for end, names in ((connection.rollback, "o1"), (connection.commit, "o1")):
        connection.execute("INSERT INTO cart VALUES ('c1')")
        assert start(app, connection, pay, names, "o2") == [True, True]
        connection.execute("INSERT INTO cart VALUES ('c2')")
        assert found(foreign) == ([], [])
        end()
    assert found(foreign) == (["c1", "c2"], ["order:o1", "order:o2"])


def test_what_is_started_first_opens_the_transaction_as_any_statement_would(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any]
) -> None:
    connection = connect()
    start(app, connection, pay, "o1")
    assert status(connection) == "INTRANS"
    assert found(foreign) == ([], [])
    connection.rollback()
    assert found(foreign) == ([], [])


def test_with_connection_an_exception_undoes_the_flows_too(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any]
) -> None:
    with suppress(ZeroDivisionError), connect() as connection:
        connection.execute("INSERT INTO cart VALUES ('c1')")
        start(app, connection, pay, "o1")
        raise ZeroDivisionError
    with connect() as connection:
        start(app, connection, pay, "o2")
    assert found(foreign) == ([], ["order:o2"])


def test_in_autocommit_mode_flows_start_when_the_block_ends(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any]
) -> None:
    connection = connect(autocommit=True)
    assert start(app, connection, pay, "o1", "o2") == [True, True]
    assert status(connection) == "IDLE"
    assert found(foreign) == ([], ["order:o1", "order:o2"])


@pytest.mark.parametrize("loss", ["of the question", "of the answer"])
def test_in_autocommit_mode_a_commit_without_an_answer_is_an_unknown_outcome_and_trying_again_is_safe(
    app: App, url: str, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any], loss: Loss
) -> None:
    with closing(Proxy(url)) as proxy, closing(psycopg.connect(proxy.url, autocommit=True)) as connection:
        proxy.trap("INSERT INTO stagepost_accepted", loss)
        with pytest.raises(OutcomeUnknown, match="Try again with the same ids"):
            start(app, connection, pay, "o1", "o2")
    assert start(app, connect(autocommit=True), pay, "o1", "o2") == [loss == "of the question"] * 2
    assert found(foreign) == ([], ["order:o1", "order:o2"])


def test_in_the_callers_transaction_a_connection_that_is_lost_means_that_nothing_was_sent(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any]
) -> None:
    connection = connect()
    connection.execute("SELECT 1")
    terminate(foreign, connection.info.backend_pid)
    with pytest.raises(NothingSent):
        start(app, connection, pay, "o1")
    assert found(foreign) == ([], [])


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_block_of_the_callers_is_joined(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any], autocommit: bool
) -> None:
    connection = connect(autocommit=autocommit)
    with connection.transaction():
        connection.execute("INSERT INTO cart VALUES ('c1')")
        start(app, connection, pay, "o1")
        with connection.transaction(force_rollback=True):
            start(app, connection, pay, "o2")
        assert found(foreign) == ([], [])
    assert status(connection) == "IDLE"
    assert found(foreign) == (["c1"], ["order:o1"])


def conflicting(app: App, connection: object, target: Target[Order, None]) -> None:
    with app.initiate(connection=connection) as out:
        out.send(target, Order("fresh"), flow_id="order:fresh")
        out.send(target, Order("something else"), flow_id="order:o1")


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_conflict_leaves_the_callers_own_work_and_nothing_of_the_block(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any], autocommit: bool
) -> None:
    app.start(pay, Order("o1"), flow_id="order:o1")
    connection = connect(autocommit=autocommit)
    connection.execute("INSERT INTO cart VALUES ('c1')")
    with pytest.raises(IdConflict):
        conflicting(app, connection, pay)
    assert status(connection) == ("IDLE" if autocommit else "INTRANS")
    connection.execute("INSERT INTO cart VALUES ('c2')")
    connection.commit()
    assert found(foreign) == (["c1", "c2"], ["order:o1"])


def test_an_exception_in_the_block_writes_nothing_and_opens_nothing(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any]
) -> None:
    connection = connect()
    with suppress(ZeroDivisionError), app.initiate(connection=connection) as out:
        out.send(pay, Order("o1"), flow_id="order:o1")
        raise ZeroDivisionError
    assert status(connection) == "IDLE"
    assert found(foreign) == ([], [])


class LowerCaseLoader(Loader):
    def load(self, data: Any) -> str:
        return bytes(data).decode().lower()


class UpperCaseDumper(StrDumper):
    def dump(self, obj: str) -> Any:
        return super().dump(obj.upper())


class TextualLoader(Loader):
    """Gives a number or a truth value as the server's text."""

    format = Format.BINARY

    def load(self, data: Any) -> str:
        return bytes(data).hex()


def register_odd_adapters(context: AdaptContext) -> None:
    context.adapters.register_dumper(str, UpperCaseDumper)
    for type_name in ("text", "name"):
        context.adapters.register_loader(type_name, LowerCaseLoader)
    for type_name in ("bool", "int4", "int8"):
        context.adapters.register_loader(type_name, TextualLoader)


def with_odd_adapters(connection: psycopg.Connection[Any]) -> None:
    register_odd_adapters(connection)


def with_another_search_path(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE SCHEMA mine")
    connection.execute("SET search_path TO mine, public")


def with_a_short_lock_timeout(connection: psycopg.Connection[Any]) -> None:
    connection.execute("SET lock_timeout TO '3s'")


SETTINGS: dict[str, tuple[dict[str, Any], Callable[[psycopg.Connection[Any]], None] | None]] = {
    "the driver's defaults": ({}, None),
    "factories": ({"row_factory": dict_row, "cursor_factory": psycopg.ClientCursor}, None),
    "statements prepared at once": ({"prepare_threshold": 0}, None),
    "statements never prepared": ({"prepare_threshold": None}, None),
    "adapters": ({}, with_odd_adapters),
    "LATIN1": ({"client_encoding": "LATIN1"}, None),
    "SQL_ASCII": ({"client_encoding": "SQL_ASCII"}, None),
    "read committed": ({"options": "-c default_transaction_isolation=read\\ committed"}, None),
    "repeatable read": ({"options": "-c default_transaction_isolation=repeatable\\ read"}, None),
    "serializable": ({"options": "-c default_transaction_isolation=serializable"}, None),
    "commits that do not wait": ({"options": "-c synchronous_commit=off"}, None),
    "a search path": ({}, with_another_search_path),
    "a lock timeout": ({}, with_a_short_lock_timeout),
}
# What the flows' ids hold beyond ASCII: LATIN1 has the first, and no other.
NAMES = ("o1", "ö2", "5 €")
SEEN_SETTINGS = "SELECT name, setting FROM pg_settings WHERE context = 'user' ORDER BY name"


@contextmanager
def in_pipeline_mode(connection: psycopg.Connection[Any], *, is_it: bool) -> Iterator[None]:
    with connection.pipeline() if is_it else nullcontext():
        yield


@pytest.mark.parametrize("is_pipelined", [False, True], ids=["plain", "pipeline mode"])
@pytest.mark.parametrize("autocommit", [False, True], ids=["transaction", "autocommit"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_whatever_the_caller_has_set_flows_start_once_and_every_one_that_was_accepted_has_its_message(
    app: App,
    connect: Connect,
    pay: Target[Order, None],
    foreign: psycopg.Connection[Any],
    setting: str,
    autocommit: bool,
    is_pipelined: bool,
) -> None:
    options, prepare = SETTINGS[setting]
    connection = connect(autocommit=autocommit, **options)
    if prepare is not None:
        prepare(connection)
    connection.commit()
    before = psycopg.RawCursor(connection, row_factory=dict_row).execute(SEEN_SETTINGS).fetchall()
    connection.commit()
    with in_pipeline_mode(connection, is_it=is_pipelined):
        connection.execute("INSERT INTO cart VALUES ('c1')")
        assert start(app, connection, pay, *NAMES) == [True] * 3
        assert start(app, connection, pay, *NAMES) == [False] * 3
        connection.execute("INSERT INTO cart VALUES ('c2')")
        after = psycopg.RawCursor(connection, row_factory=dict_row).execute(SEEN_SETTINGS).fetchall()
        connection.commit()
    assert after == before
    assert found(foreign) == (["c1", "c2"], [f"order:{name}" for name in NAMES])
    assert accepted_without_a_message(foreign) == []


def test_adapters_that_are_registered_for_all_connections_change_nothing(
    connect: Connect, url: str, foreign: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: what is registered there is there for good."""
    done = subprocess.run(
        [sys.executable, "-c", WITH_GLOBAL_ADAPTERS, url],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.split() == ["[True]", "[False]", "[True]", "handled"], done.stderr
    assert found(foreign) == ([], [])
    assert foreign.execute("SELECT key FROM stagepost_accepted WHERE scope <> 'pay'").fetchall() == []


WITH_GLOBAL_ADAPTERS = """
import sys
import psycopg
from tests.store.test_callers_postgres_connection import Order, register_odd_adapters, start

register_odd_adapters(psycopg.adapters)

from stagepost import App, Context
from stagepost.testing import Harness

app = App("shop", database=sys.argv[1])

@app.endpoint("pay")
def pay(ctx: Context, order: Order) -> None:
    print("handled") if order.id == "O2" else None

with psycopg.connect(sys.argv[1]) as connection:
    print(start(app, connection, pay, "o1"))
    print(start(app, connection, pay, "o1"))
print([app.start(pay, Order("O2"), flow_id="o2").is_new])
harness = Harness(app)
harness.drain()
harness.close()
"""


def accepted_without_a_message(foreign: psycopg.Connection[Any]) -> list[str]:
    found = foreign.execute(
        "SELECT key FROM stagepost_accepted WHERE key NOT IN (SELECT message_id FROM stagepost_ready)"
    )
    return [key for (key,) in found]


def test_a_transaction_that_the_caller_began_by_hand_in_pipeline_mode_stays_theirs(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any]
) -> None:
    """The driver has not heard of it yet."""
    connection = connect(autocommit=True)
    with connection.pipeline():
        connection.execute("BEGIN")
        assert start(app, connection, pay, "o1") == [True]
        connection.execute("ROLLBACK")
    assert found(foreign) == ([], [])
    assert foreign.execute("SELECT * FROM stagepost_accepted").fetchall() == []


def test_a_statement_of_the_callers_that_failed_in_pipeline_mode_is_the_callers_own_error(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any]
) -> None:
    connection = connect()
    with suppress(psycopg.errors.PipelineAborted), connection.pipeline():
        connection.execute("SELECT 1")
        connection.execute("INSERT INTO basket VALUES (1)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            start(app, connection, pay, "o1")
    connection.rollback()
    assert found(foreign) == ([], [])


@pytest.mark.parametrize("is_pipelined", [False, True], ids=["plain", "pipeline mode"])
@pytest.mark.parametrize("autocommit", [False, True], ids=["transaction", "autocommit"])
def test_a_message_that_cannot_be_written_takes_its_acceptance_along(
    app: App,
    connect: Connect,
    pay: Target[Order, None],
    foreign: psycopg.Connection[Any],
    autocommit: bool,
    is_pipelined: bool,
) -> None:
    foreign.execute("ALTER TABLE stagepost_ready ADD CHECK (flow_id <> 'order:o2')")
    connection = connect(autocommit=autocommit)
    with in_pipeline_mode(connection, is_it=is_pipelined):
        with pytest.raises(NothingSent, match="violates check constraint"):
            start(app, connection, pay, "o1", "o2")
        assert start(app, connection, pay, "o1") == [True]
        connection.commit()
    assert found(foreign) == ([], ["order:o1"])
    assert accepted_without_a_message(foreign) == []


def test_a_failed_transaction_an_open_copy_and_a_closed_connection_start_nothing(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any]
) -> None:
    connection = connect()
    with pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("INSERT INTO basket VALUES (1)")
    with pytest.raises(NothingSent, match="current transaction is aborted"):
        start(app, connection, pay, "o1")
    connection.rollback()
    with connection.cursor().copy("COPY cart FROM STDIN") as copy:
        with pytest.raises(NothingSent):
            start(app, connection, pay, "o1")
        copy.write_row(["c1"])
    connection.commit()
    connection.close()
    with pytest.raises(NothingSent, match="closed"):
        start(app, connection, pay, "o1")
    assert found(foreign) == (["c1"], [])


def test_a_transaction_in_which_flows_were_started_can_be_prepared_by_its_owner(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any]
) -> None:
    connection = connect()
    xid = connection.xid(0, "order:o1", "shop")
    connection.tpc_begin(xid)
    assert start(app, connection, pay, "o1") == [True]
    connection.tpc_prepare()
    assert found(foreign) == ([], [])
    connection.tpc_commit()
    assert found(foreign) == ([], ["order:o1"])


def is_notified(url: str, begin: Callable[[], object]) -> bool:
    with closing(psycopg.connect(url, autocommit=True)) as listener:
        listener.execute("LISTEN stagepost")
        begin()
        # What was sent before the answer to this comes before it.
        listener.execute("SELECT 1")
        return bool(list(listener.notifies(timeout=0)))


def test_a_commit_of_the_initiations_own_wakes_those_who_wait(
    app: App, connect: Connect, pay: Target[Order, None], url: str
) -> None:
    assert is_notified(url, lambda: start(app, connect(autocommit=True), pay, "o1"))


def test_where_no_transaction_can_be_prepared_the_callers_commit_wakes_those_who_wait(
    default_postgres: OwnServer,
) -> None:
    url = default_postgres.new_database()
    app = App("shop", database=url)
    pay: Target[Order, None] = app.remote("pay", Order)

    def begin() -> None:
        with psycopg.connect(url) as connection:
            start(app, connection, pay, "o1")

    assert is_notified(url, begin)


@pytest.mark.parametrize("thing", ["postgresql://shop", 17, object()], ids=lambda each: type(each).__name__)
def test_what_is_no_connection_is_refused(app: App, pay: Target[Order, None], thing: object) -> None:
    with pytest.raises(DeclarationError, match=rf"takes a psycopg\.Connection to .*, not a {type(thing).__name__}"):
        start(app, thing, pay, "o1")


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("has_tables", [True, False])
def test_a_connection_to_another_database_is_refused_and_left_as_it_was(
    app: App, pay: Target[Order, None], postgres_server: Server, has_tables: bool, autocommit: bool
) -> None:
    other = postgres_server.new_database()
    if has_tables:
        migrate_database(other)
    with closing(psycopg.connect(other, autocommit=autocommit)) as connection:
        with pytest.raises(DeclarationError, match="a connection to another database than"):
            start(app, connection, pay, "o1")
        assert status(connection) == "IDLE"
        with connection.transaction():
            connection.execute("CREATE TABLE cart (id text)")
            with pytest.raises(DeclarationError, match="a connection to another database than"):
                start(app, connection, pay, "o1")
            connection.execute("INSERT INTO cart VALUES ('c1')")
        assert connection.execute("SELECT * FROM cart").fetchall() == [("c1",)]
    postgres_server.drop_database(other)


def test_a_callers_connection_that_is_lost_is_told_in_stageposts_words(
    app: App, connect: Connect, pay: Target[Order, None], foreign: psycopg.Connection[Any]
) -> None:
    connection = connect()
    terminate(foreign, connection.info.backend_pid)
    with pytest.raises(StagepostError):
        start(app, connection, pay, "o1")
