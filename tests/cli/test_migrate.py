"""``stagepost migrate``"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stagepost.store.sqlite import migrate
from tests.cli.shop import Shop, command, parsed, told_in_one_paragraph

ALL = [number for number, _ in migrate.migrations()]


def test_it_makes_the_tables_of_a_new_file_and_finds_nothing_to_do_the_second_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    applied = ", ".join(f"{number:04}" for number, _ in migrate.migrations())
    assert command("migrate", "--database", url).stdout == f"{url}: applied {applied}\n"
    assert command("migrate", "--database", url).stdout == f"{url}: nothing to do\n"
    assert command("status", "--database", url).exit_code == 0


def test_json_names_the_migrations_applied(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    numbers = [number for number, _ in migrate.migrations()]
    assert parsed(command("migrate", "--json", "--database", url)) == {
        "database": url,
        "applied": numbers,
        "applied_apart": [],
    }
    assert parsed(command("migrate", "--json", "--database", url)) == {
        "database": url,
        "applied": [],
        "applied_apart": [],
    }


def test_tables_of_the_users_own_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "users.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE account (id TEXT)")
        connection.execute("INSERT INTO account VALUES ('a')")
        connection.commit()
    assert command("migrate", "--database", f"sqlite:///{path}").exit_code == 0
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM account").fetchall() == [("a",)]


def test_tables_of_a_newer_stagepost_are_refused_by_every_command(shop: Shop) -> None:
    with closing(sqlite3.connect(shop.path)) as connection:
        connection.execute("UPDATE stagepost_meta SET value = '99' WHERE key = 'version'")
        connection.commit()
    for arguments in (["migrate"], ["status"], ["dead", "list"], ["trace", "f"]):
        told = told_in_one_paragraph(command(*arguments, "--database", shop.url), 3)
        assert "version 99" in told
        assert "Upgrade" in told


def test_tables_of_an_older_stagepost_are_refused_with_what_to_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    version = migrate.newest()
    monkeypatch.setattr(migrate, "newest", lambda: version + 1)
    told = told_in_one_paragraph(command("status", "--database", shop.url), 3)
    assert f"version {version}" in told
    assert "stagepost migrate" in told
