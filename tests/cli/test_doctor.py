"""``stagepost doctor``: what it says, how it ends, and that both stores are asked the same about their queues."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path

import psycopg
import pytest

from stagepost.flow.clock import SECOND, SystemClock
from stagepost.flow.target import OUTBOUND_PREFIX
from stagepost.observe.doctor import examine
from stagepost.ports.broker import EdgeAddresses
from stagepost.ports.declarations import Declaration
from stagepost.ports.inbox import InboxRow
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.recovery.pausing import opened, with_failure
from stagepost.runtime.databases import open_store
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.contract.givens import a_letter, a_row, an_acceptance, committed
from tests.cli.doctoring import Visit, visit
from tests.cli.shop import command, parsed
from tests.servers.ports import reserved_port

HOUR = 3600 * SECOND


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    made: Callable[[], str] = request.getfixturevalue(f"new_{request.param}")
    return made()


@pytest.fixture
def store(url: str) -> Store:
    return open_store(url)


@pytest.fixture
def session(store: Store) -> Iterator[Session]:
    session = store.session()
    yield session
    session.close()


@pytest.fixture
def now() -> int:
    return SystemClock().now()


QUEUE = (
    "workers",
    "orphaned-claims",
    "ready-waiting",
    "delayed-overdue",
    "suspects",
    "paused-stages",
    "outbox",
    "inbox",
    "dead-letters",
    "history",
    "tables",
)


def queue_troubles(url: str) -> dict[str, str]:
    found = visit(url).severities(*QUEUE)
    return {code: severity for code, severity in found.items() if severity != "ok"}


# Brokers


def test_the_store_tells_its_addresses_at_the_broker(url: str, session: Session) -> None:
    with committed(session):
        session.retention.note_consumer("c1", "amqp://here", ["pay", "ship"])
        session.retention.note_consumer("c2", "amqp://here", ["pay"])
        session.queue.enqueue([a_row("m1", stage=f"{OUTBOUND_PREFIX}ledger")])
    edge = examine(url, "the test", SystemClock()).edge
    assert edge == EdgeAddresses(session.edge.store(), {"pay": 2, "ship": 1}, ["ledger"])


# The queue


@pytest.mark.usefixtures("store")
def test_an_empty_queue_is_well(url: str) -> None:
    assert queue_troubles(url) == {}


def test_messages_that_are_ready_and_nobody_works(url: str, session: Session, now: int) -> None:
    with committed(session):
        session.queue.enqueue([a_row("m1", origin_at=now), a_row("m2", "ship", origin_at=now - HOUR // 2)])
    assert queue_troubles(url) == {}
    with committed(session):
        session.queue.enqueue([a_row("m3", "ship", origin_at=now - 2 * HOUR)])
    seen = visit(url)
    assert seen.exit_code == 1
    assert seen["ready-waiting"]["severity"] == "critical"
    (stage,) = seen["ready-waiting"]["who"]
    assert (stage["stage"], stage["ready"]) == ("ship", 2)
    assert 2 * 3600 <= stage["oldest_flow_seconds"] < 3 * 3600


def test_delayed_messages_that_nobody_noticed(url: str, session: Session, now: int) -> None:
    with committed(session):
        session.queue.enqueue([a_row("m1", origin_at=now, due_at=now + HOUR), a_row("m2", due_at=now - 2 * HOUR)])
    seen = visit(url)
    assert seen.exit_code == 1
    assert seen["delayed-overdue"]["severity"] == "critical"
    assert seen["delayed-overdue"]["who"][0]["overdue"] == 1


def test_suspects_and_letters_of_the_last_hour(url: str, session: Session, now: int) -> None:
    with committed(session):
        session.queue.enqueue([a_row("m1", deaths=1, due_at=now + HOUR)])
        session.dead_letters.bury(a_letter("m2", dead_at=now - HOUR // 2))
        session.dead_letters.bury(a_letter("m3", dead_at=now - 2 * HOUR))
    assert queue_troubles(url) == {"suspects": "warning", "dead-letters": "warning"}
    seen = visit(url)
    assert seen["suspects"]["who"] == [{"stage": "pay", "suspects": 1}]
    assert seen["dead-letters"]["who"] == [{"stage": "pay", "reason": "exhausted", "letters": 1}]


def test_claims_of_an_owner_that_nobody_knows(url: str, session: Session, now: int) -> None:
    with committed(session):
        session.queue.enqueue([a_row("m1", origin_at=now), a_row("m2", origin_at=now)])
        session.queue.claim(["pay"], 2, "shop/nobody", 0)
    seen = visit(url)
    assert seen.exit_code == 1
    assert seen["orphaned-claims"]["severity"] == "critical"
    assert seen["orphaned-claims"]["who"] == [{"owner": "shop/nobody", "messages": 2}]


def test_a_paused_stage_and_why(url: str, session: Session, now: int) -> None:
    with committed(session):
        breaker = with_failure(session.circuits.lock("pay"), "m1", "BankError: closed", 0, has_succeeded=False)
        session.circuits.keep(opened(breaker, now - 2 * HOUR))
        session.circuits.lock("ship")
    seen = visit(url)
    assert seen.exit_code == 1
    (stage,) = seen["paused-stages"]["who"]
    assert (stage["stage"], stage["last_error"]) == ("pay", "BankError: closed")
    assert 2 * 3600 <= stage["paused_seconds"] < 3 * 3600


def test_stages_that_no_app_declares(url: str, session: Session, now: int) -> None:
    with committed(session):
        session.queue.enqueue([a_row("m1", origin_at=now), a_row("m2", "ship", origin_at=now), a_row("m3", "mail")])
        session.declarations.put([Declaration("pay", "pay", "shop"), Declaration("ship", "ship", "shop", now)])
    seen = visit(url)
    assert seen["undeclared-stages"]["severity"] == "warning"
    assert seen["undeclared-stages"]["who"] == [
        {"stage": "mail", "messages": 1, "last_declared_by": "no app"},
        {"stage": "ship", "messages": 1, "last_declared_by": "shop"},
    ]
    assert "Start a worker of the app" in seen["undeclared-stages"]["remedy"]


def test_what_never_reached_its_queue_in_another_database(url: str, session: Session, now: int) -> None:
    with committed(session):
        session.outbox.hold([an_acceptance("m1")], now - 2 * HOUR, "edge@here:1")
        session.inbox.admit(InboxRow("pay", "m2", "digest", now - HOUR // 2, now))
    seen = visit(url)
    assert seen.exit_code == 1
    assert seen.severities("outbox", "inbox") == {"outbox": "critical", "inbox": "warning"}
    assert "1 message started here" in seen["outbox"]["seen"]


# The tables


def test_a_database_without_tables(new_postgres: Callable[[], str], tmp_path: Path) -> None:
    empty = new_postgres()
    with psycopg.connect(empty) as server:
        server.execute("DROP TABLE stagepost_meta")
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as file:
        file.execute("CREATE TABLE account (id TEXT)")
    for url in (empty, f"sqlite:///{other}"):
        seen = visit(url)
        assert seen.exit_code == 1
        assert seen["tables"]["severity"] == "critical"
        assert "stagepost migrate" in seen["tables"]["remedy"]


@pytest.mark.parametrize(("version", "remedy"), [("99", "Upgrade"), ("0", "migrate")])
def test_tables_of_another_version(url: str, store: Store, version: str, remedy: str) -> None:
    statement = f"UPDATE stagepost_meta SET value = '{version}' WHERE key = 'version'"
    if isinstance(store, SqliteStore):
        with closing(sqlite3.connect(store.path)) as file:
            file.execute(statement)
            file.commit()
    else:
        with psycopg.connect(url) as server:
            server.execute(statement.encode())
    seen = visit(url)
    assert seen.exit_code == 1
    assert seen["tables"]["severity"] == "critical"
    assert remedy in seen["tables"]["remedy"]


@pytest.mark.usefixtures("store")
def test_a_migration_that_is_missing_keeps_nobody_from_looking_at_the_queue(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "postgres" if url.startswith("postgres") else "sqlite"
    migrate = import_module(f"stagepost.store.{name}.migrate")
    newest = migrate.newest()
    monkeypatch.setattr(migrate, "newest", lambda: newest + 1)
    seen = visit(url)
    assert seen.exit_code == 1
    assert "migrations are missing" in seen["tables"]["seen"]
    assert seen["workers"]["severity"] == "ok"


def test_a_table_that_is_gone_is_what_could_not_be_looked_at(url: str, store: Store) -> None:
    statement = "DROP TABLE stagepost_delayed"
    if isinstance(store, SqliteStore):
        with closing(sqlite3.connect(store.path)) as file:
            file.execute(statement)
    else:
        with psycopg.connect(url) as server:
            server.execute(statement)
    seen = visit(url)
    assert seen["unseen"]["severity"] == "warning"
    assert "stagepost_delayed" in seen["unseen"]["who"][0]["why"]


# What cannot be looked at


def test_a_server_that_is_not_there_is_named_with_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    port = reserved_port()
    monkeypatch.setenv("STAGEPOST_DATABASE", f"postgresql://ada:geheim@127.0.0.1:{port}/shop")
    seen = Visit.of(command("doctor", "--json"))
    assert seen.exit_code == 2
    assert seen.report["looked"] is False
    assert seen.severities() == {"server-unreachable": "critical"}
    assert f"127.0.0.1:{port}/shop" in seen["server-unreachable"]["seen"]
    assert "pg_isready" in seen["server-unreachable"]["remedy"]
    assert "geheim" not in str(seen.report)


def test_a_database_that_the_server_does_not_have_is_said_by_it(new_postgres: Callable[[], str]) -> None:
    seen = visit(f"{new_postgres()}_not")
    assert seen.exit_code == 2
    assert "does not exist" in seen["server-unreachable"]["seen"]


def test_a_file_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "paymets.db"
    seen = visit(f"sqlite:///{path}")
    assert seen.exit_code == 2
    assert seen.severities() == {"file-unreadable": "critical"}
    assert str(path) in seen["file-unreadable"]["seen"]
    assert "the arguments" in seen["file-unreadable"]["seen"]
    assert list(tmp_path.glob("paymets*")) == []


@pytest.mark.parametrize("url", ["memory:", "payments.db", "mysql://here/payments"])
def test_what_is_no_store_is_refused_like_everywhere(url: str) -> None:
    result = command("doctor", "--json", "--database", url)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1


# Two databases


def test_where_the_settings_name_two_databases_both_are_looked_at(
    new_sqlite: Callable[[], str], now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, queue = new_sqlite(), new_sqlite()
    open_store(database)
    session = open_store(queue).session()
    with committed(session):
        session.queue.enqueue([a_row("m1", origin_at=now - 2 * HOUR)])
    session.close()
    monkeypatch.setenv("STAGEPOST_DATABASE", database)
    monkeypatch.setenv("STAGEPOST_QUEUE", queue)
    result = command("doctor", "--json")
    assert result.exit_code == 1
    told = parsed(result)
    assert (told["database"], told["queue"]["database"]) == (database, queue)
    assert told["severity"] != "critical"
    assert told["queue"]["severity"] == "critical"
    text = command("doctor").stdout
    assert text.index(database) < text.index(queue) < text.index("critical  ready-waiting")
    assert command("doctor", "--database", database).exit_code == 0


def test_one_of_two_that_cannot_be_looked_at_keeps_nobody_from_seeing_the_other(
    new_sqlite: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = new_sqlite()
    open_store(database)
    monkeypatch.setenv("STAGEPOST_DATABASE", database)
    monkeypatch.setenv("STAGEPOST_QUEUE", f"sqlite:///{tmp_path}/gone.db")
    result = command("doctor", "--json")
    assert result.exit_code == 2
    told = parsed(result)
    assert (told["looked"], told["queue"]["looked"]) == (True, False)
    assert [each["code"] for each in told["queue"]["findings"]] == ["file-unreadable"]


# What people see


def test_people_see_the_trouble_first_with_why_and_what_to_do_and_then_what_is_well(
    new_sqlite: Callable[[], str], now: int
) -> None:
    url = new_sqlite()
    session = open_store(url).session()
    with committed(session):
        session.dead_letters.bury(a_letter("m2", stage="[pay]", dead_at=now))
    session.close()
    result = command("doctor", "--database", url)
    assert result.exit_code == 0
    text = result.stdout
    assert url in text
    # The machine may have troubles of its own, such as a full disk.
    text = text[text.index("warning  dead-letters") :]
    assert text.index("[pay]") < text.index("why") < text.index("do ") < text.index("ok  tables")
    assert "stagepost dead replay" in text


def test_people_see_why_it_could_not_be_looked_at(tmp_path: Path) -> None:
    result = command("doctor", "--database", f"sqlite:///{tmp_path}/no.db")
    assert result.exit_code == 2
    assert "cannot be examined" in result.stdout
    assert "no.db does not exist" in result.stdout
    assert "--database" in result.stdout
