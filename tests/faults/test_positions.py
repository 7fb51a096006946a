"""A position of the journal that has left the store: nothing that comes later is below it, whatever happens to the
server; and where that cannot be, it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from stagepost import App, DeclarationError
from stagepost.flow.target import Target
from stagepost.ports.journal import Position, Span
from stagepost.ports.outbox import Backlog
from stagepost.store.postgres.export import PostgresExport
from stagepost.store.postgres.store import PostgresStore, migrate_database
from stagepost.testing.contract.givens import a_waypoint, committed
from tests.faults.test_postgres_settings import Order, stop_at_once
from tests.servers.postgres import OwnServer, copied
from tests.store.exported import exported

CLAIMS = 20
ROUNDS = 5


@pytest.fixture
def mortal_url(mortal_postgres: OwnServer) -> Iterator[str]:
    url = mortal_postgres.new_database()
    migrate_database(url)
    yield url
    mortal_postgres.drop_database(url)


def write(url: str, *messages: str, is_durable: bool = True) -> None:
    """Each in a transaction of its own."""
    with closing(PostgresStore(url).session()) as session:
        for each in messages:
            session.begin(is_durable=is_durable)
            session.journal.record([a_waypoint(each)])
            session.commit()


def position(url: str) -> Position:
    with closing(PostgresStore(url).session()) as session:
        return session.journal.position()


def read(url: str, begin: Position | None = None, end: Position | None = None) -> list[str]:
    span = Span(begin, end)
    export = PostgresExport(url)
    found = exported(export, "journal", export.journal_bounds(span), span, ["message_id"])
    return [message for (message,) in found]


def test_no_number_below_a_position_is_given_out_again_after_a_crash(
    mortal_postgres: OwnServer, mortal_url: str
) -> None:
    """Claims do not wait for the disk, and a crash takes them and their numbers back.

    The server may write them to the disk by chance, so one round is not enough.
    """
    for _ in range(ROUNDS):
        write(mortal_url, "durable")
        write(mortal_url, *(f"lost{n}" for n in range(CLAIMS)), is_durable=False)
        taken = position(mortal_url)
        stop_at_once(mortal_postgres)
        later = [f"later{n}" for n in range(CLAIMS // 2)]
        write(mortal_url, *later)
        assert read(mortal_url, taken) == later


def test_a_position_of_before_a_promotion_is_refused_and_what_was_read_can_be_read_again(
    mortal_postgres: OwnServer, mortal_url: str
) -> None:
    write(mortal_url, "before")
    taken = position(mortal_url)
    assert read(mortal_url, None, taken) == ["before"]
    mortal_postgres.promote()
    write(mortal_url, "after")
    for span in ((taken, None), (None, taken)):
        with pytest.raises(DeclarationError, match=r"restored, or its server was promoted.*from its beginning"):
            read(mortal_url, *span)
    assert read(mortal_url, None, position(mortal_url)) == ["before", "after"]


@pytest.fixture
def restored_url(mortal_postgres: OwnServer, mortal_url: str) -> Iterator[str]:
    """As a dump brings it here from a server that has begun a million transactions more."""
    write(mortal_url, "first", "last")
    with psycopg.connect(mortal_url) as connection:
        connection.execute("UPDATE stagepost_journal SET txid = txid + 1000000")
    url = mortal_postgres.new_database(mortal_url.rpartition("/")[2])
    yield url
    mortal_postgres.drop_database(url)


def test_what_came_with_a_dump_is_read_whole_and_is_before_all_positions_of_the_new_server(restored_url: str) -> None:
    taken = position(restored_url)
    with closing(PostgresStore(restored_url).session()) as session:
        assert session.journal.since(taken).lines == Backlog(0, None)
        assert session.journal.since(taken).committed == {}
        assert not session.journal.since(taken).has_ended
        with committed(session):
            session.journal.record([a_waypoint("later", name="committed")])
        assert session.journal.since(taken).lines.size == 1
        assert session.journal.since(taken).has_ended
    assert read(restored_url, None, taken) == ["first", "last"]
    assert read(restored_url, taken) == ["later"]
    assert read(restored_url) == ["first", "last", "later"]


def test_a_position_of_before_a_dump_is_refused_after_it_was_restored(mortal_url: str, restored_url: str) -> None:
    taken = position(mortal_url)
    with pytest.raises(DeclarationError, match="another epoch"):
        read(restored_url, taken)
    assert read(restored_url) == ["first", "last"]


def test_a_promoted_copy_is_not_the_database_that_it_was_copied_from(
    mortal_postgres: OwnServer, mortal_url: str, tmp_path: Path
) -> None:
    app = App("shop", database=mortal_url)
    pay: Target[Order, None] = app.remote("pay", Order)
    app.start(pay, Order("1"), flow_id="order:1")
    with (
        copied(mortal_postgres) as copy,
        closing(psycopg.connect(copy.url_of(mortal_url.rpartition("/")[2]))) as elsewhere,
        pytest.raises(DeclarationError, match="another database"),
        app.initiate(connection=elsewhere) as out,
    ):
        out.send(pay, Order("2"), flow_id="order:2")
    app.close()


def test_an_app_goes_on_with_its_callers_connections_after_a_promotion(
    mortal_postgres: OwnServer, mortal_url: str
) -> None:
    app = App("shop", database=mortal_url)
    pay: Target[Order, None] = app.remote("pay", Order)
    app.start(pay, Order("1"), flow_id="order:1")
    mortal_postgres.promote()
    with psycopg.connect(mortal_url) as connection, app.initiate(connection=connection) as out:
        started = out.send(pay, Order("2"), flow_id="order:2")
    assert started.is_new
    app.close()
