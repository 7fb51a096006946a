"""``app.initiate(connection=…)``: flows that start when the caller's own transaction commits, and never otherwise."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stagepost import App, Context, DeclarationError, IdConflict, NothingSent, StagepostError, Target
from stagepost.app.app import engine_of
from stagepost.testing import Harness, ManualClock

NewHarness = Callable[..., Harness]


@dataclass
class Order:
    id: str


@pytest.fixture
def new_database(new_sqlite: Callable[[], str]) -> Callable[[], str]:
    return new_sqlite


@pytest.fixture
def path(app: App) -> Path:
    return Path(engine_of(app).store.url.removeprefix("sqlite:///"))


@pytest.fixture
def pay(app: App) -> Target[Order, None]:
    return app.remote("pay", Order)


Connect = Callable[..., sqlite3.Connection]


@pytest.fixture
def connect(path: Path) -> Iterator[Connect]:
    """Connections of the caller's, to a file in which the caller has a table."""
    opened: list[sqlite3.Connection] = []

    def make(**options: Any) -> sqlite3.Connection:
        opened.append(sqlite3.connect(path, **{"timeout": 0, **options}))
        return opened[-1]

    with closing(make()) as first:
        first.execute("CREATE TABLE cart (id TEXT)")
    yield make
    for each in opened:
        each.close()


def start(app: App, connection: object, target: Target[Order, None], *names: str) -> list[bool]:
    with app.initiate(connection=connection) as out:
        handles = [out.send(target, Order(name), flow_id=f"order:{name}") for name in names]
    return [each.is_new for each in handles]


