"""What is written is read as it was, whatever the environment, the URL or the database says of encodings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

from stagepost import StoreUnavailable
from stagepost.ports.journal import Waypoint
from stagepost.store.postgres.store import PostgresStore, migrate_database
from stagepost.testing.contract.givens import a_waypoint, committed
from tests.servers.postgres import Server

FLOW = "bücher → 5 €"


@pytest.fixture
def new_url(postgres_server: Server) -> Iterator[Callable[[str], str]]:
    """The URL of an empty database in the encoding of that name."""
    made: list[str] = []

    def make(encoding: str) -> str:
        made.append(postgres_server.new_database_in(encoding))
        return made[-1]

    yield make
    for url in made:
        postgres_server.drop_database(url)


def write(url: str) -> list[Waypoint]:
    """Returns what is read of it."""
    with closing(PostgresStore(url).session()) as session:
        with committed(session):
            session.journal.record([a_waypoint(flow_id=FLOW)])
        return session.journal.history(FLOW)


def seen_by_others(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, client_encoding="UTF8") as connection:
        return connection.execute("SELECT flow_id FROM stagepost_journal").fetchall()


def test_an_environment_that_says_otherwise_changes_nothing(
    new_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    url = new_url("UTF8")
    assert [each.flow_id for each in write(url)] == [FLOW]
    assert seen_by_others(url) == [(FLOW,)]


def test_a_url_that_says_otherwise_changes_nothing(new_url: Callable[[str], str]) -> None:
    url = new_url("UTF8")
    assert [each.flow_id for each in write(f"{url}?client_encoding=LATIN1")] == [FLOW]
    assert seen_by_others(url) == [(FLOW,)]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_role_or_database_that_says_otherwise_changes_nothing(new_url: Callable[[str], str], encoding: str) -> None:
    url = new_url("UTF8")
    name = sql.Identifier(url.rpartition("/")[2])
    with psycopg.connect(url, autocommit=True) as connection:
        for whose in ("ROLE CURRENT_USER IN DATABASE {}", "DATABASE {}"):
            says = f"ALTER {whose} SET client_encoding TO {encoding}"
            connection.execute(sql.SQL(says).format(name))
    assert [each.flow_id for each in write(url)] == [FLOW]
    assert seen_by_others(url) == [(FLOW,)]


def test_a_database_that_keeps_bytes_as_they_come_will_do(new_url: Callable[[str], str]) -> None:
    url = new_url("SQL_ASCII")
    assert [each.flow_id for each in write(url)] == [FLOW]
    assert seen_by_others(url) == [(FLOW,)]


@pytest.mark.parametrize("use", [PostgresStore, migrate_database])
def test_a_database_that_cannot_keep_every_character_is_refused_with_the_remedy(
    use: Callable[[str], object], new_url: Callable[[str], str]
) -> None:
    url = new_url("LATIN1")
    with pytest.raises(StoreUnavailable, match=r"is kept in LATIN1, .* ENCODING 'UTF8'"):
        use(url)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
