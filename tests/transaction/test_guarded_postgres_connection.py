"""psycopg's own connection, lent to a handler: nothing the handler does with it may end, or escape, the transaction."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.errors import DivisionByZero, InFailedSqlTransaction
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from psycopg.types.numeric import FloatLoader
from psycopg.types.string import TextLoader

from stagepost import App, Context, IllegalCall, StoreExhausted, Target, TransactionBoundary, TransactionEnded
from stagepost.app.app import engine_of
from stagepost.store.postgres.boundary import analyse
from stagepost.store.postgres.parameters import numbered
from stagepost.testing import ManualClock
from stagepost.transaction.outcome import Buried, Completed, Redelivered
from tests.transaction.guarded import NewHarness, Order, Run, Way, each_of_two_runs, keep_and_use
from tests.transaction.test_contention import TEN_MINUTES, Worker
from tests.transaction.test_guarded_connection import INSERT, OUTLIVING, WRITES, named

if TYPE_CHECKING:
    from tests.conftest import Ledger


@pytest.fixture
def new_database(new_postgres: Callable[[], str]) -> Callable[[], str]:
    return new_postgres


@pytest.fixture
def outside(app: App, ledger: Ledger) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's connection to the app's database."""
    with psycopg.connect(engine_of(app).store.address, autocommit=True) as connection:
        yield connection


# Codes that are Stagepost's own

BY_A_TRIGGER = """
CREATE FUNCTION raises() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = 'SP001'; END $$;
CREATE TABLE trap (a int);
CREATE CONSTRAINT TRIGGER raises AFTER INSERT ON trap {when} FOR EACH ROW EXECUTE FUNCTION raises();
"""
RAISES = "DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = 'SP001'; END $$"
LOOK_ALIKES: dict[str, Callable[[Context], object]] = {
    "a block": lambda ctx: ctx.sql(RAISES),
    "a block by the connection": lambda ctx: ctx.connection.execute(RAISES),
    "a block that is not the first": lambda ctx: (ctx.sql("SELECT 1"), ctx.sql(RAISES)),
    "Stagepost's own function": lambda ctx: ctx.sql("SELECT stagepost_lease_lost()"),
    "a trigger": lambda ctx: ctx.sql("INSERT INTO trap VALUES (1)"),
}


@pytest.mark.parametrize("when", ["", "DEFERRABLE INITIALLY DEFERRED"], ids=["at once", "with the commit"])
@pytest.mark.parametrize("way", LOOK_ALIKES)
def test_a_code_of_stageposts_that_a_handler_raises_is_its_own_failure(
    run: Run, outside: psycopg.Connection[Any], way: str, when: str
) -> None:
    """Taken for a lost lease, the message would stay claimed for ever."""
    outside.execute(BY_A_TRIGGER.format(when=when).encode())
    outcome = run(LOOK_ALIKES[way])
    assert isinstance(outcome, Redelivered)
    assert "mine" in str(outcome.error) or "no longer holds" in str(outcome.error)


# The ways in which a handler can run a statement.


def copied(ctx: Context, statement: str) -> list[Any]:
    with ctx.connection.cursor().copy(statement) as copy:
        return list(copy.rows())


def iterated(ctx: Context) -> list[Any]:
    with named(ctx) as cursor:
        return list(cursor)


def by_a_named_cursor(ctx: Context) -> list[Any]:
    with named(ctx) as cursor:
        first = cursor.fetchone()
        cursor.scroll(-1)
        assert cursor.fetchmany(2) == [first, (2,)]
        return [first, (2,), *cursor.fetchall()]


def returned(ctx: Context) -> list[Any]:
    cursor = ctx.connection.cursor()
    cursor.executemany("SELECT %s::int", [(1,), (2,), (3,)], returning=True)
    return [result.fetchone() for result in cursor.results()]


READS: dict[str, Callable[[Context], list[Any]]] = {
    "ctx.sql": lambda ctx: [tuple(row) for row in ctx.sql("SELECT n FROM generate_series(1, :most) AS n", most=3)],
    "connection.execute": lambda ctx: ctx.connection.execute("SELECT n FROM generate_series(1, 3) AS n").fetchall(),
    "iterated": lambda ctx: list(ctx.connection.execute("SELECT n FROM generate_series(1, 3) AS n")),
    "fetchone": lambda ctx: [
        (cursor := ctx.connection.execute("SELECT n FROM generate_series(1, 3) AS n")).fetchone(),
        *cursor.fetchmany(5),
    ],
    "stream": lambda ctx: list(ctx.connection.cursor().stream("SELECT n FROM generate_series(1, 3) AS n")),
    "copy out": lambda ctx: [
        (int(n),) for (n,) in copied(ctx, "COPY (SELECT n FROM generate_series(1, 3) AS n) TO STDOUT")
    ],
    "a server's cursor": by_a_named_cursor,
    "a server's cursor, iterated": iterated,
    "executemany, returning": returned,
}


