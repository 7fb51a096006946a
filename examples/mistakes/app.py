"""An order is placed, invoiced and thanked for. A switch puts one of these mistakes into the flow.

``after-commit-hook``   the mail is started in a callback after the commit
``send-before-commit``  the mail is handed to the mail service before the stage commits
``server-made-ids``     the invoice service chooses the number of each invoice
``connection-held``     the stage writes first, and then calls the warehouse
``message-order``       the stage that keeps the order's state trusts the order of its messages

``outside.db`` stands for the services outside. Each first attempt to place an order fails at its end, as it does when a
commit is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stagepost import App, Context
from stagepost.testing import run_statement

MISTAKES = ("after-commit-hook", "send-before-commit", "server-made-ids", "connection-held", "message-order")
STATES = ("placed", "paid", "shipped")
OUTSIDE = """
CREATE TABLE IF NOT EXISTS mail (number INTEGER);
CREATE TABLE IF NOT EXISTS invoice (id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER);
CREATE TABLE IF NOT EXISTS kept_out (number INTEGER);
"""
TABLES = (
    "CREATE TABLE sale (number INTEGER)",
    "CREATE TABLE mail (number INTEGER)",
    "CREATE TABLE state (number INTEGER PRIMARY KEY, rank INTEGER)",
)


@dataclass
class Order:
    number: int


@dataclass
class Changed:
    number: int
    rank: int


@contextmanager
def outside(app: App) -> Iterator[sqlite3.Connection]:
    """Connect to the data of the services outside."""
    with closing(sqlite3.connect(file_of(app).with_name("outside.db"))) as connection, connection:
        connection.executescript(OUTSIDE)
        yield connection


def file_of(app: App) -> Path:
    return Path(app.database.removeprefix("sqlite:///"))


def prepare(app: App) -> None:
    for statement in TABLES:
        run_statement(app, statement)


def make_app(mistake: str = "") -> App:
    app = App("mistakes")

    @app.endpoint("mail.thank")
    def thank(ctx: Context, order: Order) -> None:
        ctx.sql("INSERT INTO mail (number) VALUES (:number)", number=order.number)

    @app.endpoint("orders.state")
    def keep_state(ctx: Context, changed: Changed) -> None:
        values = {"number": changed.number, "rank": changed.rank}
        if mistake == "message-order":
            ctx.sql("INSERT OR REPLACE INTO state (number, rank) VALUES (:number, :rank)", **values)
        else:
            ctx.sql(
                "INSERT INTO state (number, rank) VALUES (:number, :rank) "
                "ON CONFLICT (number) DO UPDATE SET rank = max(rank, excluded.rank)",
                **values,
            )

    @app.endpoint("orders.place")
    def place(ctx: Context, order: Order) -> None:
        if mistake == "connection-held":
            ctx.sql("INSERT INTO sale (number) VALUES (:number)", number=order.number)
            call_the_warehouse(app, order)
        else:
            call_the_warehouse(app, order)
            ctx.sql("INSERT INTO sale (number) VALUES (:number)", number=order.number)
        invoice(app, order, has_own_id=mistake != "server-made-ids")
        if mistake == "after-commit-hook":
            ctx.after_commit(lambda: app.start(thank, order, flow_id=f"mail:{order.number}"))
        elif mistake == "send-before-commit":
            with outside(app) as other:
                other.execute("INSERT INTO mail VALUES (?)", (order.number,))
        else:
            ctx.send(thank, order)
        for rank in range(len(STATES)):
            ctx.send(keep_state, Changed(order.number, rank))
        if ctx.attempt == 1:
            raise ConnectionError("the commit was refused")

    return app


def invoice(app: App, order: Order, *, has_own_id: bool) -> None:
    """Let the invoice service write an invoice. With an id of the caller, it recognises a repeated request."""
    with outside(app) as other:
        if has_own_id:
            other.execute("INSERT OR IGNORE INTO invoice VALUES (?, ?)", (order.number, order.number))
        else:
            other.execute("INSERT INTO invoice (number) VALUES (?)", (order.number,))


def call_the_warehouse(app: App, order: Order) -> None:
    """Call a slow service, and note whether another process could not write to the database during the call."""
    with closing(sqlite3.connect(file_of(app), timeout=0, isolation_level=None)) as another:
        try:
            another.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            with outside(app) as other:
                other.execute("INSERT INTO kept_out VALUES (?)", (order.number,))
