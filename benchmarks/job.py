"""The measured job: two stages with an insert each, and one message between them. Every row is written exactly once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg

from stagepost import App, Context
from stagepost.flow.clock import Clock

TABLE = "CREATE TABLE entry (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, stage INTEGER NOT NULL)"
TABLE_OF_POSTGRES = (
    "CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n bigint NOT NULL, stage int NOT NULL)"
)
INSERT = "INSERT INTO entry (n, stage) VALUES (:n, :stage)"


@dataclass
class Item:
    n: int
    # It has the size of a small order.
    text: str


@dataclass
class Noted:
    n: int


def create_table(url: str) -> None:
    """Create the table that the stages write to, in a SQLite file or in a database of PostgreSQL."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            file.execute(TABLE)
        return
    with psycopg.connect(url) as connection:
        connection.execute(TABLE_OF_POSTGRES)


def make_app(database: Path) -> App:
    return make_app_on(f"sqlite:///{database}")


def make_app_on(url: str, *, queue: str | None = None, batch: int = 1, clock: Clock | None = None) -> App:
    app = App("bench", database=url, queue=queue, clock=clock)

    @app.endpoint("bench.second", batch=batch)
    def second(ctx: Context, noted: Noted) -> None:
        ctx.sql(INSERT, n=noted.n, stage=2)

    @app.endpoint("bench.first", batch=batch)
    def first(ctx: Context, item: Item) -> None:
        ctx.sql(INSERT, n=item.n, stage=1)
        ctx.send(second, Noted(item.n))

    return app


def start(app: App, count: int, name: str = "item") -> None:
    text = "x" * 400
    with app.initiate() as out:
        for n in range(count):
            out.send(app.target("bench.first"), Item(n, text), flow_id=f"{name}:{n}")
