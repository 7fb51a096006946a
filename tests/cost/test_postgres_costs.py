"""What a message costs on PostgreSQL in statements, round trips and write-ahead log, none of which depend on the
machine's mood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from benchmarks import postgres_stage
from benchmarks.job import INSERT, Item, Noted, make_app_on, start
from benchmarks.postgres_stage import TABLE
from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.runtime.prefetch import PrefetchWindow
from stagepost.store.postgres.caller import CallersWriter
from stagepost.store.postgres.parameters import numbered
from stagepost.store.postgres.session import BEGIN, COMMIT
from stagepost.store.postgres.statement_pipeline import Result, StatementPipeline
from stagepost.store.postgres.statements import SQL, Statement, for_rows
from stagepost.store.sql.database import Parameters
from stagepost.testing import Harness
from stagepost.transaction.steps import Step
from tests.servers.postgres import OwnServer, Server

MESSAGES = 400
# Two inserts of a row each, a claim and its removal, and three waypoints, with what their indexes take.
WAL_BYTES_MAX = 3_400


@pytest.fixture
def url(new_postgres: Callable[[], str]) -> str:
    url = new_postgres()
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)
    return url


class Sent:
    """What goes over the wire: the statements of each round trip."""

    def __init__(self) -> None:
        self._now: list[bytes] = []
        self.round_trips: list[list[bytes]] = []

    def forget(self, step: Step, claim: Claim) -> None:
        if step is Step.CLAIMED:
            self.round_trips.clear()

    def add(self, text: bytes) -> None:
        self._now.append(text)

    def end_round_trip(self) -> None:
        self.round_trips.append(self._now)
        self._now = []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    found = Sent()
    execute, add, add_foreign = StatementPipeline.execute, StatementPipeline.add, StatementPipeline.add_foreign

    def executing(pipeline: StatementPipeline) -> Result:
        found.end_round_trip()
        return execute(pipeline)

    def adding(pipeline: StatementPipeline, statement: Statement, parameters: Parameters, deliver: Any = None) -> None:
        found.add(statement.text)
        add(pipeline, statement, parameters, deliver)

    def adding_foreign(pipeline: StatementPipeline, text: bytes, parameters: Sequence[Any]) -> None:
        found.add(text)
        add_foreign(pipeline, text, parameters)

    monkeypatch.setattr(StatementPipeline, "execute", executing)
    monkeypatch.setattr(StatementPipeline, "add", adding)
    monkeypatch.setattr(StatementPipeline, "add_foreign", adding_foreign)
    # Rung once in ten milliseconds, whoever works: part of no message's cost.
    monkeypatch.setattr("stagepost.store.postgres.notifier.Notifier.may_ring", lambda bell: False)
    return found


def run_one(app: App, sent: Sent) -> None:
    engine_of(app).listener = sent.forget
    harness = Harness(app)
    harness.run_one()
    harness.close()


def test_a_stage_that_inserts_and_sends_is_six_statements_in_two_round_trips(url: str, sent: Sent) -> None:
    app = make_app_on(url)
    start(app, 1)
    run_one(app, sent)
    journal = for_rows(SQL["record_waypoint"], 2).text
    assert sent.round_trips == [
        [BEGIN.text, SQL["take_claimed"].text, numbered(INSERT).text],
        [SQL["put_ready"].text, journal, COMMIT.text],
    ]


def test_a_stage_that_leaves_the_database_alone_is_one_round_trip(new_postgres: Callable[[], str], sent: Sent) -> None:
    app = App("bench", database=new_postgres())

    @app.endpoint("idle")
    def idle(ctx: Context, message: Noted) -> None: ...

    app.start(idle, Noted(1), flow_id="one")
    run_one(app, sent)
    assert sent.round_trips == [[BEGIN.text, SQL["take_claimed"].text, SQL["record_waypoint"].text, COMMIT.text]]


def test_publishing_asks_once_who_subscribes_along_with_what_opens_the_transaction(
    new_postgres: Callable[[], str], sent: Sent
) -> None:
    app = App("bench", database=new_postgres())
    topics = [app.topic(name, Noted) for name in ("prices", "stocks")]

    @app.subscribe(topics[0], "on_price")
    def on_price(ctx: Context, message: Noted) -> None: ...

    @app.endpoint("change")
    def change(ctx: Context, message: Noted) -> None:
        for topic in (*topics, topics[0]):
            ctx.publish(topic, message)

    app.start(change, Noted(1), flow_id="one")
    run_one(app, sent)
    assert sent.round_trips == [
        [BEGIN.text, SQL["take_claimed"].text, SQL["list_subscriptions"].text],
        [for_rows(SQL["put_ready"], 2).text, for_rows(SQL["record_waypoint"], 3).text, COMMIT.text],
    ]


@pytest.mark.parametrize("known", [False, True])
def test_starting_flows_takes_the_same_round_trips_however_many_they_are(
    new_postgres: Callable[[], str], sent: Sent, known: bool
) -> None:
    app = make_app_on(new_postgres())
    start(app, 1)
    found: list[int] = []
    for count in (2, 2_000):
        if known:
            start(app, count // 2, f"item{count}")
        sent.round_trips.clear()
        start(app, count, f"item{count}")
        found.append(len(sent.round_trips))
    app.close()
    # The keys, the digests of the known ones, and the rest with the commit.
    assert found == [3 if known else 2] * 2


def test_starting_flows_on_the_callers_connection_takes_two_round_trips_a_thousand(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app_on(url)
    statements: list[object] = []
    run = CallersWriter.run

    def running(writer: CallersWriter, statement: Any, parameters: Parameters = ()) -> Any:
        statements.append(statement)
        return run(writer, statement, parameters)

    monkeypatch.setattr(CallersWriter, "run", running)
    found: list[int] = []
    for count in (1, 1_000, 2_000):
        statements.clear()
        with psycopg.connect(url) as connection, app.initiate(connection=connection) as out:
            for n in range(count):
                out.send(app.target("bench.first"), Item(n, ""), flow_id=f"{count}:{n}")
        found.append(len(statements))
    app.close()
    assert found == [found[0], found[0], found[0] + 2]


def test_claiming_is_shared_by_a_window_of_messages(url: str, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_stage, "ITEMS", MESSAGES // 2)
    # A window is as large as the messages are fast, which is the machine's business.
    monkeypatch.setattr(PrefetchWindow, "size", 50)
    start(make_app_on(url), MESSAGES // 2)
    sent.round_trips.clear()
    postgres_stage.run_engine(url)
    # Two for each message, and four for each window.
    assert len(sent.round_trips) < 2.2 * MESSAGES


@pytest.fixture
def quiet_server(postgres_server: Server) -> Iterator[OwnServer]:
    """One that writes nothing but what it is asked to: no page images, no vacuum."""
    with TemporaryDirectory(prefix="stagepost-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = OwnServer(Path(folder) / "server", {"full_page_writes": "off", "autovacuum": "off"})
        server.make()
        server.start()
        yield server
        server.stop("immediate")


def wal_bytes(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return int(row[0])


def test_a_message_writes_no_more_than_a_few_kilobytes_of_log(
    quiet_server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_stage, "ITEMS", MESSAGES // 2)
    url = quiet_server.new_database()
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)
    start(make_app_on(url), MESSAGES // 2)
    before = wal_bytes(url)
    postgres_stage.run_engine(url)
    assert (wal_bytes(url) - before) / MESSAGES < WAL_BYTES_MAX