def test_rows_are_read_in_any_way_that_the_driver_has(run: Run) -> None:
    seen: dict[str, list[Any]] = {}
    outcome = run(lambda ctx: seen.update({way: read(ctx) for way, read in READS.items()}))
    assert isinstance(outcome, Completed)
    assert seen == {key: [(1,), (2,), (3,)] for key in READS}


def test_values_come_and_go_as_the_driver_has_them(run: Run) -> None:
    seen: list[object] = []

    def handle(ctx: Context) -> None:
        row = ctx.sql(
            "SELECT :i::int8, :f::float8, :t::text, :b::bytea, :n::int, :a::int[], :j::jsonb",
            i=2**62, f=0.5, t="ü🚚", b=b"\x00", n=None, a=[1, 2], j=Jsonb({"a": [1]}),
        ).one()  # fmt: skip
        seen.extend(row)

    assert isinstance(run(handle), Completed)
    assert seen == [2**62, 0.5, "ü🚚", b"\x00", None, [1, 2], {"a": [1]}]


# Ending the transaction by a statement


@pytest.mark.parametrize("statement", OUTLIVING["postgres"])
def test_what_would_outlive_the_run_is_told_by_its_text(statement: str) -> None:
    assert analyse(statement).forbidden is not None
    assert analyse(f"SELECT 1; {statement}").forbidden is not None


def test_a_block_of_plpgsql_cannot_commit_either(run: Run, ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "never")
        ctx.sql("DO $$ BEGIN COMMIT; END $$")

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, psycopg.errors.InvalidTransactionTermination)
    assert ledger.entries == []


# Ending it by a call


def test_a_connection_closed_past_the_guard_holds_up_nobody(app: App, ledger: Ledger, harness: NewHarness) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        if order.id == "bad" and ctx.attempt == 1:
            connection = ctx.connection
            psycopg.Connection.close(connection)
            with suppress(psycopg.Error, TransactionEnded):
                connection.execute("SELECT 1")

    app.start(pay, Order("bad"), flow_id="bad")
    app.start(pay, Order("good"), flow_id="good")
    worker = harness()
    worker.drain()
    assert sorted(ledger.entries) == ["bad", "good"]
    assert [each.waypoint for each in worker.history("bad")].count("failed") == 1


# A part may be undone


