"""Commands that cannot do what they were told say so: on standard error, in one paragraph, with what to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.shop import Shop, command, told_in_one_paragraph

LOOKING = [["status"], ["trace", "order:1"], ["dead", "list"], ["dead", "show", "1"], ["dead", "replay", "--all"]]


def named(arguments: list[str]) -> str:
    return " ".join(arguments)


@pytest.mark.parametrize("arguments", LOOKING, ids=named)
def test_a_database_that_does_not_exist_is_named_and_not_made(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "paymets.db"
    told = told_in_one_paragraph(command(*arguments, "--database", f"sqlite:///{path}"), 3)
    assert str(path) in told
    assert "the arguments" in told
    assert not path.exists()


@pytest.mark.parametrize("arguments", LOOKING, ids=named)
def test_without_being_told_of_a_database_they_look_for_the_default_and_do_not_make_it(arguments: list[str]) -> None:
    told = told_in_one_paragraph(command(*arguments), 3)
    assert "stagepost.db does not exist" in told
    assert "the default" in told
    assert "--database" in told
    assert not Path("stagepost.db").exists()


def test_where_the_name_of_a_missing_database_came_from_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("stagepost.toml").write_text('database = "sqlite:///from-file.db"')
    assert "stagepost.toml" in told_in_one_paragraph(command("status"), 3)
    monkeypatch.setenv("STAGEPOST_DATABASE", "sqlite:///from-environment.db")
    told = told_in_one_paragraph(command("status"), 3)
    assert "from-environment.db" in told
    assert "STAGEPOST_DATABASE" in told


@pytest.mark.parametrize("arguments", [*LOOKING, ["migrate"]], ids=named)
@pytest.mark.parametrize(
    "url", ["payments.db", "mysql://here/payments", "sqlite://payments.db", "sqlite:///", "sqlite:///:memory:"]
)
def test_what_is_no_database_url_is_refused_with_how_to_write_one(arguments: list[str], url: str) -> None:
    told = told_in_one_paragraph(command(*arguments, "--database", url), 2)
    assert repr(url) in told
    assert "sqlite:///payments.db" in told


@pytest.mark.parametrize("arguments", [*LOOKING, ["migrate"]], ids=named)
def test_a_file_of_something_else_is_refused(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam, " * 100)
    told = told_in_one_paragraph(command(*arguments, "--database", f"sqlite:///{path}"), 3)
    assert "not a database" in told
    assert path.read_text().startswith("Dear Sir")


@pytest.mark.parametrize("arguments", [*LOOKING, ["migrate"]], ids=named)
def test_a_folder_is_refused(arguments: list[str], tmp_path: Path) -> None:
    told_in_one_paragraph(command(*arguments, "--database", f"sqlite:///{tmp_path}"), 3)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    told = told_in_one_paragraph(command("migrate", "--database", f"sqlite:///{tmp_path}/no/such/payments.db"), 3)
    assert "folder" in told


@pytest.mark.parametrize("arguments", LOOKING, ids=named)
def test_those_who_only_look_make_no_tables_in_a_database_of_somebody_else(
    arguments: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE account (id TEXT)")
        connection.commit()
    result = command(*arguments, "--database", f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    assert tables == [("account",)]
    assert mode == "delete"
    assert result.exit_code == 3


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ('databse = "sqlite:///x.db"', "'databse'"),
        ("database = 5", "must be a text"),
        ('database = "sqlite:///x.db', "not valid TOML"),
    ],
    ids=["typo", "number", "no TOML"],
)
def test_a_broken_settings_file_is_named_with_what_is_wrong_in_it(content: str, wanted: str) -> None:
    Path("stagepost.toml").write_text(content)
    for arguments in (["status"], ["migrate"]):
        told = told_in_one_paragraph(command(*arguments), 2)
        assert str(Path("stagepost.toml").resolve()) in told
        assert wanted in told


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["dead", "nonsense"],
        ["trace"],
        ["trace", "a", "b"],
        ["dead", "show"],
        ["status", "--nonsense"],
        ["status", "--database"],
        ["migrate", "extra"],
        ["initiate", "orders.csv", "--id", "id"],
        ["initiate", "--to", "shop.pay", "--id", "id"],
        ["initiate", "orders.csv", "--to", "shop.pay", "--id", "id", "--format", "xml"],
        ["process", "--log-level", "LOUD"],
    ],
    ids=named,
)
def test_what_no_command_takes_is_refused_with_what_is_wrong_in_it(arguments: list[str]) -> None:
    result = command(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error: " in result.stderr


def test_the_help_names_every_command_with_what_it_does() -> None:
    for name in ("worker", "process", "initiate", "audit", "trace", "status", "dead", "migrate"):
        assert name in command("--help").stdout
        assert "Usage: " in command(name, "--help").stdout


def test_the_version_is_told() -> None:
    assert command("--version").stdout.strip().endswith("0.1.0")


def test_a_locked_database_is_not_waited_for_by_those_who_only_look(shop: Shop) -> None:
    """A handler or somebody else writes, for as long as they please."""
    shop.order("order:1")
    with closing(sqlite3.connect(shop.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert command("status", "--database", shop.url).exit_code == 0
        assert command("trace", "order:1", "--database", shop.url).exit_code == 0
        writer.execute("ROLLBACK")
