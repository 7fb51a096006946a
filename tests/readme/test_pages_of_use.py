"""The statements, figures and samples that the pages of use name do what these pages say."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from stagepost import App, Context
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing import Harness, ManualClock
from stagepost.testing.contract.givens import NOW, an_acceptance, committed

DOCS = Path(__file__).parents[2] / "docs"
LATER = 60 * 60 * 1_000_000


@dataclass
class Order:
    order_id: str
    lines: list[int]


@dataclass
class Selections:
    pieces: int


@dataclass
class Reserved:
    missing: int = 0


@dataclass
class GiveUp:
    order_id: str


@dataclass
class Placing:
    order_id: str = ""


def run(url: str, statement: str, *values: int) -> tuple[int, list[tuple[str, ...]]]:
    """Return how many rows a statement of one parameter, or of none, concerned, and the rows."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            told = file.execute(statement, {"before": values[0]} if values else ())
            return told.rowcount, told.fetchall()
    with psycopg.connect(url) as connection:
        answer = connection.execute(statement.replace(":before", "%s").encode(), values)
        return answer.rowcount, answer.fetchall() if answer.description else []


@pytest.fixture
def app_on(clock: ManualClock) -> Iterator[Callable[[str], App]]:
    """Apps on a given database, which are closed when the test has ended."""
    made: list[App] = []

    def make(url: str) -> App:
        made.append(App("shop", database=url, clock=clock))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def url(request: pytest.FixtureRequest) -> str:
    make: Callable[[], str] = request.getfixturevalue(f"new_{request.param}")
    return make()


def test_the_figures_that_the_page_on_monitoring_names_are_in_the_status(
    new_sqlite: Callable[[], str], app_on: Callable[[str], App]
) -> None:
    url = new_sqlite()
    app = app_on(url)
    app.start(app.remote("orders.place", Order), Order("o", []), flow_id="o")
    command = [sys.executable, "-m", "stagepost", "status", "--json", "--database", url]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    named = {"depths", "workers", "paused", "undeclared", "held", "unmarked"}
    assert named <= set(told)
    assert {"stage", "ready", "claimed", "delayed", "suspect", "dead", "oldest_at"} <= set(told["depths"][0])
    text = (DOCS / "operating.md").read_text()
    assert all(f"`{name}`" in text for name in named)


def test_a_counter_joins_the_replies_of_several_requests_and_a_delayed_message_is_their_deadline(
    new_sqlite: Callable[[], str], app_on: Callable[[str], App], harness_of: Callable[[App], Harness]
) -> None:
    url = new_sqlite()
    app = app_on(url)
    confirmed: list[str] = []

    @app.endpoint("stock.reserve")
    def reserve(ctx: Context, wanted: Selections) -> Reserved:
        if wanted.pieces < 0:
            ctx.refuse("a negative number")
        if wanted.pieces > 5:
            ctx.fail_with(Reserved(missing=wanted.pieces - 5))
        return Reserved()

    place = app.staged("orders.place")

    @place.stage
    def ask(ctx: Context, state: Placing, order: Order) -> None:
        state.order_id = order.order_id
        ctx.sql("INSERT INTO sale (id, waiting) VALUES (:id, :waiting)", id=order.order_id, waiting=len(order.lines))
        for pieces in order.lines:
            ctx.request(reserve, Selections(pieces))
        ctx.send(give_up, GiveUp(order.order_id), delay=30 * 60)

    @place.stage
    def collect(ctx: Context, state: Placing, reserved: Reserved) -> None:
        left = ctx.sql(
            "UPDATE sale SET waiting = waiting - 1, missing = missing + :missing WHERE id = :id RETURNING waiting",
            id=state.order_id,
            missing=reserved.missing,
        ).scalar()
        if left == 0:
            ctx.next(reserved)

    @place.stage
    def confirm(ctx: Context, state: Placing, last: Reserved) -> None:
        confirmed.append(state.order_id)

    @app.endpoint("orders.give_up")
    def give_up(ctx: Context, late: GiveUp) -> None:
        ctx.sql("UPDATE sale SET given_up = 1 WHERE id = :id AND waiting > 0", id=late.order_id)

    harness = harness_of(app)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        file.execute(
            "CREATE TABLE sale (id TEXT, waiting INTEGER, missing INTEGER DEFAULT 0, given_up INTEGER DEFAULT 0)"
        )
        app.start(place, Order("full", [1, 2, 9]), flow_id="full")
        app.start(place, Order("stuck", [1, -2]), flow_id="stuck")
        harness.drain()
        sales = file.execute("SELECT id, waiting, missing, given_up FROM sale ORDER BY id").fetchall()
    assert sales == [("full", 0, 4, 0), ("stuck", 1, 0, 1)]
    assert confirmed == ["full"]


def test_a_backup_of_both_files_of_a_store_is_one_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (snippet,) = [
        each
        for each in re.findall(r"```python\n(.*?)```", (DOCS / "operating.md").read_text(), re.DOTALL)
        if "-apart" in each
    ]
    store = SqliteStore(tmp_path / "payments.db")
    with closing(store.apart.session()) as session, committed(session):
        session.outbox.hold([an_acceptance("a")], NOW, "here")
    store.apart.renumber()
    (tmp_path / "backup").mkdir()
    monkeypatch.chdir(tmp_path)
    exec(snippet, {})
    copied = SqliteStore(tmp_path / "backup/payments.db")
    copied.apart.renumber()
    with closing(copied.apart.session()) as session:
        assert session.outbox.backlog().size == 1