def test_a_block_lets_a_handler_undo_a_part_and_go_on(run: Run, ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        def write_and_roll_back(block: psycopg.Transaction) -> None:
            ledger.write(ctx, "undone")
            raise psycopg.Rollback(block)

        ledger.write(ctx, "kept")
        with suppress(DivisionByZero), ctx.connection.transaction():
            ledger.write(ctx, "undone")
            ctx.sql("SELECT 1 / 0")
        with ctx.connection.transaction():
            with suppress(ValueError), ctx.connection.transaction("mine"):
                ledger.write(ctx, "undone")
                raise ValueError
            ledger.write(ctx, "kept too")
        with ctx.connection.transaction() as block:
            write_and_roll_back(block)
        with ctx.connection.transaction(force_rollback=True):
            ledger.write(ctx, "undone")
        ledger.write(ctx, "kept at last")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["kept", "kept too", "kept at last"]


def test_savepoints_of_the_handlers_own_let_it_undo_a_part_and_go_on(run: Run, ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        ctx.sql("SAVEPOINT stagepost")
        for go_back in (
            lambda: ctx.sql("ROLLBACK TO stagepost"),
            lambda: ctx.connection.execute("ROLLBACK TRANSACTION TO SAVEPOINT stagepost"),
        ):
            ledger.write(ctx, "undone")
            with pytest.raises(DivisionByZero):
                ctx.sql("SELECT 1 / 0")
            go_back()
            ledger.write(ctx, "undone")
            go_back()
        ledger.write(ctx, "kept")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["kept"]


def test_flows_started_in_a_block_that_is_undone_never_start(app: App, run: Run) -> None:
    ship: Target[Order, None] = app.remote("ship", Order)

    def handle(ctx: Context) -> None:
        for name in ("undone", "kept"):
            with suppress(ZeroDivisionError), ctx.connection.transaction(), ctx.initiate() as out:
                out.send(ship, Order(name), flow_id=name)
                if name == "undone":
                    raise ZeroDivisionError

    assert isinstance(run(handle), Completed)
    with psycopg.connect(engine_of(app).store.address) as connection:
        assert connection.execute("SELECT flow_id FROM stagepost_ready").fetchall() == [("kept",)]


# The transaction has failed


def test_an_error_that_a_handler_caught_in_the_open_transaction_fails_the_attempt_and_says_what_to_do(
    run: Run, ledger: Ledger
) -> None:
    def handle(ctx: Context) -> None:
        ledger.write(ctx, "never")
        with suppress(DivisionByZero):
            ctx.sql("SELECT 1 / 0")

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, TransactionEnded)
    assert isinstance(outcome.error.__cause__, DivisionByZero)
    assert "a statement of it failed" in str(outcome.error)
    assert "inside `with ctx.connection.transaction()`" in str(outcome.error)
    assert "ON CONFLICT" not in str(outcome.error)
    assert ledger.entries == []


def test_nothing_more_reaches_the_database_once_the_transaction_has_failed(app: App, run: Run, ledger: Ledger) -> None:
    ship: Target[Order, None] = app.remote("ship", Order)
    refused: list[Exception] = []

    def initiate(ctx: Context) -> None:
        with ctx.initiate() as out:
            out.send(ship, Order("never"), flow_id="never")

    def handle(ctx: Context) -> None:
        with suppress(DivisionByZero):
            ctx.sql("SELECT 1 / 0")
        writes: list[Way] = [*WRITES["postgres"].values(), lambda ctx, _: initiate(ctx)]
        for write in writes:
            try:
                write(ctx, "after")
            except Exception as error:  # noqa: BLE001 - what it is, is asked below
                refused.append(error)

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, TransactionEnded)
    assert isinstance(outcome.error.__cause__, DivisionByZero)
    assert len(refused) == len(WRITES["postgres"]) + 1
    assert {(type(error), type(error.__cause__)) for error in refused} == {(TransactionEnded, DivisionByZero)}
    assert ledger.entries == []


def test_an_error_that_was_undone_is_not_told_as_the_cause_of_a_later_end(run: Run, ledger: Ledger) -> None:
    kept: list[Iterator[Any]] = []

    def handle(ctx: Context) -> None:
        with suppress(DivisionByZero), ctx.connection.transaction():
            ctx.sql("SELECT 1 / 0")
        ledger.write(ctx, "never")
        kept.append(ctx.connection.cursor().stream(MANY))
        next(kept[0])

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, TransactionEnded)
    assert not isinstance(outcome.error.__cause__, DivisionByZero)
    assert ledger.entries == []


def test_an_error_that_a_handler_got_over_is_let_go_of_with_its_run(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    """It holds what the handler had in its hands."""

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, "kept")
        with suppress(DivisionByZero), ctx.connection.transaction():
            ctx.sql("SELECT 1 / 0")

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    assert isinstance(worker.run_one(), Completed)
    assert vars(worker.access.session)["_broken_by"] is None


def test_a_block_whose_error_was_swallowed_inside_fails_where_it_ends(run: Run, ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        with ctx.connection.transaction():
            ledger.write(ctx, "never")
            with suppress(DivisionByZero):
                ctx.sql("SELECT 1 / 0")

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, InFailedSqlTransaction)
    assert ledger.entries == []


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SELECT $1", "08P01"),
        ("DO $$ BEGIN RAISE 'geometry is invalid' USING ERRCODE = 'XX000'; END $$", "XX000"),
        ("SELECT pg_read_file('/there/is/no/such/file')", "58P01"),
        ("DO $$ BEGIN RAISE 'too many temporary files' USING ERRCODE = '53400'; END $$", "53400"),
        # As postgres_fdw says it of a server behind this one.
        ("DO $$ BEGIN RAISE 'could not connect to server' USING ERRCODE = '08001'; END $$", "08001"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_mistake_that_sounds_like_an_outage_is_the_messages_own_failure(
    run: Run, statement: str, code: str, *, is_first: bool
) -> None:
    """Taken for an outage, it would be tried again for ever and hold up all others."""

    def handle(ctx: Context) -> None:
        if not is_first:
            ctx.sql("SELECT 1")
        ctx.sql(statement)

    outcome = run(handle)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, psycopg.Error)
    assert outcome.error.sqlstate == code


