"""A database is made, checked and brought up to date: forward only, by whoever comes first."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from stagepost import SchemaMismatch, StoreError, StoreUnavailable
from stagepost.store.postgres import migrate
from stagepost.store.postgres.store import PostgresStore, migrate_database
from tests.servers.postgres import Server


@pytest.fixture
def new_url(postgres_server: Server) -> Iterator[Callable[[], str]]:
    """The URL of a database with nothing in it, another one each time."""
    made: list[str] = []

    def make() -> str:
        made.append(postgres_server.new_database())
        return made[-1]

    yield make
    for url in made:
        postgres_server.drop_database(url)


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    return new_url()


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def tables(url: str) -> set[str]:
    return {name for (name,) in query(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}


def version(url: str) -> str:
    found: str = query(url, "SELECT value FROM stagepost_meta WHERE key = 'version'")[0][0]
    return found


@pytest.fixture
def a_newer_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the next release will have it: one more migration."""
    numbered = migrate.migrations()
    following = (len(numbered) + 1, "-- a remark; with a semicolon\nCREATE TABLE stagepost_next (a text);\n")
    monkeypatch.setattr(migrate, "migrations", lambda: [*numbered, following])


def test_opening_makes_the_tables_in_an_empty_database_beside_those_of_the_user(url: str) -> None:
    query(url, "CREATE TABLE payment (id text)")
    store = PostgresStore(url)
    assert version(url) == str(migrate.newest())
    assert {"payment", "stagepost_meta", "stagepost_ready", "stagepost_journal"} <= tables(url)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", store.uuid)


def test_opening_again_changes_nothing_and_finds_the_same_store(new_url: Callable[[], str]) -> None:
    url = new_url()
    first = PostgresStore(url)
    before = query(url, "SELECT * FROM stagepost_meta ORDER BY key")
    assert PostgresStore(url).uuid == first.uuid
    assert query(url, "SELECT * FROM stagepost_meta ORDER BY key") == before
    assert migrate_database(url) == []
    assert PostgresStore(new_url()).uuid != first.uuid


def test_who_only_looks_is_refused_where_there_are_no_tables_and_makes_none(url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"has no tables of Stagepost.*Check the database URL"):
        PostgresStore(url, may_make=False)
    assert tables(url) == set()
    migrate_database(url)
    PostgresStore(url, may_make=False)


def test_tables_of_a_newer_version_are_refused_with_the_remedy_and_left_as_they_are(url: str) -> None:
    migrate_database(url)
    query(url, "UPDATE stagepost_meta SET value = '99' WHERE key = 'version'")
    for open_it in (PostgresStore, migrate_database):
        with pytest.raises(SchemaMismatch, match=r"tables of version 99.*knows them up to.*Upgrade stagepost"):
            open_it(url)
    assert version(url) == "99"


def test_tables_of_an_older_version_are_refused_until_they_were_migrated(
    url: str, request: pytest.FixtureRequest
) -> None:
    made = PostgresStore(url)
    newest = migrate.newest()
    request.getfixturevalue("a_newer_version")
    text = rf"tables of version {newest}, and this Stagepost needs {newest + 1}.*Stop its workers.*stagepost migrate"
    with pytest.raises(SchemaMismatch, match=text):
        PostgresStore(url)
    assert "stagepost_next" not in tables(url)
    assert migrate_database(url) == [newest + 1]
    assert PostgresStore(url).uuid == made.uuid
    assert "stagepost_next" in tables(url)
    assert migrate_database(url) == []


@pytest.mark.usefixtures("a_newer_version")
def test_a_new_database_gets_all_migrations_at_once(url: str) -> None:
    assert migrate_database(url) == list(range(1, migrate.newest() + 1))
    PostgresStore(url)


def test_a_migration_that_fails_leaves_the_database_as_it_was(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate_database(url)
    numbered = migrate.migrations()
    broken = (len(numbered) + 1, "CREATE TABLE stagepost_next (a text);\nCREATE TABLE stagepost_ready (a text);\n")
    monkeypatch.setattr(migrate, "migrations", lambda: [*numbered, broken])
    before = tables(url)
    with pytest.raises(StoreError, match="already exists"):
        migrate_database(url)
    assert tables(url) == before
    assert version(url) == str(len(numbered))


def test_who_may_make_no_tables_is_told_so(url: str) -> None:
    name = url.rpartition("/")[2]
    query(url, f"CREATE ROLE {name}_guest LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC")
    with pytest.raises(StoreError, match=r"permission denied|no schema has been selected"):
        PostgresStore(url.replace("//postgres@", f"//{name}_guest@"))
    query(url, f"DROP ROLE {name}_guest")


# Each of several processes opens the database at the moment when it is told to.
MAKER = """
import sys
from stagepost.store.postgres import migrate
from stagepost.store.postgres.store import PostgresStore, migrate_database

numbered = migrate.migrations()
following = [(len(numbered) + n, f"CREATE TABLE stagepost_next_{n} (a text);\\n") for n in range(1, 30)]
migrate.migrations = lambda: [*numbered, *following]
print("ready", flush=True)
sys.stdin.readline()
print(*(migrate_database(sys.argv[1]) if sys.argv[2] == "migrate" else [PostgresStore(sys.argv[1]).uuid]))
"""


def at_once(url: str, how: str) -> list[list[str]]:
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, url, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for maker in makers:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "ready\n"
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("go\n")
        maker.stdin.flush()
    said = [maker.communicate()[0].split() for maker in makers]
    assert [maker.returncode for maker in makers] == [0, 0, 0]
    return said


def test_of_several_processes_that_migrate_at_once_each_step_is_done_by_one(url: str) -> None:
    applied = [int(number) for each in at_once(url, "migrate") for number in each]
    newest = migrate.newest()
    assert sorted(applied) == list(range(1, newest + 30))
    assert version(url) == str(newest + 29)
    assert query(url, "SELECT count(*) FROM stagepost_meta") == [(2,)]


def test_of_several_processes_that_open_a_new_database_at_once_all_find_the_same_store(url: str) -> None:
    assert len({uuid for (uuid,) in at_once(url, "open")}) == 1


def test_one_that_migrates_waits_for_one_that_does_already(url: str) -> None:
    """And finds it done; that each of the two asked before would not be enough."""
    with psycopg.connect(url) as other:
        other.execute(migrate.LOCK)
        maker = subprocess.Popen(
            [sys.executable, "-c", MAKER, url, "migrate"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert maker.stdin is not None
        maker.stdin.write("go\n")
        maker.stdin.flush()
        waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not query(url, waits):
            assert maker.poll() is None
        for number, text in migrate.migrations():
            other.execute(text.encode(), prepare=False)
            other.execute(migrate.WRITE_META, ("version", str(number)))
    said, _ = maker.communicate()
    assert said.split()[1:] == [str(migrate.newest() + n) for n in range(1, 30)]


def test_migrations_are_numbered_without_a_gap() -> None:
    numbered = migrate.migrations()
    assert [number for number, _ in numbered] == list(range(1, len(numbered) + 1))
    assert all(text.strip() for _, text in numbered)
