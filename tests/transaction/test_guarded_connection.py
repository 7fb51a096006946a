"""SQLite's own connection, lent to a handler: nothing the handler does with it may end, or escape, the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import Context, Target, TransactionBoundary, TransactionEnded
from stagepost.app.app import App
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried, Completed, Outcome, Redelivered

if TYPE_CHECKING:
    from tests.conftest import Ledger

NewHarness = Callable[..., Harness]
Way = Callable[[Context, str], object]


@dataclass
class Order:
    id: str


@pytest.fixture
def new_database(new_sqlite: Callable[[], str]) -> Callable[[], str]:
    return new_sqlite


@pytest.fixture
def run(app: App, ledger: Ledger, harness: NewHarness) -> Callable[..., Outcome]:
    """Runs one handler on one message, once; it is given what ``handle`` does."""

    def once(handle: Callable[[Context], object], *, orders: int = 1) -> Outcome:
        @app.endpoint("pay")
        def pay(ctx: Context, order: Order) -> None:
            handle(ctx)

        for n in range(orders):
            app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
        worker = harness()
        outcomes = [worker.run_one() for _ in range(orders)]
        pending = worker.access.transport.pending(["pay"])
        assert (pending.ready, pending.claimed) == (False, False)
        outcome = outcomes[-1]
        assert outcome is not None
        return outcome

    return once


# The ways in which a handler can run a statement.

WAYS: dict[str, Way] = {
    "ctx.sql": lambda ctx, statement: ctx.sql(statement),
    "cursor.execute": lambda ctx, statement: ctx.connection.cursor().execute(statement),
    "cursor.executemany": lambda ctx, statement: ctx.connection.cursor().executemany(statement, [()]),
    "cursor of the driver's class": lambda ctx, statement: ctx.connection.cursor(sqlite3.Cursor).execute(statement),
    "connection.execute": lambda ctx, statement: ctx.connection.execute(statement),
    "connection.executemany": lambda ctx, statement: ctx.connection.executemany(statement, [()]),
    "sqlite3.Cursor": lambda ctx, statement: sqlite3.Cursor(ctx.connection).execute(statement),
    "sqlite3.Connection.cursor": lambda ctx, statement: sqlite3.Connection.cursor(
        ctx.connection, sqlite3.Cursor
    ).execute(statement),
    "sqlite3.Connection.execute": lambda ctx, statement: sqlite3.Connection.execute(ctx.connection, statement),
}

# Those that look like an ordinary use of the connection.
PLAIN_WAYS = list(WAYS)[:6]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_in_any_way_is_undone_when_the_handler_raises(
    run: Callable[..., Outcome], ledger: Ledger, way: str
) -> None:
    def handle(ctx: Context) -> None:
        WAYS[way](ctx, "INSERT INTO ledger VALUES ('never')")
        raise ValueError("undo it")

    assert isinstance(run(handle), Redelivered)
    assert ledger.entries == []


@pytest.mark.parametrize("way", PLAIN_WAYS)
def test_what_is_written_in_an_ordinary_way_commits_with_the_stage(
    run: Callable[..., Outcome], ledger: Ledger, outside: sqlite3.Connection, way: str
) -> None:
    def handle(ctx: Context) -> None:
        WAYS[way](ctx, "INSERT INTO ledger VALUES ('once')")
        assert outside.execute("SELECT count(*) FROM ledger").fetchone() == (0,)

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["once"]


def test_the_connection_comes_with_the_transaction_open_and_the_message_taken(
    run: Callable[..., Outcome],
) -> None:
    seen: list[object] = []

    def handle(ctx: Context) -> None:
        connection = ctx.connection
        seen.append(connection.in_transaction)
        (count,) = connection.cursor().execute("SELECT count(*) FROM stagepost_ready").fetchone()
        seen.extend([count, connection.in_transaction])

    assert isinstance(run(handle), Completed)
    assert seen == [True, 0, True]


# Ending the transaction by a statement

ENDINGS = [
    "COMMIT",
    "commit",
    "COMMIT TRANSACTION;",
    "END",
    "End Transaction",
    "ROLLBACK",
    "ROLLBACK TRANSACTION",
    "BEGIN",
    "BEGIN IMMEDIATE",
    " \t\n COMMIT",
    ";COMMIT",
    ";;  ;COMMIT",
    "/* x */ COMMIT",
    "/* x\n*/ -- y\n COMMIT",
    "-- nothing\nCOMMIT",
    "/**/;/**/COMMIT/**/",
    "COMMIT -- stagepost",
]


@pytest.mark.parametrize("statement", ENDINGS)
@pytest.mark.parametrize("way", PLAIN_WAYS)
def test_a_statement_that_would_end_the_transaction_is_refused_with_the_reason_and_the_remedy(
    run: Callable[..., Outcome], ledger: Ledger, way: str, statement: str
) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "never")
        WAYS[way](ctx, statement)

    outcome = run(handle)
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, TransactionBoundary)
    assert "was refused in pay" in str(outcome.error)
    assert "ctx.refuse(reason)" in str(outcome.error)
    assert "SAVEPOINT" in str(outcome.error)
    assert ledger.entries == []


@pytest.mark.parametrize("statement", [*ENDINGS[:-1], "\ufeffCOMMIT", "\ufeff ROLLBACK"])
@pytest.mark.parametrize("way", ["sqlite3.Cursor", "sqlite3.Connection.cursor", "sqlite3.Connection.execute"])
def test_a_statement_that_would_end_the_transaction_is_refused_whatever_way_it_comes(
    run: Callable[..., Outcome], ledger: Ledger, way: str, statement: str
) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "never")
        with pytest.raises(sqlite3.Error, match=r"not authorized|within a transaction"):
            WAYS[way](ctx, statement)
        ctx.refuse("now undo it")

    assert isinstance(run(handle), Buried)
    assert ledger.entries == []


def test_the_text_of_stageposts_own_commit_is_refused_too(run: Callable[..., Outcome], ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "never")
        with pytest.raises(sqlite3.Error, match="not authorized"):
            sqlite3.Cursor(ctx.connection).execute("COMMIT -- stagepost")
        ctx.refuse("now undo it")

    assert isinstance(run(handle, orders=2), Buried)
    assert ledger.entries == []


def test_the_authorizer_is_not_the_handlers_to_remove(run: Callable[..., Outcome], ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "never")
        with suppress(TransactionBoundary):
            ctx.connection.set_authorizer(None)
        with pytest.raises(sqlite3.Error, match="not authorized"):
            sqlite3.Cursor(ctx.connection).execute("COMMIT")
        ctx.refuse("now undo it")

    assert isinstance(run(handle), Buried)
    assert ledger.entries == []


@pytest.mark.parametrize("statement", ["VACUUM", "ATTACH ':memory:' AS other", "DETACH other", "/**/ vacuum"])
def test_what_cannot_be_part_of_the_transaction_is_refused(run: Callable[..., Outcome], statement: str) -> None:
    outcome = run(lambda ctx: ctx.sql(statement))
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, TransactionBoundary)


# Ending it by a call


def enter(connection: Any) -> None:
    with connection:
        pass


def set_isolation_level(connection: Any, value: str | None) -> None:
    connection.isolation_level = value


CALLS: dict[str, Callable[[Any], object]] = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "with": enter,
    "executescript": lambda connection: connection.executescript("INSERT INTO ledger VALUES ('script')"),
    "cursor.executescript": lambda connection: connection.cursor().executescript("SELECT 1"),
    "close": lambda connection: connection.close(),
    "isolation_level = None": lambda connection: set_isolation_level(connection, None),
    "isolation_level = ''": lambda connection: set_isolation_level(connection, ""),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("touched", [True, False], ids=["after a statement", "before any statement"])
def test_a_call_that_would_end_the_transaction_is_refused_with_the_reason(
    run: Callable[..., Outcome], ledger: Ledger, call: str, touched: bool
) -> None:
    def handle(ctx: Context) -> None:
        if touched:
            ledger.write(ctx, "never")
        CALLS[call](ctx.connection)

    outcome = run(handle)
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, TransactionBoundary)
    assert "was refused in pay" in str(outcome.error)
    assert ledger.entries == []


@pytest.mark.parametrize("call", CALLS)
def test_a_handler_that_swallows_the_refusal_has_changed_nothing_by_its_call(
    run: Callable[..., Outcome], ledger: Ledger, outside: sqlite3.Connection, call: str
) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "first")
        with pytest.raises(TransactionBoundary):
            CALLS[call](ctx.connection)
        assert outside.execute("SELECT count(*) FROM ledger").fetchone() == (0,)
        ledger.write(ctx, "second")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["first", "second"]


DRIVERS_OWN: dict[str, Callable[[Any], object]] = {
    "commit": sqlite3.Connection.commit,
    "rollback": sqlite3.Connection.rollback,
    "__exit__": lambda connection: sqlite3.Connection.__exit__(connection, None, None, None),
    "cursor.executescript": lambda connection: sqlite3.Cursor(connection).executescript("SELECT 1"),
}


@pytest.mark.parametrize("call", DRIVERS_OWN)
def test_the_drivers_own_methods_cannot_end_the_transaction_either(
    run: Callable[..., Outcome], ledger: Ledger, outside: sqlite3.Connection, call: str
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


def test_a_savepoint_lets_a_handler_undo_a_part(run: Callable[..., Outcome], ledger: Ledger) -> None:
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
    run: Callable[..., Outcome], ledger: Ledger, name: str
) -> None:
    def handle(ctx: Context) -> None:
        ctx.sql(f"SAVEPOINT {name}")
        ledger.write(ctx, "undone")
        ctx.sql(f"ROLLBACK TO {name}")
        ledger.write(ctx, "kept")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["kept"]


def test_a_comment_does_not_make_a_rollback_to_a_savepoint_a_rollback(
    run: Callable[..., Outcome], ledger: Ledger
) -> None:
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
    run: Callable[..., Outcome], ledger: Ledger, end: Callable[[Context], None]
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
    assert "the transaction of pay ended under its handler" in refused[0]
    assert "ON CONFLICT ABORT" in refused[0]
    assert ledger.entries == []


@pytest.mark.parametrize("end", SILENT_ENDS)
def test_an_attempt_whose_transaction_ended_with_its_last_statement_fails(
    run: Callable[..., Outcome], ledger: Ledger, end: Callable[[Context], None]
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


def test_what_the_handler_raised_itself_is_the_cause_though_the_transaction_ended(
    run: Callable[..., Outcome], ledger: Ledger
) -> None:
    outcome = run(end_by_conflict)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, sqlite3.IntegrityError)


def test_a_failed_statement_that_leaves_the_transaction_open_is_for_the_handler_to_catch(
    run: Callable[..., Outcome], ledger: Ledger
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


def keep_and_use(
    app: App, harness: NewHarness, keep: Callable[[Context], Any], use: Callable[[Any], object]
) -> Outcome:
    """Keeps something in one run and uses it in a later one, which has a transaction open by then."""
    kept: list[Any] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        if not kept:
            kept.append(keep(ctx))
            return
        ctx.sql("SELECT 1")
        use(kept[0])

    for n in range(2):
        app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
    worker = harness()
    assert isinstance(worker.run_one(), Completed)
    outcome = worker.run_one()
    assert outcome is not None
    return outcome


INSERT = "INSERT INTO ledger VALUES ('late')"


@pytest.mark.parametrize(
    "use",
    [
        lambda cursor: cursor.execute(INSERT),
        lambda cursor: cursor.executemany(INSERT, [()]),
        lambda cursor: cursor.execute("SELECT 1"),
    ],
    ids=["execute", "executemany", "SELECT"],
)
def test_a_cursor_that_was_kept_is_refused_in_a_later_run(
    app: App, harness: NewHarness, ledger: Ledger, use: Callable[[Any], object]
) -> None:
    outcome = keep_and_use(app, harness, lambda ctx: ctx.connection.cursor(), use)
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, TransactionBoundary)
    assert "after its handler had returned" in str(outcome.error)
    assert "Take ctx.connection anew" in str(outcome.error)
    assert ledger.entries == []


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
    run: Callable[..., Outcome], ledger: Ledger, outside: sqlite3.Connection
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


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda connection: connection.cursor(), id="cursor"),
        pytest.param(lambda connection: connection.commit(), id="commit"),
        pytest.param(lambda connection: connection.blobopen("ledger", "entry", 1), id="blobopen"),
        pytest.param(lambda connection: connection.execute(INSERT), id="execute"),
    ],
)
def test_the_connection_is_refused_after_the_run(
    app: App, harness: NewHarness, ledger: Ledger, use: Callable[[Any], object]
) -> None:
    refused: list[str] = []

    def use_late(connection: Any) -> None:
        try:
            use(connection)
        except TransactionBoundary as error:
            refused.append(str(error))

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.after_commit(use_late, ctx.connection)

    app.start(pay, Order("o1"), flow_id="flow")
    assert isinstance(harness().run_one(), Completed)
    assert ledger.entries == []
    assert len(refused) == 1
    assert "outside the handler it was lent to" in refused[0]


def test_an_open_blob_is_part_of_the_transaction_and_closed_with_it(
    run: Callable[..., Outcome], outside: sqlite3.Connection
) -> None:
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


def test_a_blob_written_by_a_run_that_fails_is_as_it_was(
    run: Callable[..., Outcome], outside: sqlite3.Connection
) -> None:
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


@pytest.mark.parametrize(
    "way",
    ["ctx.sql", "connection.execute", "sqlite3.Cursor"],
)
def test_a_handler_that_makes_the_connection_read_only_fails_and_holds_up_nobody(
    app: App, harness: NewHarness, ledger: Ledger, way: str
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        if order.id == "o0":
            WAYS[way](ctx, "PRAGMA query_only = ON")
        ledger.write(ctx, order.id)

    for n in range(2):
        app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
    worker = harness()
    worker.drain()
    assert ledger.entries == ["o1"]
    assert [letter.flow_id for letter in worker.dead_letters()] == ["order:0"]
    assert not worker.access.transport.pending(["pay"]).claimed


OUTLIVING = [
    "PRAGMA query_only = ON",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA main.synchronous = OFF",
    "PRAGMA foreign_keys(0)",
    "/* x */ pragma case_sensitive_like=1",
    "PRAGMA journal_mode=DELETE",
    "PRAGMA wal_checkpoint(TRUNCATE)",
]


@pytest.mark.parametrize("statement", OUTLIVING)
def test_a_pragma_that_would_outlive_the_run_is_refused_and_says_so(
    run: Callable[..., Outcome], statement: str
) -> None:
    outcome = run(lambda ctx: ctx.sql(statement))
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, TransactionBoundary)
    assert "which would outlive this run" in str(outcome.error)


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA table_info(ledger)",
        "PRAGMA user_version",
        "PRAGMA foreign_keys",
        "PRAGMA main.foreign_key_check(ledger)",
    ],
)
def test_a_pragma_that_only_looks_is_no_different_from_a_select(run: Callable[..., Outcome], statement: str) -> None:
    assert isinstance(run(lambda ctx: ctx.sql(statement)), Completed)


def test_what_the_users_tables_declare_of_each_other_holds_in_a_stage(
    run: Callable[..., Outcome], ledger: Ledger, outside: sqlite3.Connection
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


def each_of_two_runs(app: App, harness: NewHarness, handle: Callable[[Context], object]) -> list[type]:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        handle(ctx)

    for n in range(2):
        app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
    return [type(each) for each in harness().drain()]


def test_a_temporary_table_would_outlive_its_run_and_is_refused(app: App, harness: NewHarness) -> None:
    runs = each_of_two_runs(app, harness, lambda ctx: ctx.sql("CREATE TEMP TABLE scratch (a)"))
    assert runs == [Buried, Buried]


def test_a_progress_handler_is_for_the_run_that_set_it(app: App, harness: NewHarness) -> None:
    runs = each_of_two_runs(app, harness, lambda ctx: ctx.connection.set_progress_handler(lambda: 1, 1))
    assert runs == [Completed, Completed]


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

    assert each_of_two_runs(app, harness, handle) == [Completed, Completed]
    assert seen[1:] == [answer]
    assert ledger.entries == ["written"]


def test_a_connection_that_was_kept_joins_the_run_it_is_used_in(app: App, harness: NewHarness, ledger: Ledger) -> None:
    outcome = keep_and_use(app, harness, lambda ctx: ctx.connection, lambda connection: connection.execute(INSERT))
    assert isinstance(outcome, Completed)
    assert ledger.entries == ["late"]


def test_rows_that_are_made_while_they_are_written_are_part_of_the_transaction_too(
    run: Callable[..., Outcome], ledger: Ledger
) -> None:
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