def test_one_who_alone_asks_for_more_memory_than_there_is_has_failed_after_ten_minutes(
    app: App, clock: ManualClock, ledger: Ledger
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, "never")
        ctx.sql("DO $$ BEGIN RAISE 'out of memory' USING ERRCODE = '53200'; END $$")

    app.start(pay, Order("o1"), flow_id="flow")
    worker = Worker(app, clock)
    begin = clock.monotonic()
    outcome = worker.run(worker.claim())
    worker.session.close()
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, StoreExhausted)
    assert TEN_MINUTES < clock.monotonic() - begin <= TEN_MINUTES + 4
    assert ledger.entries == []


# While something is under way

MANY = "SELECT n, repeat('x', 1000) FROM generate_series(1, 100000) AS n"


def during_a_stream(ctx: Context) -> None:
    for _ in ctx.connection.cursor().stream("SELECT n FROM generate_series(1, 2) AS n"):
        ctx.sql("SELECT 1")


def during_a_stream_past_the_guard(ctx: Context) -> None:
    for _ in ctx.connection.cursor().stream("SELECT n FROM generate_series(1, 2) AS n"):
        psycopg.Cursor(ctx.connection).execute("SELECT 1")


def during_a_copy(ctx: Context) -> None:
    with ctx.connection.cursor().copy("COPY ledger (entry) FROM STDIN") as copy:
        copy.write_row((ctx.sql("SELECT 'never'").scalar(),))


def while_feeding_executemany(ctx: Context) -> None:
    ctx.connection.cursor().executemany(INSERT, ((ctx.sql("SELECT 'never'").scalar(),) for _ in range(2)))


@pytest.mark.parametrize(
    "handle", [during_a_stream, during_a_stream_past_the_guard, during_a_copy, while_feeding_executemany]
)
def test_a_statement_while_another_is_under_way_is_refused_and_does_not_wait_for_itself(
    run: Run, ledger: Ledger, handle: Callable[[Context], object]
) -> None:
    outcome = run(handle)
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, IllegalCall | TransactionBoundary)
    assert ledger.entries == []


def test_a_refused_statement_leaves_the_stream_to_be_read_on(run: Run, ledger: Ledger) -> None:
    def handle(ctx: Context) -> None:
        read = []
        for (n,) in ctx.connection.cursor().stream("SELECT n FROM generate_series(1, 3) AS n"):
            read.append(n)
            with pytest.raises(IllegalCall, match="while another one of the same handler was not yet over"):
                ctx.connection.execute("SELECT 1")
        ledger.write(ctx, f"read {read}")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["read [1, 2, 3]"]


def test_a_stream_that_was_broken_off_can_be_caught_with_a_block(run: Run, ledger: Ledger) -> None:
    """To break it off, the driver cancels the statement."""

    def handle(ctx: Context) -> None:
        ledger.write(ctx, "kept")
        with ctx.connection.transaction(force_rollback=True):
            for _ in ctx.connection.cursor().stream(MANY):
                break
        ledger.write(ctx, "kept too")

    assert isinstance(run(handle), Completed)
    assert ledger.entries == ["kept", "kept too"]


def test_a_stream_that_is_left_half_read_fails_its_own_run_and_no_other(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    kept: list[Iterator[Any]] = []

    def handle(ctx: Context) -> None:
        ledger.write(ctx, "written")
        if not kept:
            kept.append(ctx.connection.cursor().stream(MANY))
            next(kept[0])

    first, second = each_of_two_runs(app, harness, handle)
    assert isinstance(first, Redelivered)
    assert isinstance(first.error, TransactionEnded)
    assert isinstance(second, Completed)
    assert ledger.entries == ["written"]
    with pytest.raises(TransactionBoundary):
        next(kept[0])


@pytest.mark.parametrize("statement", ["COPY ledger (entry) FROM STDIN", f"COPY ({MANY}) TO STDOUT"], ids=["in", "out"])
def test_a_copy_that_is_left_open_fails_its_own_run_and_no_other(
    app: App, harness: NewHarness, ledger: Ledger, statement: str
) -> None:
    kept: list[Any] = []

    def handle(ctx: Context) -> None:
        if kept:
            ledger.write(ctx, "second")
            return
        block = ctx.connection.cursor().copy(statement)
        kept.extend([block, block.__enter__()])

    first, second = each_of_two_runs(app, harness, handle)
    assert isinstance(first, Redelivered)
    assert isinstance(first.error, TransactionEnded)
    assert isinstance(second, Completed)
    assert ledger.entries == ["second"]


def test_a_stream_that_meets_an_error_leaves_it_to_the_handler(run: Run) -> None:
    outcome = run(lambda ctx: list(ctx.connection.cursor().stream("SELECT 1 / (2 - n) FROM generate_series(1, 3) n")))
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, DivisionByZero)


