"""The driver's own connection, lent to a handler: nothing the handler does with it may end, or escape, the transaction.

This suite holds for both stores. What only one driver or one SQL can do is in ``test_guarded_sqlite_connection`` and
``test_guarded_postgres_connection``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from stagepost import App, Context, TransactionBoundary
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried, Completed, Redelivered
from tests.transaction.guarded import NewHarness, Order, Run, Way, enter, keep_and_use

if TYPE_CHECKING:
    from tests.conftest import Ledger


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def new_database(store: str, request: pytest.FixtureRequest) -> Callable[[], str]:
    found: Callable[[], str] = request.getfixturevalue(f"new_{store}")
    return found


def each_of(cases: dict[str, dict[str, Any]]) -> Iterable[tuple[str, str]]:
    return [(store, name) for store, named in cases.items() for name in named]


# The ways in which a handler can run a statement


def copy_in(ctx: Context, entry: str) -> None:
    with ctx.connection.cursor().copy("COPY ledger (entry) FROM STDIN") as copy:
        copy.write_row((entry,))


def write_in_a_block(ctx: Context, entry: str) -> None:
    with ctx.connection.transaction():
        ctx.sql("INSERT INTO ledger (entry) VALUES (:entry)", entry=entry)


ASK, INSERT = "INSERT INTO ledger VALUES (?)", "INSERT INTO ledger (entry) VALUES (%s)"

WRITES: dict[str, dict[str, Way]] = {
    "sqlite": {
        "ctx.sql": lambda ctx, entry: ctx.sql("INSERT INTO ledger VALUES (:entry)", entry=entry),
        "cursor.execute": lambda ctx, entry: ctx.connection.cursor().execute(ASK, (entry,)),
        "cursor.executemany": lambda ctx, entry: ctx.connection.cursor().executemany(ASK, [(entry,)]),
        "cursor of the driver's class": lambda ctx, entry: ctx.connection.cursor(sqlite3.Cursor).execute(ASK, (entry,)),
        "connection.execute": lambda ctx, entry: ctx.connection.execute(ASK, (entry,)),
        "connection.executemany": lambda ctx, entry: ctx.connection.executemany(ASK, [(entry,)]),
        "sqlite3.Cursor": lambda ctx, entry: sqlite3.Cursor(ctx.connection).execute(ASK, (entry,)),
        "sqlite3.Connection.cursor": lambda ctx, entry: sqlite3.Connection.cursor(
            ctx.connection, sqlite3.Cursor
        ).execute(ASK, (entry,)),
        "sqlite3.Connection.execute": lambda ctx, entry: sqlite3.Connection.execute(ctx.connection, ASK, (entry,)),
    },
    "postgres": {
        "ctx.sql": lambda ctx, entry: ctx.sql("INSERT INTO ledger (entry) VALUES (:entry)", entry=entry),
        "connection.execute": lambda ctx, entry: ctx.connection.execute(INSERT, (entry,)),
        "cursor.execute": lambda ctx, entry: ctx.connection.cursor().execute(INSERT, (entry,)),
        "by name": lambda ctx, entry: ctx.connection.execute("INSERT INTO ledger (entry) VALUES (%(e)s)", {"e": entry}),
        "cursor.executemany": lambda ctx, entry: ctx.connection.cursor().executemany(INSERT, [(entry,)]),
        "cursor.stream": lambda ctx, entry: list(ctx.connection.cursor().stream(f"{INSERT} RETURNING place", (entry,))),
        "copy": copy_in,
        "transaction()": write_in_a_block,
        "bytes": lambda ctx, entry: ctx.connection.execute(INSERT.encode(), (entry,)),
        "sql.SQL": lambda ctx, entry: ctx.connection.execute(
            sql.SQL("INSERT INTO {} (entry) VALUES ({})").format(sql.Identifier("ledger"), sql.Literal(entry))
        ),
        "several in one text": lambda ctx, entry: ctx.connection.execute(
            f"SELECT 1; INSERT INTO ledger (entry) VALUES ('{entry}')"
        ),
        "binary": lambda ctx, entry: ctx.connection.execute(INSERT, (entry,), binary=True),
    },
}


@pytest.mark.parametrize(("store", "way"), each_of(WRITES))
def test_what_is_written_in_any_way_commits_with_the_stage_or_is_undone_with_it(
    app: App, ledger: Ledger, harness: NewHarness, store: str, way: str
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        WRITES[store][way](ctx, order.id)
        assert ledger.entries == []
        if order.id == "bad":
            raise ValueError("undo it")

    worker = harness()
    for name, outcome in (("bad", Redelivered), ("good", Completed)):
        app.start(pay, Order(name), flow_id=name)
        assert isinstance(worker.run_one(), outcome)
    assert ledger.entries == ["good"]


def is_open(connection: Any) -> bool:
    if isinstance(connection, sqlite3.Connection):
        return connection.in_transaction
    assert isinstance(connection, psycopg.Connection)
    return connection.info.transaction_status.name == "INTRANS"


def test_the_connection_comes_with_the_transaction_open_and_the_message_taken(run: Run) -> None:
    seen: list[object] = []

    def handle(ctx: Context) -> None:
        seen.append(is_open(ctx.connection))
        seen.append(ctx.connection.execute("SELECT count(*) FROM stagepost_ready").fetchone())
        seen.append(is_open(ctx.connection))

    assert isinstance(run(handle), Completed)
    assert seen == [True, (0,), True]


# Ending the transaction by a statement

ENDINGS_OF_BOTH = [
    "COMMIT",
    "commit",
    "END",
    "End Transaction",
    "ROLLBACK",
    "ROLLBACK TRANSACTION",
    "BEGIN",
    " \t\n COMMIT",
    ";COMMIT",
    ";;  ;COMMIT",
    "/* x */ COMMIT",
    "/* x\n*/ -- y\n COMMIT",
    "-- nothing\nCOMMIT",
    "/**/;/**/COMMIT/**/",
]
ENDINGS = {
    "sqlite": [
        *ENDINGS_OF_BOTH,
        "COMMIT TRANSACTION;",
        "BEGIN IMMEDIATE",
        "COMMIT -- stagepost",
        # These cannot be part of a transaction.
        "VACUUM",
        "ATTACH ':memory:' AS other",
        "DETACH other",
        "/**/ vacuum",
    ],
    "postgres": [
        *ENDINGS_OF_BOTH,
        "COMMIT WORK;",
        "COMMIT AND CHAIN",
        "ABORT",
        "ROLLBACK AND CHAIN",
        "BEGIN ISOLATION LEVEL SERIALIZABLE",
        "START TRANSACTION",
        "PREPARE TRANSACTION 'x'",
        "COMMIT PREPARED 'x'",
        "ROLLBACK PREPARED 'x'",
        "-- nothing\rCOMMIT",
        "/* a /* comment */ in it */ COMMIT",
        "/***/COMMIT",
        "SELECT 1; COMMIT; SELECT 2",
        "SELECT 'it''s'; COMMIT",
        r"SELECT 'C:\'; COMMIT; SELECT ''",
        r"SELECT E'it\'s'; COMMIT",
        'SELECT 1 AS "a;b"; COMMIT',
        "SELECT $$;$$; COMMIT",
        "SELECT $ü$'$ü$; COMMIT; SELECT ''",
        "SELECT 1 AS a$$; COMMIT; SELECT 2 AS b$$",
        "DO $$ BEGIN NULL; END $$; COMMIT",
    ],
}


def by_a_server_cursor(ctx: Context, statement: str) -> None:
    with ctx.connection.cursor("c") as cursor:
        cursor.execute(statement)


WAYS: dict[str, dict[str, Way]] = {
    "sqlite": {
        "ctx.sql": lambda ctx, statement: ctx.sql(statement),
        "cursor.execute": lambda ctx, statement: ctx.connection.cursor().execute(statement),
        "cursor.executemany": lambda ctx, statement: ctx.connection.cursor().executemany(statement, [()]),
        "cursor of the driver's class": lambda ctx, statement: ctx.connection.cursor(sqlite3.Cursor).execute(statement),
        "connection.execute": lambda ctx, statement: ctx.connection.execute(statement),
        "connection.executemany": lambda ctx, statement: ctx.connection.executemany(statement, [()]),
    },
    "postgres": {
        "execute": lambda ctx, statement: ctx.connection.execute(statement),
        "ctx.sql": lambda ctx, statement: ctx.sql(statement),
        "executemany": lambda ctx, statement: ctx.connection.cursor().executemany(statement, [()]),
        "stream": lambda ctx, statement: list(ctx.connection.cursor().stream(statement)),
        "copy": lambda ctx, statement: ctx.connection.cursor().copy(statement).__enter__(),
        "bytes": lambda ctx, statement: ctx.connection.execute(statement.encode()),
        "sql.SQL": lambda ctx, statement: ctx.connection.execute(sql.SQL(statement)),
        "a server's cursor": by_a_server_cursor,
    },
}


@pytest.mark.parametrize(("store", "way"), each_of(WAYS))
def test_a_statement_that_would_end_the_transaction_is_refused_and_has_changed_nothing(
    run: Run, ledger: Ledger, store: str, way: str
) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "first")
        for statement in ENDINGS[store]:
            with pytest.raises(TransactionBoundary, match="was refused in pay"):
                WAYS[store][way](ctx, statement)
            assert is_open(ctx.connection), statement
        assert ledger.entries == []
        ledger.write(ctx, "second")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["first", "second"]


REMEDIES = {"sqlite": "SAVEPOINT", "postgres": "with ctx.connection.transaction()"}


def test_the_refusal_says_what_where_why_and_what_else(run: Run, ledger: Ledger, store: str) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "never")
        ctx.sql("COMMIT")

    outcome = run(handle)
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, TransactionBoundary)
    for part in ("COMMIT was refused in pay", "ctx.refuse(reason)", REMEDIES[store]):
        assert part in str(outcome.error)
    assert ledger.entries == []


HARMLESS = {
    "sqlite": [
        "PRAGMA table_info(ledger)",
        "PRAGMA user_version",
        "PRAGMA foreign_keys",
        "PRAGMA main.foreign_key_check(ledger)",
    ],
    "postgres": [
        "SELECT 'COMMIT'",
        "SELECT '; COMMIT'",
        "SELECT E'\\'; COMMIT; --'",
        "SELECT $$; COMMIT; $$",
        "SELECT $tag$; COMMIT; $$ ; ROLLBACK $tag$",
        'SELECT 1 AS "; COMMIT"',
        "SELECT 1 -- ; COMMIT",
        "SELECT 1 /* ; COMMIT; */",
        "SELECT 1 /* a /* comment */ ; COMMIT */",
        "SELECT CASE WHEN true THEN 1 END",
        "SELECT 1 AS commit, 2 AS rollback",
        "SAVEPOINT part; ROLLBACK TO part; RELEASE part",
        "SAVEPOINT part; ROLLBACK TRANSACTION TO SAVEPOINT part",
        "SAVEPOINT part; ROLLBACK /* only */ TO part",
        "DO $$ BEGIN PERFORM 1; END $$",
        "SET LOCAL lock_timeout = '1s'",
        "SET CONSTRAINTS ALL DEFERRED",
        "SELECT set_config('lock_timeout', '2s', true)",
        "SELECT pg_advisory_xact_lock(1)",
        "CREATE TABLE temp (a int)",
        "CREATE TEMP TABLE scratch (a int) ON COMMIT DROP",
        "SELECT * FROM generate_series(1, 2) AS temporary",
        "DECLARE hold CURSOR FOR SELECT 1 AS hold",
        "NOTIFY somebody",
    ],
}


def test_words_that_are_none_and_what_stays_in_the_transaction_are_nobodys_business(run: Run, store: str) -> None:
    def handle(ctx: Context) -> None:
        for statement in HARMLESS[store]:
            ctx.connection.execute(statement)

    assert isinstance(run(handle), Completed)


OUTLIVING = {
    "sqlite": [
        "PRAGMA query_only = ON",
        "PRAGMA locking_mode = EXCLUSIVE",
        "PRAGMA main.synchronous = OFF",
        "PRAGMA foreign_keys(0)",
        "/* x */ pragma case_sensitive_like=1",
        "PRAGMA journal_mode=DELETE",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "CREATE TEMP TABLE scratch (a)",
    ],
    "postgres": [
        "SET search_path = elsewhere",
        "SET SESSION search_path = elsewhere",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET TIME ZONE 'UTC'",
        "RESET ALL",
        "DISCARD ALL",
        "DEALLOCATE ALL",
        "PREPARE mine AS SELECT 1",
        "LISTEN somebody",
        "UNLISTEN *",
        "CREATE TEMP TABLE scratch (a int)",
        "CREATE LOCAL TEMPORARY TABLE scratch AS SELECT 1",
        "CREATE OR REPLACE TEMP VIEW scratch AS SELECT 1",
        "CREATE TEMP SEQUENCE scratch",
        "SELECT 1 AS one INTO TEMP scratch",
        "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
        "DECLARE mine BINARY INSENSITIVE SCROLL CURSOR WITH HOLD FOR SELECT 1",
        "SELECT pg_advisory_lock(1)",
        "SELECT * FROM ledger WHERE pg_try_advisory_lock_shared(1)",
    ],
}


REFUSALS = {"sqlite": "would outlive this run", "postgres": "was refused in pay"}


def test_what_would_outlive_the_run_is_refused_and_says_so(run: Run, store: str) -> None:
    def handle(ctx: Context) -> None:
        for statement in OUTLIVING[store]:
            with pytest.raises(TransactionBoundary, match=REFUSALS[store]):
                ctx.connection.execute(statement)

    assert isinstance(run(handle), Completed)


MAKES_READ_ONLY: dict[str, dict[str, Callable[[Context], object]]] = {
    "sqlite": {
        "ctx.sql": lambda ctx: ctx.sql("PRAGMA query_only = ON"),
        "connection.execute": lambda ctx: ctx.connection.execute("PRAGMA query_only = ON"),
        "sqlite3.Cursor": lambda ctx: sqlite3.Cursor(ctx.connection).execute("PRAGMA query_only = ON"),
    },
    "postgres": {
        "SET": lambda ctx: ctx.sql("SET TRANSACTION READ ONLY"),
        "SET LOCAL": lambda ctx: ctx.sql("SET LOCAL transaction_read_only = on"),
        "DO": lambda ctx: ctx.sql("DO $$ BEGIN SET TRANSACTION READ ONLY; END $$"),
        "DO, and write": lambda ctx: ctx.sql("DO $$ BEGIN SET TRANSACTION READ ONLY; DELETE FROM ledger; END $$"),
    },
}


@pytest.mark.parametrize(("store", "way"), each_of(MAKES_READ_ONLY))
def test_a_handler_that_makes_its_transaction_read_only_fails_and_holds_up_nobody(
    app: App, harness: NewHarness, ledger: Ledger, store: str, way: str
) -> None:
    """A read-only transaction must not be taken for a standby, which is tried again for ever."""

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        if order.id == "o0":
            MAKES_READ_ONLY[store][way](ctx)
        ledger.write(ctx, order.id)

    for n in range(2):
        app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
    worker = harness()
    worker.drain()
    assert ledger.entries == ["o1"]
    assert [letter.flow_id for letter in worker.dead_letters()] == ["order:0"]
    assert not worker.access.claimer.pending(["pay"]).claimed


# Ending the transaction by a call


def by_the_drivers_server_cursor(connection: Any) -> None:
    cursor = psycopg.ServerCursor(connection, "c")
    try:
        cursor.execute("SELECT 1")
    finally:
        # It would warn when it is collected.
        cursor._closed = True


def in_a_pipeline(connection: Any) -> None:
    with connection.pipeline():
        connection.execute("SELECT 1")


CALLS_OF_BOTH: dict[str, Callable[[Any], object]] = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "with": enter,
    "close": lambda connection: connection.close(),
}
CALLS: dict[str, dict[str, Callable[[Any], object]]] = {
    "sqlite": CALLS_OF_BOTH
    | {
        "executescript": lambda connection: connection.executescript("INSERT INTO ledger VALUES ('script')"),
        "cursor.executescript": lambda connection: connection.cursor().executescript("SELECT 1"),
        "isolation_level = None": lambda connection: setattr(connection, "isolation_level", None),
        "isolation_level = ''": lambda connection: setattr(connection, "isolation_level", ""),
    },
    "postgres": CALLS_OF_BOTH
    | {
        "autocommit": lambda connection: setattr(connection, "autocommit", False),
        "set_autocommit": lambda connection: connection.set_autocommit(False),
        "read_only": lambda connection: setattr(connection, "read_only", True),
        "set_isolation_level": lambda connection: connection.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE),
        "pipeline": in_a_pipeline,
        "tpc_begin": lambda connection: connection.tpc_begin("x"),
        "tpc_prepare": lambda connection: connection.tpc_prepare(),
        "tpc_commit": lambda connection: connection.tpc_commit("x"),
        "tpc_rollback": lambda connection: connection.tpc_rollback("x"),
        "notifies": lambda connection: list(connection.notifies(timeout=0)),
        "a cursor with hold": lambda connection: connection.cursor("c", withhold=True).execute("SELECT 1"),
        "psycopg.Connection.commit": psycopg.Connection.commit,
        "psycopg.Connection.rollback": psycopg.Connection.rollback,
        "psycopg.Connection.transaction": lambda connection: psycopg.Connection.transaction(connection).__enter__(),
        "psycopg.Connection.pipeline": lambda connection: psycopg.Connection.pipeline(connection).__enter__(),
        "psycopg.Cursor": lambda connection: psycopg.Cursor(connection).execute("COMMIT"),
        "psycopg.RawCursor": lambda connection: psycopg.RawCursor(connection).execute("COMMIT"),
        "psycopg.ClientCursor": lambda connection: psycopg.ClientCursor(connection).execute("COMMIT"),
        "psycopg.ServerCursor": by_the_drivers_server_cursor,
        "psycopg.Cursor.stream": lambda connection: list(psycopg.Cursor(connection).stream("SELECT 1")),
        "psycopg.Cursor.copy": lambda connection: psycopg.Cursor(connection).copy("COPY ledger TO STDOUT").__enter__(),
        "psycopg.Cursor.executemany": lambda connection: psycopg.Cursor(connection).executemany("COMMIT", [()]),
    },
}
touched_or_not = pytest.mark.parametrize("is_touched", [True, False], ids=["after a statement", "before any statement"])


@touched_or_not
def test_a_call_that_would_end_the_transaction_or_goes_past_the_guard_is_refused_and_has_changed_nothing(
    run: Run, ledger: Ledger, store: str, is_touched: bool
) -> None:
    def handle(ctx: Context) -> None:
        connection = ctx.connection
        if is_touched:
            ledger.write(ctx, "first")
        for name, call in CALLS[store].items():
            with pytest.raises(TransactionBoundary, match="was refused in pay"):
                call(connection)
            assert ledger.entries == [], name
        ledger.write(ctx, "second")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == (["first", "second"] if is_touched else ["second"])


@touched_or_not
@pytest.mark.parametrize("call", CALLS_OF_BOTH)
def test_a_call_that_would_end_the_transaction_sets_the_message_aside(
    run: Run, ledger: Ledger, call: str, is_touched: bool
) -> None:
    def handle(ctx: Context) -> None:
        if is_touched:
            ledger.write(ctx, "never")
        CALLS_OF_BOTH[call](ctx.connection)

    outcome = run(handle)
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, TransactionBoundary)
    assert ledger.entries == []


UNIQUE_VIOLATIONS = {
    "sqlite": ("INSERT OR ROLLBACK INTO once VALUES (1)", sqlite3.IntegrityError),
    "postgres": ("INSERT INTO once VALUES (1)", psycopg.errors.UniqueViolation),
}


def test_what_the_handler_raised_itself_is_the_cause_though_the_transaction_ended(run: Run, store: str) -> None:
    statement, error = UNIQUE_VIOLATIONS[store]

    def handle(ctx: Context) -> None:
        ctx.sql("CREATE TABLE once (id INTEGER PRIMARY KEY)")
        for _ in range(2):
            ctx.sql(statement)

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, error)


# What was kept

LATE_ROW = "INSERT INTO ledger (entry) VALUES ('late')"


def named(ctx: Context) -> Any:
    return ctx.connection.cursor("many", scrollable=True).execute("SELECT n FROM generate_series(1, 3) AS n")


Kept = tuple[Callable[[Context], Any], Callable[[Any], object]]
KEPT_BY_BOTH: dict[str, Kept] = {
    "cursor.execute": (lambda ctx: ctx.connection.cursor(), lambda cursor: cursor.execute(LATE_ROW)),
    "cursor.executemany": (lambda ctx: ctx.connection.cursor(), lambda cursor: cursor.executemany(LATE_ROW, [()])),
    "SELECT": (lambda ctx: ctx.connection.cursor(), lambda cursor: cursor.execute("SELECT 1")),
}
KEPT: dict[str, dict[str, Kept]] = {
    "sqlite": KEPT_BY_BOTH,
    "postgres": KEPT_BY_BOTH
    | {
        "cursor.stream": (lambda ctx: ctx.connection.cursor(), lambda cursor: list(cursor.stream(LATE_ROW))),
        "a server's cursor": (named, lambda cursor: cursor.fetchone()),
        "a server's cursor, iterated": (named, list),
        "a stream": (lambda ctx: ctx.connection.cursor().stream(f"{LATE_ROW} RETURNING 1"), list),
        "a copy": (
            lambda ctx: ctx.connection.cursor().copy("COPY ledger (entry) FROM STDIN"),
            lambda block: block.__enter__(),
        ),
        "a block": (lambda ctx: ctx.connection.transaction(), lambda block: block.__enter__()),
    },
}


@pytest.mark.parametrize(("store", "what"), each_of(KEPT))
def test_what_was_kept_is_refused_in_a_later_run(
    app: App, harness: NewHarness, ledger: Ledger, store: str, what: str
) -> None:
    outcome = keep_and_use(app, harness, *KEPT[store][what])
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, TransactionBoundary)
    assert "after its handler had returned" in str(outcome.error)
    assert "Take ctx.connection again" in str(outcome.error)
    assert ledger.entries == []


def test_a_connection_that_was_kept_joins_the_run_it_is_used_in(app: App, harness: NewHarness, ledger: Ledger) -> None:
    outcome = keep_and_use(app, harness, lambda ctx: ctx.connection, lambda connection: connection.execute(LATE_ROW))
    assert isinstance(outcome, Completed)
    assert ledger.entries == ["late"]


LATE_USES_OF_BOTH: dict[str, Callable[[Any], object]] = {
    "cursor": lambda connection: connection.cursor(),
    "execute": lambda connection: connection.execute(LATE_ROW),
    "commit": lambda connection: connection.commit(),
}
LATE_USES: dict[str, dict[str, Callable[[Any], object]]] = {
    "sqlite": LATE_USES_OF_BOTH | {"blobopen": lambda connection: connection.blobopen("ledger", "entry", 1)},
    "postgres": LATE_USES_OF_BOTH
    | {
        "transaction": lambda connection: connection.transaction().__enter__(),
        "pipeline": lambda connection: connection.pipeline().__enter__(),
        "psycopg.Cursor": lambda connection: psycopg.Cursor(connection).execute(LATE_ROW),
        "psycopg.Connection.transaction": lambda connection: psycopg.Connection.transaction(connection).__enter__(),
    },
}


def test_the_connection_is_refused_after_the_run(app: App, harness: NewHarness, ledger: Ledger, store: str) -> None:
    refused: list[str] = []

    def use_late(connection: Any) -> None:
        for name, use in LATE_USES[store].items():
            with pytest.raises(TransactionBoundary, match="outside the handler it was lent to"):
                use(connection)
            refused.append(name)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.after_commit(use_late, ctx.connection)

    app.start(pay, Order("o1"), flow_id="flow")
    worker: Harness = harness()
    assert isinstance(worker.run_one(), Completed)
    assert refused == list(LATE_USES[store])
    assert worker.run_one() is None
    assert ledger.entries == []
