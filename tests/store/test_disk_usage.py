"""The room that a store takes and has, by each store. A store that cannot know it says why."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from stagepost.store.postgres.export import PostgresExport, free_bytes
from stagepost.store.postgres.store import PostgresStore
from stagepost.store.sqlite.export import SqliteExport
from stagepost.store.sqlite.store import SqliteStore
from tests.servers.postgres import Server


def test_free_pages_of_a_file_count_as_free(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    SqliteStore(path)
    whole = SqliteExport(path).disk_usage()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE filler AS SELECT zeroblob(1000000) AS bytes")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        filled = SqliteExport(path).disk_usage()
        connection.execute("DROP TABLE filler")
    assert filled.used >= whole.used + 1_000_000
    assert SqliteExport(path).disk_usage().used < whole.used + 100_000
    assert whole.free is not None
    assert whole.why == ""


def test_a_role_that_may_not_see_the_servers_folder_is_told_the_grant(
    postgres_server: Server, new_postgres: Callable[[], str]
) -> None:
    url = new_postgres()
    PostgresStore(url)
    name = url.rpartition("/")[2]
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name}_reader LOGIN")
        usage = PostgresExport(url.replace("//postgres@", f"//{name}_reader@")).disk_usage()
        admin.execute(f"DROP ROLE {name}_reader")
    assert (usage.used > 1_000_000, usage.free) == (True, None)
    assert "GRANT pg_read_all_settings" in usage.why


@pytest.mark.parametrize("host", ["/var/run/postgresql", "localhost", "127.0.0.1"])
def test_the_disk_of_a_server_on_this_machine_is_asked(host: str, tmp_path: Path) -> None:
    free, why = free_bytes(host, str(tmp_path))
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.5)
    assert why == ""


@pytest.mark.parametrize(
    ("host", "folder", "reason"),
    [("db.example", "/", "on another machine, db.example"), ("localhost", "/nowhere", "No such file or directory")],
)
def test_a_disk_that_cannot_be_seen_is_not_guessed(host: str, folder: str, reason: str) -> None:
    free, why = free_bytes(host, folder)
    assert free is None
    assert reason in why
