"""``stagepost worker``: what it is told, and what it says when it cannot do it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import click
import pytest

from stagepost.cli.worker import worker
from stagepost.store.sqlite.store import SqliteStore
from tests.cli.shop import Shop, started

APP = """
from dataclasses import dataclass
from stagepost import App, Context

app = App("shop")

@dataclass
class Order:
    number: int

@app.endpoint("shop.pay")
def pay(ctx: Context, order: Order) -> None:
    ctx.sql("CREATE TABLE IF NOT EXISTS paid (number)")
    ctx.sql("INSERT INTO paid VALUES (:number)", number=order.number)
"""

BROKEN = """
from stagepost import App, Context

app = App("shop")

@app.endpoint("shop.pay")
def pay(ctx: Context, order: int) -> None: ...
"""

WITHOUT_STAGE = """
from stagepost import App

app = App("shop")
app.staged("shop.pay")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop_app.py").write_text(APP)
    (tmp_path / "shop_broken.py").write_text(BROKEN)
    (tmp_path / "shop_without_stage.py").write_text(WITHOUT_STAGE)
    (tmp_path / "shop_in_memory.py").write_text(APP.replace('App("shop")', 'App("shop", database="memory:")'))
    (tmp_path / "shop_empty.py").write_text("number = 5\n")
    (tmp_path / "shop_buggy.py").write_text("import stagepost\n1 / 0\n")
    return tmp_path


def refused(ended: subprocess.CompletedProcess[str], code: int) -> str:
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    return ended.stderr


def test_an_app_with_nothing_to_do_drains_at_once(folder: Path) -> None:
    ended = started(folder, "worker", "shop_app:app", "--drain", "--database", f"sqlite:///{folder}/shop.db")
    assert ended.returncode == 0
    assert "drained" in ended.stderr
    assert ended.stdout == ""


def test_the_app_and_the_database_are_taken_from_the_environment_or_the_settings_file(folder: Path) -> None:
    database = f"sqlite:///{folder}/shop.db"
    ended = started(folder, "worker", "--drain", STAGEPOST_APP="shop_app:app", STAGEPOST_DATABASE=database)
    assert ended.returncode == 0
    (folder / "stagepost.toml").write_text(f'app = "shop_app:app"\ndatabase = "{database}2"')
    assert started(folder, "worker", "--drain").returncode == 0
    assert (folder / "shop.db").exists()
    assert (folder / "shop.db2").exists()


def test_json_log_lines_are_json_each_and_all(folder: Path) -> None:
    ended = started(folder, "worker", "shop_app:app", "--drain", "--json")
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert lines
    assert all({"at", "level", "process", "logger", "text"} <= line.keys() for line in lines)


@pytest.mark.parametrize(
    ("app", "wanted"),
    [
        ("shop_app", "module:attribute"),
        ("shop_app:", "module:attribute"),
        (":app", "module:attribute"),
        ("shop_app.py:app", "shop_app:app"),
        ("./shop_app:app", "file"),
        ("shop_ap:app", "no module 'shop_ap'"),
        ("shop.app:app", "no module 'shop'"),
        ("shop_app:application", "shop_app:app"),
        ("shop_app:pay", "not a stagepost.App"),
        ("shop_empty:app", "no App"),
        ("shop_empty:number", "not a stagepost.App"),
        ("shop_app:app:app", "does not exist"),
        ("..shop_app:app", "shop_app"),
        ("shop_broken:app", "dataclass"),
        ("shop_without_stage:app", "shop.pay"),
        ("shop_in_memory:app", "one process"),
    ],
)
def test_an_app_that_cannot_be_run_is_refused_with_what_to_do(app: str, wanted: str, folder: Path) -> None:
    assert wanted in refused(started(folder, "worker", app, "--drain"), 2)


def test_a_transport_that_is_the_database_itself_is_refused_before_anything_runs(folder: Path) -> None:
    (folder / "shop_twice.py").write_text(APP.replace('App("shop")', 'App("shop", queue="sqlite:///stagepost.db")'))
    ended = started(folder, "worker", "shop_twice:app", "--drain", "--log-level", "warning")
    assert "Leave it out" in refused(ended, 2)


def test_without_an_app_it_says_how_to_name_one(folder: Path) -> None:
    told = refused(started(folder, "worker"), 2)
    assert "MODULE:APP" in told
    assert "STAGEPOST_APP" in told


def test_what_the_users_own_module_raises_comes_with_the_users_own_traceback(folder: Path) -> None:
    ended = started(folder, "worker", "shop_buggy:app")
    assert ended.returncode != 0
    assert "ZeroDivisionError" in ended.stderr
    assert "shop_buggy.py" in ended.stderr


@pytest.mark.parametrize(
    ("url", "code"),
    [("payments.db", 2), ("memory:", 2), ("sqlite:////no/such/folder/payments.db", 3), ("sqlite:///.", 3)],
)
def test_a_database_that_cannot_be_opened_is_refused(url: str, code: int, folder: Path) -> None:
    refused(started(folder, "worker", "shop_app:app", "--drain", "--database", url), code)


@pytest.mark.parametrize(
    "options",
    [
        ["--processes", "0"],
        ["--processes", "many"],
        ["--processes", "257"],
        ["--threads", "0"],
        ["--threads", "1.5"],
        ["--grace", "-1"],
        ["--grace", "soon"],
        ["--log-level", "LOUD"],
        ["--nonsense"],
    ],
    ids=" ".join,
)
def test_an_option_out_of_its_range_is_refused_with_its_range(options: list[str], folder: Path) -> None:
    ended = started(folder, "worker", "shop_app:app", "--drain", *options)
    assert ended.returncode == 2
    assert "Error: " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("grace", ["inf", "nan"])
def test_a_grace_time_that_is_no_number_of_seconds_is_refused(grace: str) -> None:
    with pytest.raises(click.BadParameter):
        worker.make_context("worker", ["shop_app:app", "--grace", grace])


NO_STAGES = """
from stagepost import App
app = App("shop")
"""

OTHER = """
from dataclasses import dataclass
from stagepost import App, Context

app = App("shop")

@dataclass
class Order:
    id: str

@app.endpoint("shop.other")
def other(ctx: Context, order: Order) -> None: ...
"""


def test_an_app_without_stages_is_asked_whether_its_modules_are_imported(folder: Path) -> None:
    (folder / "shop_without_stages.py").write_text(NO_STAGES)
    told = refused(started(folder, "worker", "shop_without_stages:app", "--drain"), 2)
    assert "has no stages to run. Was the module that declares its endpoints imported?" in told


def test_messages_that_nobody_drains_are_told_of(folder: Path, shop: Shop) -> None:
    shop.order("order:1")
    (folder / "shop_other.py").write_text(OTHER)
    ended = started(folder, "worker", "shop_other:app", "--drain", "--database", shop.url)
    assert ended.returncode == 0
    assert "1 messages wait at shop.pay, which no app declares. Start a worker of the app" in ended.stderr


def test_one_of_two_files_that_was_restored_without_the_other_refuses_the_start(folder: Path) -> None:
    store = SqliteStore(folder / "shop.db")
    for _ in range(3):
        store.apart.renumber()
    with closing(sqlite3.connect(folder / "shop.db")) as file, file:
        file.execute("UPDATE stagepost_meta SET value = '1' WHERE key = 'number'")
    ended = started(folder, "worker", "shop_app:app", "--database", f"sqlite:///{folder / 'shop.db'}", "--drain")
    told = refused(ended, 3)
    assert "shop.db was restored without" in told
    assert "stagepost migrate --start-over" in told
