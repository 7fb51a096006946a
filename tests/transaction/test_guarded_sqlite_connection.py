"""SQLite's own connection, lent to a handler: nothing the handler does with it may end, or escape, the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import Context, Target, TransactionBoundary, TransactionEnded
from stagepost.app.app import App
from stagepost.store.sqlite.boundary import forbidden
from stagepost.transaction.outcome import Buried, Completed, Redelivered
from tests.transaction.guarded import NewHarness, Order, Run, Way, each_of_two_runs, keep_and_use
from tests.transaction.test_guarded_connection import ENDINGS_OF_BOTH

if TYPE_CHECKING:
    from tests.conftest import Ledger


@pytest.fixture
def new_database(new_sqlite: Callable[[], str]) -> Callable[[], str]:
    return new_sqlite


# Ending the transaction by a statement

PAST_THE_GUARD: dict[str, Way] = {
    "sqlite3.Cursor": lambda ctx, statement: sqlite3.Cursor(ctx.connection).execute(statement),
    "sqlite3.Connection.cursor": lambda ctx, statement: sqlite3.Connection.cursor(
        ctx.connection, sqlite3.Cursor
    ).execute(statement),
    "sqlite3.Connection.execute": lambda ctx, statement: sqlite3.Connection.execute(ctx.connection, statement),
}


@pytest.mark.parametrize(
    "statement", [*ENDINGS_OF_BOTH, "COMMIT TRANSACTION;", "BEGIN IMMEDIATE", "\ufeffCOMMIT", "\ufeff ROLLBACK"]
)
@pytest.mark.parametrize("way", PAST_THE_GUARD)
def test_a_statement_that_would_end_the_transaction_is_refused_whatever_way_it_comes(
    run: Run, ledger: Ledger, way: str, statement: str
) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "never")
        with pytest.raises(sqlite3.Error, match=r"not authorized|within a transaction"):
            PAST_THE_GUARD[way](ctx, statement)
        ctx.refuse("now undo it")

    assert isinstance(run(handle), Buried)
    assert ledger.entries == []


def test_the_text_of_stageposts_own_commit_is_refused_too(run: Run, ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "never")
        with pytest.raises(sqlite3.Error, match="not authorized"):
            sqlite3.Cursor(ctx.connection).execute("COMMIT -- stagepost")
        ctx.refuse("now undo it")

    assert isinstance(run(handle, orders=2), Buried)
    assert ledger.entries == []


def test_the_authorizer_is_not_the_handlers_to_remove(run: Run, ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "never")
        with suppress(TransactionBoundary):
            ctx.connection.set_authorizer(None)
        with pytest.raises(sqlite3.Error, match="not authorized"):
            sqlite3.Cursor(ctx.connection).execute("COMMIT")
        ctx.refuse("now undo it")

    assert isinstance(run(handle), Buried)
    assert ledger.entries == []


# Ending it by a call


DRIVERS_OWN: dict[str, Callable[[Any], object]] = {
    "commit": sqlite3.Connection.commit,
    "rollback": sqlite3.Connection.rollback,
    "__exit__": lambda connection: sqlite3.Connection.__exit__(connection, None, None, None),
    "cursor.executescript": lambda connection: sqlite3.Cursor(connection).executescript("SELECT 1"),
}


@pytest.mark.parametrize("call", DRIVERS_OWN)
def test_the_drivers_own_methods_cannot_end_the_transaction_either(
    run: Run, ledger: Ledger, outside: sqlite3.Connection, call: str
) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "once")
        with pytest.raises((sqlite3.Error, TransactionBoundary)):
            DRIVERS_OWN[call](ctx.connection)
        assert ctx.connection.in_transaction
        assert outside.execute("SELECT count(*) FROM ledger").fetchone() == (0,)

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["once"]


# A part may be undone


def test_a_savepoint_lets_a_handler_undo_a_part(run: Run, ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "kept")
        ctx.sql("SAVEPOINT part")
        ledger.write(ctx, "undone")
        ctx.sql("ROLLBACK TO part")
        ctx.sql("ROLLBACK TRANSACTION TO SAVEPOINT part")
        ctx.sql("RELEASE part")
        ctx.sql("SAVEPOINT part")
        ledger.write(ctx, "kept too")
        ctx.sql("RELEASE SAVEPOINT part")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["kept", "kept too"]


@pytest.mark.parametrize("name", ["part", "stagepost"])
def test_a_savepoint_that_was_the_first_statement_and_is_left_open_commits_with_the_stage(
    run: Run, ledger: Ledger, name: str
) -> None:
    def handle(ctx: Context) -> None:
        ctx.sql(f"SAVEPOINT {name}")
        ledger.write(ctx, "undone")
        ctx.sql(f"ROLLBACK TO {name}")
        ledger.write(ctx, "kept")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["kept"]


def test_a_comment_does_not_make_a_rollback_to_a_savepoint_a_rollback(run: Run, ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        ctx.sql("SAVEPOINT part")
        ctx.sql("ROLLBACK /* only */ TO part")
        ledger.write(ctx, "kept")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["kept"]


# The transaction ends silently


def end_by_conflict(ctx: Context) -> None:
    ctx.sql("CREATE TABLE once (id INTEGER PRIMARY KEY)")
    ctx.sql("INSERT INTO once VALUES (1)")
    ctx.sql("INSERT OR ROLLBACK INTO once VALUES (1)")


def end_by_interrupt(ctx: Context) -> None:
    ctx.connection.create_function("stop", 0, ctx.connection.interrupt)
    ctx.sql("INSERT INTO ledger SELECT stop() FROM (SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3)")


def end_by_trigger(ctx: Context) -> None:
    ctx.sql("CREATE TRIGGER no BEFORE INSERT ON ledger BEGIN SELECT RAISE(ROLLBACK, 'no'); END")
    ctx.sql("INSERT INTO ledger VALUES ('rolls back')")


SILENT_ENDS = [end_by_conflict, end_by_interrupt, end_by_trigger]


@pytest.mark.parametrize("end", SILENT_ENDS)
def test_nothing_more_reaches_the_database_once_the_transaction_has_ended_under_its_handler(
    run: Run, ledger: Ledger, end: Callable[[Context], None]
) -> None:
    refused: list[str] = []
    met: list[sqlite3.Error] = []

    def handle(ctx: Context) -> None:
        ledger.write(ctx, "before")
        try:
            end(ctx)
        except sqlite3.Error as error:
            met.append(error)
        for write in (
            lambda: ledger.write(ctx, "after"),
            lambda: ctx.connection.cursor().execute("INSERT INTO ledger VALUES ('after')"),
        ):
            try:
                write()
            except TransactionEnded as error:
                refused.append(str(error))

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, TransactionEnded)
    assert [outcome.error.__cause__] == met
    assert len(refused) == 2
    assert "the transaction of pay ended while its handler ran" in refused[0]
    assert "ON CONFLICT ABORT" in refused[0]
    assert ledger.entries == []


@pytest.mark.parametrize("end", SILENT_ENDS)
def test_an_attempt_whose_transaction_ended_with_its_last_statement_fails(
    run: Run, ledger: Ledger, end: Callable[[Context], None]
) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "before")
        with suppress(sqlite3.Error):
            end(ctx)

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, TransactionEnded)
    assert isinstance(outcome.error.__cause__, sqlite3.Error)
    assert ledger.entries == []


def test_a_failed_statement_that_leaves_the_transaction_open_is_for_the_handler_to_catch(
    run: Run, ledger: Ledger
) -> None:
    def handle(ctx: Context) -> None:
        ctx.sql("CREATE TABLE once (id INTEGER PRIMARY KEY)")
        ctx.sql("INSERT INTO once VALUES (1)")
        try:
            ctx.sql("INSERT INTO once VALUES (1)")
        except sqlite3.IntegrityError:
            ledger.write(ctx, "known already")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["known already"]


# What was kept


def test_rows_that_were_left_unread_are_not_there_in_a_later_run(app: App, harness: NewHarness, ledger: Ledger) -> None:
    outcome = keep_and_use(
        app,
        harness,
        lambda ctx: ctx.connection.cursor().execute("SELECT 1 UNION SELECT 2"),
        lambda cursor: cursor.fetchone(),
    )
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, sqlite3.ProgrammingError)


def test_a_select_that_is_left_unfinished_holds_neither_the_commit_nor_a_snapshot(
    run: Run, ledger: Ledger, outside: sqlite3.Connection
) -> None:
    kept: list[Any] = []

    def handle(ctx: Context) -> None:
        ctx.sql("INSERT INTO ledger VALUES ('a'), ('b'), ('c')")
        cursor = ctx.connection.cursor().execute("SELECT entry FROM ledger")
        kept.append((cursor, cursor.fetchone()))

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["a", "b", "c"]
    # Every frame can be moved into the file only when no reader stands in the way.
    outside.execute("INSERT INTO ledger VALUES ('d')")
    busy, frames, moved = outside.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert (busy, frames, moved) == (0, 0, 0)


def test_an_open_blob_is_part_of_the_transaction_and_closed_with_it(run: Run, outside: sqlite3.Connection) -> None:
    kept: list[sqlite3.Blob] = []
    outside.execute("CREATE TABLE picture (data BLOB)")
    outside.execute("INSERT INTO picture VALUES (zeroblob(4))")

    def handle(ctx: Context) -> None:
        blob = ctx.connection.blobopen("picture", "data", 1)
        assert ctx.connection.in_transaction
        blob.write(b"abcd")
        kept.append(blob)
        assert outside.execute("SELECT data FROM picture").fetchone() == (b"\0\0\0\0",)

    assert isinstance(run(handle), Completed)
    assert outside.execute("SELECT data FROM picture").fetchone() == (b"abcd",)
    with pytest.raises(sqlite3.ProgrammingError):
        kept[0].read()


def test_a_blob_written_by_a_run_that_fails_is_as_it_was(run: Run, outside: sqlite3.Connection) -> None:
    outside.execute("CREATE TABLE picture (data BLOB)")
    outside.execute("INSERT INTO picture VALUES (zeroblob(4))")

    def handle(ctx: Context) -> None:
        ctx.connection.blobopen("picture", "data", 1).write(b"abcd")
        raise ValueError("undo it")

    assert isinstance(run(handle), Redelivered)
    assert outside.execute("SELECT data FROM picture").fetchone() == (b"\0\0\0\0",)


# What a handler leaves behind on the connection


def test_a_row_factory_is_for_the_run_that_set_it(app: App, harness: NewHarness, ledger: Ledger) -> None:
    seen: list[object] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        seen.append(type(ctx.connection.cursor().execute("SELECT 'text' AS t").fetchone()))
        seen.append(type(ctx.sql("SELECT 'text' AS t").scalar()))
        ctx.connection.row_factory = sqlite3.Row
        ctx.connection.text_factory = bytes
        assert ctx.sql("SELECT 1 AS one").one()["one"] == 1

    for n in range(2):
        app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
    assert [type(each) for each in harness().drain()] == [Completed, Completed]
    assert seen == [tuple, str, tuple, str]


def test_a_text_factory_changes_nothing_for_stageposts_own_reading(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    ship: Target[Order, None] = app.remote("ship", Order)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.connection.text_factory = bytes
        with ctx.initiate() as out:
            repeated = out.send(ship, order, flow_id="order:0")
        ledger.write(ctx, f"new: {repeated.is_new}")

    app.start(ship, Order("o0"), flow_id="order:0")
    app.start(pay, Order("o0"), flow_id="flow")
    harness().drain()
    assert ledger.entries == ["new: False"]


def test_what_the_users_tables_declare_of_each_other_holds_in_a_stage(
    run: Run, ledger: Ledger, outside: sqlite3.Connection
) -> None:
    outside.execute("CREATE TABLE account (id TEXT PRIMARY KEY)")
    outside.execute("CREATE TABLE entry (account TEXT REFERENCES account)")

    def handle(ctx: Context) -> None:
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            ctx.sql("INSERT INTO entry VALUES ('nobody')")
        ctx.sql("INSERT INTO account VALUES ('somebody')")
        ctx.sql("INSERT INTO entry VALUES ('somebody')")

    assert isinstance(run(handle), Completed)
    assert outside.execute("SELECT * FROM entry").fetchall() == [("somebody",)]


@pytest.mark.parametrize("gap", ["/**/", "/* * / */", "--\n", ";", " \t"])
def test_any_number_of_comments_is_looked_through_in_no_time(gap: str) -> None:
    assert forbidden(gap * 10_000 + "'") is None
    assert forbidden(gap * 10_000 + "commit") == "COMMIT"
    assert forbidden(f"CREATE{gap * 10_000} TEMP TABLE x (a)") is not None


def test_a_progress_handler_is_for_the_run_that_set_it(app: App, harness: NewHarness) -> None:
    runs = each_of_two_runs(app, harness, lambda ctx: ctx.connection.set_progress_handler(lambda: 1, 1))
    assert [type(each) for each in runs] == [Completed, Completed]


class Total:
    def step(self, value: int) -> None: ...

    def finalize(self) -> int:
        return -1


# What a handler does to the connection, and a statement whose answer would show it to the next one.
LEFT: dict[str, tuple[Callable[[sqlite3.Connection], object], str, object]] = {
    "a function": (lambda c: c.create_function("shout", 1, str.upper), "SELECT shout('a')", "no such function: shout"),
    "one of SQLite's own": (lambda c: c.create_function("lower", 1, str.upper), "SELECT lower('A')", ("a",)),
    "an aggregate": (lambda c: c.create_aggregate("sum", 1, Total), "SELECT sum(1)", (1,)),
    "a collation": (
        lambda c: c.create_collation("odd", lambda a, b: 0),
        "SELECT 'a' = 'b' COLLATE odd",
        "no such collation sequence: odd",
    ),
    "a limit": (lambda c: c.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10), "SELECT length(zeroblob(100))", (100,)),
    "a row factory": (lambda c: setattr(c, "row_factory", sqlite3.Row), "SELECT 1", (1,)),
    "a text factory": (lambda c: setattr(c, "text_factory", bytes), "SELECT 'a'", ("a",)),
}


@pytest.mark.parametrize(("leave", "statement", "answer"), LEFT.values(), ids=list(LEFT))
def test_what_a_handler_makes_of_the_connection_is_not_there_for_the_next_one(
    leave: Callable[[sqlite3.Connection], object],
    statement: str,
    answer: object,
    app: App,
    harness: NewHarness,
    ledger: Ledger,
) -> None:
    seen: list[object] = []

    def handle(ctx: Context) -> None:
        if not seen:
            seen.append(leave)
            leave(ctx.connection)
            ledger.write(ctx, "written")
            return
        try:
            seen.append(ctx.connection.execute(statement).fetchone())
        except sqlite3.Error as error:
            seen.append(str(error))

    assert [type(each) for each in each_of_two_runs(app, harness, handle)] == [Completed, Completed]
    assert seen[1:] == [answer]
    assert ledger.entries == ["written"]


def test_rows_that_are_made_while_they_are_written_are_part_of_the_transaction_too(run: Run, ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        def entries() -> Iterator[tuple[str]]:
            for n in range(3):
                ledger.write(ctx, f"made {n}")
                yield (f"written {n}",)

        ctx.connection.executemany("INSERT INTO ledger VALUES (?)", entries())
        ctx.refuse("undo it all")

    assert isinstance(run(handle), Buried)
    assert ledger.entries == []


@pytest.mark.parametrize("keep", ["the connection", "a cursor", "the driver's cursor"])
def test_a_connection_closed_past_the_guard_holds_up_nobody(
    app: App, ledger: Ledger, harness: NewHarness, keep: str
) -> None:
    """SQLite keeps the transaction of a closed connection for as long as one of its statements is alive, and the
    attempt's own error keeps the handler's names alive."""

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        if order.id == "bad" and ctx.attempt == 1:
            connection = ctx.connection
            match keep:
                case "the connection":
                    connection.execute("SELECT 1 UNION SELECT 2")
                case "a cursor":
                    cursor = connection.execute("SELECT 1 UNION SELECT 2")
                case "the driver's cursor":
                    cursor = sqlite3.Cursor(connection).execute("SELECT 1 UNION SELECT 2")  # noqa: F841 - a name to keep it
            sqlite3.Connection.close(connection)

    app.start(pay, Order("bad"), flow_id="bad")
    app.start(pay, Order("good"), flow_id="good")
    harness().drain()
    assert sorted(ledger.entries) == ["bad", "good"]