# What was kept


def test_a_server_cursor_that_was_kept_may_be_closed(app: App, harness: NewHarness, ledger: Ledger) -> None:
    assert isinstance(keep_and_use(app, harness, named, lambda cursor: cursor.close()), Completed)


def test_rows_that_were_fetched_are_the_handlers_to_keep(app: App, harness: NewHarness, ledger: Ledger) -> None:
    outcome = keep_and_use(
        app, harness, lambda ctx: ctx.connection.execute("SELECT 1 UNION SELECT 2"), lambda cursor: cursor.fetchall()
    )
    assert isinstance(outcome, Completed)


def test_a_block_that_was_left_open_ends_with_its_transaction_and_disturbs_no_other(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    stack = ExitStack()
    blocks: list[Any] = []

    def handle(ctx: Context) -> None:
        if not blocks:
            blocks.append(stack.enter_context(ctx.connection.transaction()))
            ledger.write(ctx, "first")
            return
        with ctx.connection.transaction():
            ledger.write(ctx, "second")
            stack.close()
            gc.collect()
        ledger.write(ctx, "third")

    first, second = each_of_two_runs(app, harness, handle)
    assert isinstance(first, Completed)
    assert isinstance(second, Completed)
    assert ledger.entries == ["first", "second", "third"]


def test_another_thread_is_kept_out_whatever_way_it_comes(run: Run, ledger: Ledger) -> None:
    refused: list[str] = []

    def use(connection: Any, cursor: Any) -> None:
        for each in (
            lambda: connection.execute(INSERT, ("never",)),
            lambda: cursor.execute(INSERT, ("never",)),
            lambda: psycopg.Cursor(connection).execute(INSERT, ("never",)),
            lambda: psycopg.Connection.commit(connection),
        ):
            try:
                each()
            except (IllegalCall, TransactionBoundary) as error:
                refused.append(type(error).__name__)

    def handle(ctx: Context) -> None:
        ledger.write(ctx, "kept")
        thread = threading.Thread(target=use, args=(ctx.connection, ctx.connection.cursor()))
        # A statement of the handler's own is under way meanwhile.
        with ctx.connection.cursor().copy("COPY ledger (entry) FROM STDIN"):
            thread.start()
            thread.join()

    assert isinstance(run(handle), Completed)
    assert len(refused) == 4
    assert ledger.entries == ["kept"]


# What a handler leaves behind on the connection


def test_what_a_handler_set_on_the_connection_is_for_its_own_run(app: App, harness: NewHarness, ledger: Ledger) -> None:
    ship: Target[Order, None] = app.remote("ship", Order)
    seen: list[object] = []
    told: list[object] = []

    def handle(ctx: Context) -> None:
        connection = ctx.connection
        seen.append(connection.execute("SELECT 1 AS one, 'x'::text AS t, '1.5'::numeric AS n").fetchone())
        seen.append(type(ctx.sql("SELECT '1.5'::numeric").scalar()).__name__)
        connection.execute("DO $$ BEGIN RAISE WARNING 'told'; END $$")
        connection.row_factory = dict_row
        connection.cursor_factory = psycopg.ClientCursor
        connection.prepare_threshold = None
        connection.prepared_max = 0
        connection.adapters.register_loader("numeric", FloatLoader)
        connection.adapters.register_loader("int8", TextLoader)
        connection.add_notice_handler(lambda notice: told.append(notice.message_primary))
        assert ctx.sql("SELECT 1 AS one").one()["one"] == 1
        with ctx.initiate() as out:
            sent = [out.send(ship, Order(f"{n}"), flow_id=f"{ctx.flow_id}:{n}") for n in range(20)]
        assert all(each.is_new for each in sent)

    outcomes = each_of_two_runs(app, harness, handle)
    assert [type(each) for each in outcomes] == [Completed, Completed]
    assert seen[:2] == seen[2:]
    assert isinstance(seen[0], tuple)
    assert seen[1] == "Decimal"
    assert told == []


SETTINGS = [
    "SET LOCAL search_path = elsewhere",
    "SELECT set_config('search_path', 'elsewhere', true)",
    "SET LOCAL ROLE pg_monitor",
    "SET LOCAL statement_timeout = 1",
]


@pytest.mark.parametrize("statement", SETTINGS)
def test_what_a_handler_sets_until_the_end_of_its_transaction_is_not_for_stageposts_own_statements(
    app: App, harness: NewHarness, ledger: Ledger, statement: str
) -> None:
    ship: Target[Order, None] = app.remote("ship", Order)
    seen: list[object] = []

    def handle(ctx: Context) -> None:
        seen.append(tuple(ctx.sql("SELECT current_setting('search_path'), current_user").one()))
        ledger.write(ctx, "written")
        ctx.send(ship, Order("sent"))
        ctx.sql(statement)

    outcomes = each_of_two_runs(app, harness, handle)
    assert [type(each) for each in outcomes] == [Completed, Completed]
    assert seen[0] == seen[1]
    assert ledger.entries == ["written", "written"]


TEXTS = {
    "SELECT f()": True,
    "SELECT a, shop.f(a) FROM t": True,
    'SELECT "f" (1)': True,
    "SELECT f /* of ours */ (1)": True,
    "UPDATE t SET a = f(a)": True,
    "INSERT INTO t (a, b) VALUES (f(:a), 1)": True,
    "SELECT 1; SELECT f()": True,
    "DO $$ BEGIN NULL; END $$": True,
    "CALL p()": True,
    "INSERT INTO t (a, b) VALUES (:a, :b) ON CONFLICT (a) DO UPDATE SET b = (1)": False,
    "INSERT INTO shop.t(a) VALUES (1)": False,
    "SELECT count(*), sum(a) FROM t WHERE a IN (1, 2) AND (b = ANY (:b)) ORDER BY (a)": False,
    "SELECT 'f(1)', a FROM t -- f(1)": False,
    "WITH x AS (SELECT 1) UPDATE t SET a = coalesce(a, 0) + 1 WHERE EXISTS (SELECT 1 FROM x) RETURNING a": False,
}


@pytest.mark.parametrize("statement", TEXTS)
def test_a_statement_that_may_run_code_is_told_by_its_text(statement: str) -> None:
    assert analyse(statement).runs_code is TEXTS[statement]


# What the text of a statement does not say: settings, roles, locks, temporary tables, prepared statements.
LEFT_BEHIND = [
    "PERFORM set_config('search_path', 'elsewhere', false)",
    "SET search_path TO elsewhere",
    "SET synchronous_commit TO off",
    "SET default_transaction_isolation TO serializable",
    "SET ROLE pg_monitor",
    "PERFORM pg_advisory_lock(7)",
    # Its deferred constraint is looked at with the commit: before that the table cannot be dropped.
    "CREATE TEMP TABLE scratch (a int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO scratch VALUES (1)",
    "CREATE TEMP VIEW scratch AS SELECT 1",
    "EXECUTE 'PREPARE mine AS SELECT 1'",
]
WAYS_TO_RUN_CODE = {
    "DO by ctx.sql": lambda ctx, code: ctx.sql(f"DO $x$ BEGIN {code}; END $x$"),
    "DO by the connection": lambda ctx, code: ctx.connection.execute(f"DO $x$ BEGIN {code}; END $x$"),
    "a function": lambda ctx, code: ctx.sql("SELECT leave_behind()"),
    "a function in a statement": lambda ctx, code: ctx.connection.execute(
        "INSERT INTO ledger (entry) SELECT '' FROM public.\"leave_behind\" /* of ours */ (), ledger WHERE false"
    ),
    "CALL": lambda ctx, code: ctx.sql("CALL leave_behind_by_call()"),
}
STATE_OF_A_SESSION = """
SELECT current_setting('search_path'), current_setting('synchronous_commit'), current_user::text,
       current_setting('default_transaction_isolation'), current_setting('tcp_keepalives_idle'),
       (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
       (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()),
       (SELECT count(*) FROM pg_prepared_statements WHERE from_sql)
"""


@pytest.mark.parametrize("way", WAYS_TO_RUN_CODE)
@pytest.mark.parametrize("code", LEFT_BEHIND)
def test_what_functions_and_blocks_leave_to_the_session_is_gone_with_the_run(
    app: App, harness: NewHarness, ledger: Ledger, outside: psycopg.Connection[Any], code: str, way: str
) -> None:
    if "PREPARE" in code and "function" in way:
        pytest.skip("a function that prepares a statement is not seen by the text of its caller")
    body = f"LANGUAGE plpgsql AS $x$ BEGIN {code}; RETURN NULL; END $x$"
    for statement in (
        "CREATE SCHEMA elsewhere",
        f"CREATE FUNCTION leave_behind() RETURNS int {body}",
        f"CREATE PROCEDURE leave_behind_by_call() {body.replace('RETURN NULL;', '')}",
    ):
        outside.execute(statement)
    ship: Target[Order, None] = app.remote("ship", Order)
    seen: list[Any] = []

    def handle(ctx: Context) -> None:
        seen.append(ctx.sql(STATE_OF_A_SESSION).one())
        ledger.write(ctx, "written")
        ctx.send(ship, Order("sent"))
        WAYS_TO_RUN_CODE[way](ctx, code)

    outcomes = each_of_two_runs(app, harness, handle)
    assert [type(each) for each in outcomes] == [Completed, Completed]
    assert tuple(seen[0]) == tuple(seen[1])
    assert ledger.entries == ["written", "written"]
    assert outside.execute("SELECT count(*) FROM stagepost_ready WHERE stage = 'ship'").fetchone() == (2,)
    # While the session that ran it waits for work.
    assert outside.execute("SELECT pg_try_advisory_lock(7)").fetchone() == (True,)


def test_a_lock_that_a_function_took_for_the_session_lasts_until_the_run_is_committed_or_undone(
    app: App, harness: NewHarness, ledger: Ledger, outside: psycopg.Connection[Any]
) -> None:
    seen: list[tuple[str, bool]] = []

    def is_held() -> bool:
        return (
            outside.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7").fetchone() is not None
        )

    engine_of(app).listener = lambda step, claim: seen.append((step.name, is_held()))

    def handle(ctx: Context) -> None:
        ctx.sql("DO $$ BEGIN PERFORM pg_advisory_lock(7); END $$")
        if ("COMMITTED", False) in seen:
            raise ValueError("undo it")

    outcomes = each_of_two_runs(app, harness, handle)
    assert [type(each) for each in outcomes] == [Completed, Redelivered]
    assert [is_held for name, is_held in seen if name in ("RECORDED", "COMMITTING", "COMMITTED")][:3] == [
        True,
        True,
        False,
    ]
    assert not is_held()


def test_the_settings_of_a_run_that_failed_are_gone_with_it(app: App, harness: NewHarness, ledger: Ledger) -> None:
    seen: list[object] = []

    def handle(ctx: Context) -> None:
        seen.append(ctx.sql("SELECT current_setting('search_path')").scalar())
        ctx.sql("SET LOCAL search_path = elsewhere")
        if len(seen) == 1:
            raise ValueError("undo it")

    outcomes = each_of_two_runs(app, harness, handle)
    assert [type(each) for each in outcomes] == [Redelivered, Completed]
    assert seen[0] == seen[1]


def test_a_table_that_changed_fails_no_message_whose_statement_was_prepared_for_it(
    app: App, clock: ManualClock, ledger: Ledger, outside: psycopg.Connection[Any]
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.sql("SELECT * FROM ledger")

    worker = Worker(app, clock)
    for n in range(3):
        app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
        assert isinstance(worker.run(worker.claim()), Completed)
        outside.execute(f"ALTER TABLE ledger ADD COLUMN extra_{n} int")
    assert len(worker.patience.waited) == 2
    worker.session.close()


def test_a_temporary_table_that_ends_with_the_transaction_may_be_made_in_each_run(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    def handle(ctx: Context) -> None:
        ctx.sql("CREATE TEMP TABLE scratch (a int) ON COMMIT DROP")
        ctx.sql("INSERT INTO scratch VALUES (1)")

    outcomes = each_of_two_runs(app, harness, handle)
    assert [type(each) for each in outcomes] == [Completed, Completed]


# Names for values

PARAMETERS = [
    ("SELECT :a", "SELECT $1", ("a",)),
    ("SELECT :a, :b, :a", "SELECT $1, $2, $1", ("a", "b")),
    ("SELECT :a::int", "SELECT $1::int", ("a",)),
    ("SELECT '1'::int, x::text", "SELECT '1'::int, x::text", ()),
    ("SELECT ':a', E'\\':a', \":a\", $$:a$$, $x$:a$x$", "SELECT ':a', E'\\':a', \":a\", $$:a$$, $x$:a$x$", ()),
    ("SELECT 1 -- :a\n, :b", "SELECT 1 -- :a\n, $1", ("b",)),
    ("SELECT 1 /* :a /* :a */ :a */, :b", "SELECT 1 /* :a /* :a */ :a */, $1", ("b",)),
    ("SELECT v[1:2], v[:n], v[1:n]", "SELECT v[1:2], v[$1], v[1:n]", ("n",)),
    ("SELECT v[:lo:2]", "SELECT v[$1:2]", ("lo",)),
    ("SELECT d @> :a AND d ? 'k' AND d ?| :b", "SELECT d @> $1 AND d ? 'k' AND d ?| $2", ("a", "b")),
    ("SELECT d -> :a ->> :b", "SELECT d -> $1 ->> $2", ("a", "b")),
    ("INSERT INTO t VALUES(:a,:b)", "INSERT INTO t VALUES($1,$2)", ("a", "b")),
    ("SELECT 1 WHERE x=:a", "SELECT 1 WHERE x=$1", ("a",)),
    ("SELECT 10 % :a, '%s'", "SELECT 10 % $1, '%s'", ("a",)),
]


@pytest.mark.parametrize(("text", "sent", "names"), PARAMETERS)
def test_names_become_numbers_but_for_what_only_looks_like_one(text: str, sent: str, names: tuple[str, ...]) -> None:
    found = numbered(text)
    assert (found.text.decode(), found.names) == (sent, names)


def test_names_stand_for_values_in_all_of_sql(run: Run) -> None:
    seen: list[object] = []

    def handle(ctx: Context) -> None:
        seen.append(ctx.sql("SELECT :a::int + :b::int + :a::int", a=1, b=2).scalar())
        seen.append(ctx.sql("SELECT (ARRAY[1, 2, 3])[:from:3]", **{"from": 2}).scalar())
        seen.append(ctx.sql("SELECT :d::jsonb -> 'k' ->> :n::int", d='{"k": ["x", "y"]}', n=1).scalar())
        seen.append(ctx.sql("SELECT :d::jsonb ? 'k' AND '%' = :p", d='{"k": 1}', p="%").scalar())
        seen.append(ctx.sql("SELECT count(*) FROM unnest(:ids::text[]) AS id WHERE id = ANY(:ids)", ids=["a"]).scalar())
        seen.append(ctx.sql("SELECT $$ :x $$ || ':x'").scalar())

    assert isinstance(run(handle), Completed)
    assert seen == [4, [2, 3], "y", True, 1, " :x :x"]


def test_a_value_that_is_missing_is_an_illegal_call_that_names_it(run: Run) -> None:
    outcome = run(lambda ctx: ctx.sql("SELECT :amount, :item", item=1))
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, IllegalCall)
    assert "no value for :amount (parameters given: item)" in str(outcome.error)


def test_a_value_of_a_type_that_the_driver_does_not_know_is_an_illegal_call(run: Run) -> None:
    outcome = run(lambda ctx: ctx.sql("SELECT :thing", thing=object()))
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, IllegalCall)


@pytest.mark.parametrize("text", ["COPY ledger FROM STDIN", "/* all */ copy ledger to stdout"])
def test_ctx_sql_refuses_a_copy_and_says_how_to_make_one(run: Run, text: str) -> None:
    outcome = run(lambda ctx: ctx.sql(text))
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, IllegalCall)
    assert "cursor().copy" in str(outcome.error)


def test_more_parameters_than_postgresql_takes_are_an_illegal_call_and_no_outage(run: Run) -> None:
    numbers = {f"p{n}": 1 for n in range(65_536)}
    outcome = run(lambda ctx: ctx.sql("SELECT " + "+".join(f":{name}::int" for name in numbers), **numbers))
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, IllegalCall)


def test_a_text_with_a_nul_is_a_failure_of_the_message_alone(run: Run) -> None:
    outcome = run(lambda ctx: ctx.sql("SELECT :t::text", t="a\0b"))
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, psycopg.DataError)


@pytest.mark.parametrize("text", ["/*" * 3_000, "'" * 9_999, "$a$" * 3_000 + "$b$", "/* x " * 2_000, "a$" * 4_000])
def test_a_text_that_makes_no_sense_is_looked_at_in_no_time(text: str) -> None:
    """In time that grows with the text, and not with its square: else this would not end."""
    assert analyse(text * 3).forbidden is None
