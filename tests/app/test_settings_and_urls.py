"""Where the database is: arguments before the environment before ``stagepost.toml`` before the default."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost import App, Context, DeclarationError, StoreUnavailable
from stagepost.app.app import engine_of
from stagepost.ports.registry import driver_of
from stagepost.runtime.databases import open_store
from stagepost.runtime.settings import read_settings
from stagepost.store.sqlite.driver import path_of
from stagepost.store.sqlite.store import SqliteStore
from stagepost.store.sqlite.temporary import TemporaryStore


@dataclass
class Order:
    id: str


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STAGEPOST_DATABASE", raising=False)
    monkeypatch.delenv("STAGEPOST_APP", raising=False)
    return tmp_path


def test_without_a_word_it_is_a_file_in_the_working_folder() -> None:
    settings = read_settings()
    assert (settings.database, settings.database_source) == ("sqlite:///stagepost.db", "the default")
    assert settings.app is None


def test_a_file_goes_before_the_default_the_environment_before_that_and_the_arguments_before_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "stagepost.toml").write_text('database = "sqlite:///file.db"\napp = "file:app"\n')
    settings = read_settings()
    assert (settings.database, settings.app) == ("sqlite:///file.db", "file:app")
    assert settings.database_source == "stagepost.toml"
    monkeypatch.setenv("STAGEPOST_DATABASE", "sqlite:///environment.db")
    monkeypatch.setenv("STAGEPOST_APP", "environment:app")
    settings = read_settings()
    assert (settings.database, settings.app) == ("sqlite:///environment.db", "environment:app")
    assert settings.database_source == "STAGEPOST_DATABASE"
    settings = read_settings(database="sqlite:///argument.db", app="argument:app")
    assert (settings.database, settings.app) == ("sqlite:///argument.db", "argument:app")
    assert settings.database_source == "the arguments"


def test_each_setting_is_found_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "stagepost.toml").write_text('app = "file:app"\n')
    monkeypatch.setenv("STAGEPOST_DATABASE", "sqlite:///environment.db")
    settings = read_settings()
    assert (settings.database, settings.app) == ("sqlite:///environment.db", "file:app")


def test_an_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEPOST_DATABASE", "")
    assert read_settings().database == "sqlite:///stagepost.db"


BAD_FILES = {
    "not TOML": (b"database = ", "is not valid TOML"),
    "an unknown key": (
        b'databse = "sqlite:///a.db"',
        "has 'databse'; it may hold 'database', 'queue', 'broker', 'app' and 'archive'",
    ),
    "a table": (b'[database]\nurl = "x"', "'database' must be a text"),
    "a number": (b"app = 1", "'app' must be a text, not 1"),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_file_that_holds_what_it_should_not_is_refused_and_named(folder: Path, what: str) -> None:
    content, text = BAD_FILES[what]
    (folder / "stagepost.toml").write_bytes(content)
    with pytest.raises(DeclarationError) as caught:
        read_settings(database="sqlite:///argument.db")
    assert str(folder / "stagepost.toml") in str(caught.value)
    assert text in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused_and_named(folder: Path) -> None:
    (folder / "stagepost.toml").mkdir()
    with pytest.raises(DeclarationError, match=r"stagepost\.toml cannot be read"):
        read_settings()


def test_a_file_that_is_no_text_is_refused_and_named(folder: Path) -> None:
    (folder / "stagepost.toml").write_bytes(b'database = "caf\xe9"')
    with pytest.raises(DeclarationError, match=r"stagepost\.toml"):
        read_settings()


# URLs


def test_a_url_names_a_file_in_the_working_folder_or_by_its_whole_path() -> None:
    assert path_of("sqlite:///payments.db") == Path("payments.db")
    assert path_of("sqlite:///data/payments.db") == Path("data/payments.db")
    assert path_of("sqlite:////var/lib/payments.db") == Path("/var/lib/payments.db")


BAD_URLS = [
    "payments.db",
    "/var/lib/payments.db",
    "sqlite:payments.db",
    "sqlite://payments.db",
    "sqlite:///",
    "sqlite://",
    "sqlite:///:memory:",
    "mysql://localhost/payments",
    "SQLITE:///payments.db",
    "memory",
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_names_no_store_is_refused_with_examples(url: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        open_store(url)
    assert repr(url) in str(caught.value)
    assert "sqlite:///payments.db" in str(caught.value)
    assert "sqlite:////var/lib/payments.db" in str(caught.value)


def test_opening_makes_the_store_that_the_url_names(folder: Path) -> None:
    found = open_store("sqlite:///payments.db")
    assert isinstance(found, SqliteStore)
    assert found.url == f"sqlite:///{folder / 'payments.db'}"
    assert isinstance(open_store(found.url), SqliteStore)
    assert isinstance(open_store("memory:"), TemporaryStore)


def test_those_who_only_look_make_no_store(folder: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"payments\.db does not exist; .* was taken from the default"):
        driver_of("sqlite:///payments.db").open_existing("sqlite:///payments.db", "the default")
    assert list(folder.iterdir()) == []
    made = open_store("sqlite:///payments.db")
    assert (
        driver_of("sqlite:///payments.db").open_existing("sqlite:///payments.db", "the default").identity
        == made.identity
    )


# The app


def test_an_app_finds_its_database_when_it_is_first_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("shop")
    monkeypatch.setenv("STAGEPOST_DATABASE", "sqlite:///late.db")
    assert app.database == "sqlite:///late.db"
    assert list(folder.iterdir()) == []
    assert isinstance(engine_of(app).store, SqliteStore)
    assert engine_of(app).store is engine_of(app).store
    assert (folder / "late.db").exists()


def test_an_app_may_be_given_its_database_until_it_was_opened() -> None:
    app = App("shop", database="sqlite:///first.db")
    app.database = "memory:"
    assert isinstance(engine_of(app).store, TemporaryStore)
    app.database = engine_of(app).store.url
    with pytest.raises(DeclarationError, match="app 'shop' has opened memory: already; set its database before"):
        app.database = "sqlite:///second.db"


@pytest.mark.parametrize("setting", ["database", "queue"])
def test_a_wrong_url_is_refused_when_it_is_given_without_its_password(setting: str) -> None:
    with pytest.raises(
        DeclarationError, match="'mysql://ada@here/shop' is not a database URL Stagepost knows"
    ) as caught:
        App("shop", **{setting: "mysql://ada:geheim@here/shop"})  # type: ignore[arg-type]
    assert "geheim" not in str(caught.value)


def test_a_wrong_url_of_a_transport_keeps_flows_from_being_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started waits in the stages' database, whose URL is right: it would wait for ever."""
    monkeypatch.setenv("STAGEPOST_QUEUE", "mysql://here/queue")
    app = App("shop", database="sqlite:///shop.db")
    with pytest.raises(DeclarationError, match="mysql://here/queue"):
        app.start(app.remote("pay", Order), Order("o1"), flow_id="o1")


def test_a_mode_for_two_databases_keeps_flows_from_being_started_where_only_one_is_named() -> None:
    """In a process that was not told of the other they would wait where no worker looks."""
    app = App("shop", database="sqlite:///shop.db", mode="outbox")

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    with pytest.raises(DeclarationError, match="name the queue's database with queue="):
        app.start(pay, Order("o1"), flow_id="o1")
    out = app.initiate(connection=sqlite3.connect("shop.db"))
    with pytest.raises(DeclarationError, match="queue="), out:
        out.send(pay, Order("o1"), flow_id="o1")


@pytest.mark.parametrize("setting", ["database", "queue"])
@pytest.mark.parametrize("url", [Path("shop.db"), 5, b"sqlite:///shop.db", ""])
def test_what_is_no_text_is_refused_when_it_is_given(setting: str, url: object) -> None:
    with pytest.raises(DeclarationError, match=f"{setting} of app 'shop' must be a URL as text"):
        App("shop", **{setting: url})  # type: ignore[arg-type]