def found(path: Path) -> tuple[list[str], list[str]]:
    """What is committed: the caller's carts, and the flows that have started."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        carts = [cart for (cart,) in connection.execute("SELECT id FROM cart ORDER BY rowid")]
        flows = [flow for (flow,) in connection.execute("SELECT flow_id FROM stagepost_ready ORDER BY id")]
        return carts, flows


# The driver's default: it opens a transaction before the first change


def test_in_the_callers_transaction_flows_start_when_it_commits(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    connection = connect()
    connection.execute("INSERT INTO cart VALUES ('c1')")
    assert start(app, connection, pay, "o1", "o2") == [True, True]
    connection.execute("INSERT INTO cart VALUES ('c2')")
    assert found(path) == ([], [])
    connection.commit()
    assert found(path) == (["c1", "c2"], ["order:o1", "order:o2"])


def test_in_the_callers_transaction_flows_never_start_when_it_rolls_back(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    connection = connect()
    connection.execute("INSERT INTO cart VALUES ('c1')")
    start(app, connection, pay, "o1")
    connection.rollback()
    assert found(path) == ([], [])
    assert start(app, connection, pay, "o1") == [True]
    connection.commit()
    assert found(path) == ([], ["order:o1"])


def test_what_is_started_first_opens_the_transaction_as_any_change_would(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    connection = connect()
    start(app, connection, pay, "o1")
    assert connection.in_transaction
    connection.execute("INSERT INTO cart VALUES ('c1')")
    assert found(path) == ([], [])
    connection.rollback()
    assert found(path) == ([], [])
    with connection:
        start(app, connection, pay, "o2")
    assert found(path) == ([], ["order:o2"])


def test_with_connection_an_exception_undoes_the_flows_too(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    connection = connect()
    with suppress(ZeroDivisionError), connection:
        connection.execute("INSERT INTO cart VALUES ('c1')")
        start(app, connection, pay, "o1")
        raise ZeroDivisionError
    assert found(path) == ([], [])


@pytest.mark.parametrize("level", ["DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_whatever_kind_of_transaction_the_driver_was_told_to_open(
    app: App, path: Path, connect: Connect, pay: Target[Order, None], level: str
) -> None:
    connection = connect(isolation_level=level)
    start(app, connection, pay, "o1")
    assert connection.in_transaction
    connection.commit()
    assert found(path) == ([], ["order:o1"])


# A caller in autocommit mode


def test_in_autocommit_mode_flows_start_when_the_block_ends(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    connection = connect(isolation_level=None)
    assert start(app, connection, pay, "o1", "o2") == [True, True]
    assert not connection.in_transaction
    assert found(path) == ([], ["order:o1", "order:o2"])


def test_a_transaction_that_a_caller_in_autocommit_mode_began_is_joined(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    connection = connect(isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("INSERT INTO cart VALUES ('c1')")
    start(app, connection, pay, "o1")
    assert connection.in_transaction
    assert found(path) == ([], [])
    connection.execute("ROLLBACK")
    assert found(path) == ([], [])


def test_a_savepoint_of_the_callers_undoes_what_was_started_inside_it(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    connection = connect(isolation_level=None)
    connection.execute("BEGIN")
    start(app, connection, pay, "o1")
    connection.execute("SAVEPOINT stagepost")
    start(app, connection, pay, "o2")
    connection.execute("ROLLBACK TO stagepost")
    connection.execute("COMMIT")
    assert found(path) == ([], ["order:o1"])


# Repeats and conflicts


def test_a_repeat_in_the_callers_transaction_starts_nothing(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    app.start(pay, Order("o1"), flow_id="order:o1")
    connection = connect()
    assert start(app, connection, pay, "o1", "o2") == [False, True]
    connection.commit()
    assert found(path) == ([], ["order:o1", "order:o2"])


def conflicting(app: App, connection: object, target: Target[Order, None]) -> None:
    with app.initiate(connection=connection) as out:
        out.send(target, Order("fresh"), flow_id="order:fresh")
        out.send(target, Order("something else"), flow_id="order:o1")


@pytest.mark.parametrize("level", ["", None], ids=["default mode", "autocommit mode"])
def test_a_conflict_leaves_the_callers_own_work_and_nothing_of_the_block(
    app: App, path: Path, connect: Connect, pay: Target[Order, None], level: str | None
) -> None:
    app.start(pay, Order("o1"), flow_id="order:o1")
    connection = connect(isolation_level=level)
    if level is None:
        connection.execute("BEGIN")
    connection.execute("INSERT INTO cart VALUES ('before')")
    with pytest.raises(IdConflict):
        conflicting(app, connection, pay)
    connection.execute("INSERT INTO cart VALUES ('after')")
    connection.commit()
    assert found(path) == (["before", "after"], ["order:o1"])


def test_a_conflict_in_autocommit_mode_leaves_no_transaction_open(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    app.start(pay, Order("o1"), flow_id="order:o1")
    connection = connect(isolation_level=None)
    with pytest.raises(IdConflict):
        conflicting(app, connection, pay)
    assert not connection.in_transaction
    assert found(path) == ([], ["order:o1"])


def test_a_commit_that_is_refused_in_autocommit_mode_means_that_nothing_was_sent_and_leaves_nothing_open(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    """By a constraint that is looked at with the commit: what is left open then would be committed by what follows."""
    connection = connect(isolation_level=None)
    connection.executescript(
        """
        PRAGMA foreign_keys = ON;
        CREATE TABLE parent (id INTEGER PRIMARY KEY);
        CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
        CREATE TRIGGER orphan AFTER INSERT ON stagepost_accepted BEGIN INSERT INTO child VALUES (1); END;
        """
    )
    with pytest.raises(NothingSent, match="FOREIGN KEY constraint failed"):
        start(app, connection, pay, "o1")
    assert not connection.in_transaction
    connection.execute("INSERT INTO parent VALUES (1)")
    assert found(path) == ([], [])


def test_an_exception_in_the_block_writes_nothing_and_opens_nothing(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    connection = connect()
    with suppress(ZeroDivisionError), app.initiate(connection=connection) as out:
        out.send(pay, Order("o1"), flow_id="order:o1")
        raise ZeroDivisionError
    assert not connection.in_transaction
    assert found(path) == ([], [])


# Whatever the caller has set on the connection


class OddCursor(sqlite3.Cursor):
    def execute(self, *arguments: Any) -> Any:
        raise AssertionError("not for Stagepost")


class OddConnection(sqlite3.Connection):
    def cursor(self, factory: Any = OddCursor) -> Any:
        return super().cursor(OddCursor)


def nothing(*_: object) -> None:
    return None


# What a caller may have made of a connection; each is given the connection.
ODD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a row factory": ({}, {"row_factory": sqlite3.Row}),
    "rows that are nothing": ({}, {"row_factory": nothing}),
    "texts as bytes": ({}, {"text_factory": bytes}),
    "texts that are nothing": ({}, {"text_factory": nothing}),
    "cursors of its own": ({"factory": OddConnection}, {}),
    "converters": ({"detect_types": sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES}, {}),
}


@pytest.fixture
def odd_converters() -> Iterator[None]:
    """Known to the whole process, and used by connections that ask for them."""
    for name in ("TEXT", "INTEGER", "BLOB"):
        sqlite3.register_converter(name, nothing)
    yield
    for name in ("TEXT", "INTEGER", "BLOB"):
        sqlite3.converters.pop(name)


@pytest.mark.usefixtures("odd_converters")
@pytest.mark.parametrize(("options", "attributes"), ODD.values(), ids=list(ODD))
def test_whatever_the_caller_has_made_of_the_connection_changes_nothing(
    options: dict[str, Any], attributes: dict[str, Any], app: App, path: Path, connect: Connect
) -> None:
    prices = app.topic("prices", Order)

    @app.subscribe(prices, "billing.on_price")
    def on_price(ctx: Context, order: Order) -> None: ...

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    # Its subscriptions are in the store from now on.
    assert engine_of(app).store
    connection = connect(**options)
    for name, value in attributes.items():
        setattr(connection, name, value)

    def begin(name: str) -> list[bool]:
        with app.initiate(connection=connection) as out:
            sent = out.send(app.target("pay"), Order(name), flow_id=f"pay:{name}")
            published = out.publish(prices, Order(name), flow_id=f"price:{name}")
        return [sent.is_new, published.is_new]

    assert begin("o1") == [True, True]
    assert begin("o1") == [False, False]
    with pytest.raises(IdConflict), app.initiate(connection=connection) as out:
        out.publish(prices, Order("o2"), flow_id="price:o1")
    connection.commit()
    assert {name: getattr(connection, name) for name in attributes} == attributes
    assert found(path) == ([], ["pay:o1", "price:o1"])


# What cannot be joined


@pytest.mark.parametrize(
    "thing", ["sqlite:///shop.db", 17, object(), Path("shop.db")], ids=lambda each: type(each).__name__
)
def test_what_is_no_connection_is_refused(app: App, path: Path, pay: Target[Order, None], thing: object) -> None:
    with pytest.raises(DeclarationError, match=rf"takes a sqlite3\.Connection to .*, not a {type(thing).__name__}"):
        start(app, thing, pay, "o1")


def test_a_connection_to_another_file_is_refused_and_left_as_it_was(
    app: App, path: Path, pay: Target[Order, None], tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        with pytest.raises(DeclarationError, match=r"a connection to .*other\.db, but the app's messages are kept in"):
            start(app, other, pay, "o1")
        assert not other.in_transaction


def test_a_connection_to_a_database_in_memory_is_refused(app: App, path: Path, pay: Target[Order, None]) -> None:
    with (
        closing(sqlite3.connect(":memory:")) as other,
        pytest.raises(DeclarationError, match="a connection to a database in memory"),
    ):
        start(app, other, pay, "o1")


def test_the_file_by_another_name_is_the_same_file(
    app: App, path: Path, connect: Connect, pay: Target[Order, None], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(path.parent)
    with closing(sqlite3.connect(tmp_path / "link" / path.name)) as connection:
        assert start(app, connection, pay, "o1") == [True]
        connection.commit()
    assert found(path)[1] == ["order:o1"]


def test_a_file_that_is_attached_is_not_the_connections_own(
    app: App, path: Path, pay: Target[Order, None], tmp_path: Path
) -> None:
    """Two files do not commit together."""
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("ATTACH ? AS shop", (str(path),))
        with pytest.raises(DeclarationError, match=r"other\.db"):
            start(app, other, pay, "o1")


def test_the_memory_store_has_no_connection_to_join(clock: ManualClock) -> None:
    app = App("shop", database="toy:", clock=clock)
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(DeclarationError, match="memory store"):
        start(app, connection, app.remote("pay", Order), "o1")


def test_a_locked_file_is_told_in_stageposts_words(app: App, connect: Connect, pay: Target[Order, None]) -> None:
    holder, connection = connect(isolation_level=None), connect()
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StagepostError, match="database is locked"):
        start(app, connection, pay, "o1")


def test_an_app_that_was_not_asked_before_does_not_wait_for_the_callers_own_transaction(
    app: App, path: Path, connect: Connect, pay: Target[Order, None]
) -> None:
    """To say what it subscribes to, it would have to write, beside the one who writes."""
    later = App("later", database=app.database)

    @later.subscribe(later.topic("orders", Order), "later.on_order")
    def on_order(ctx: Context, order: Order) -> None: ...

    connection = connect()
    connection.execute("INSERT INTO cart VALUES ('c1')")
    start(later, connection, pay, "o1")
    connection.commit()
    assert found(path) == (["c1"], ["order:o1"])
