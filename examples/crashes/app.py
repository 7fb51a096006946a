"""Four stages with an effect that is lost or doubled by a crash, and the cure of each.

``outside.db`` stands for another service: a mail server, a bank, a warehouse. ``python -m examples.crashes`` crashes
each stage at every step and prints the verdicts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stagepost import App, Context
from stagepost.testing import Crash, crash_everywhere, run_statement

MISTAKES = {
    "mail.outside": "mail.recognised",
    "mail.after_commit": "mail.by_message",
    "invoice.server_made": "invoice.chosen",
    "stock.counting_rows": "stock.looking",
}
TABLES = """
CREATE TABLE IF NOT EXISTS mail (text TEXT, sent_for TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS mail_sent_once ON mail (sent_for) WHERE sent_for <> '';
CREATE TABLE IF NOT EXISTS invoice (number INTEGER PRIMARY KEY AUTOINCREMENT, sold TEXT);
CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, taken_by INTEGER);
INSERT OR IGNORE INTO stock (item) VALUES ('lamp');
"""

app = App("crashes")


@dataclass
class Order:
    number: int
    item: str


@contextmanager
def outside() -> Iterator[sqlite3.Connection]:
    """Connect to the other service's data, which the stages' transaction does not cover."""
    file = Path(app.database.removeprefix("sqlite:///")).with_name("outside.db")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.executescript(TABLES)
        yield connection


@app.endpoint("mail.outside")
def send_outside(ctx: Context, order: Order) -> None:
    with outside() as other:
        other.execute("INSERT INTO mail VALUES (?, '')", (f"{order.item} is sold",))


@app.endpoint("mail.recognised")
def send_once(ctx: Context, order: Order) -> None:
    with outside() as other:
        other.execute("INSERT OR IGNORE INTO mail VALUES (?, ?)", (f"{order.item} is sold", ctx.message_id))


@app.endpoint("mail.after_commit")
def send_after_commit(ctx: Context, order: Order) -> None:
    ctx.after_commit(send_outside, ctx, order)


@app.endpoint("mail.by_message")
def send_by_message(ctx: Context, order: Order) -> None:
    ctx.send(send_once, order)


@app.endpoint("invoice.server_made")
def invoice_carelessly(ctx: Context, order: Order) -> None:
    with outside() as other:
        other.execute("INSERT INTO invoice (sold) VALUES (?)", (order.item,))


@app.endpoint("invoice.chosen")
def invoice_once(ctx: Context, order: Order) -> None:
    with outside() as other:
        other.execute("INSERT OR IGNORE INTO invoice VALUES (?, ?)", (order.number, order.item))


@app.endpoint("stock.counting_rows")
def take_counting_rows(ctx: Context, order: Order) -> None:
    with outside() as other:
        taken = other.execute("UPDATE stock SET taken_by = 1 WHERE item = ? AND taken_by IS NULL", (order.item,))
        if taken.rowcount != 1:
            raise ValueError(f"{order.item} is sold out")
    ctx.sql("INSERT INTO sale (item) VALUES (:item)", item=order.item)


@app.endpoint("stock.looking")
def take_once(ctx: Context, order: Order) -> None:
    with outside() as other:
        other.execute("UPDATE stock SET taken_by = ? WHERE item = ? AND taken_by IS NULL", (order.number, order.item))
        (taken_by,) = other.execute("SELECT taken_by FROM stock WHERE item = ?", (order.item,)).fetchone()
        if taken_by != order.number:
            raise ValueError(f"{order.item} is sold out")
    ctx.sql("INSERT INTO sale (item) VALUES (:item)", item=order.item)


def crashes_of(stage: str) -> list[Crash]:
    """Crash a stage at every step of one order, each time on new databases."""

    def scenario(app: App) -> None:
        run_statement(app, "CREATE TABLE sale (item TEXT)")
        app.start(app.target(stage), Order(7, "lamp"), flow_id="order:7")

    return crash_everywhere(app, scenario, effects, database="memory:")


def effects(app: App) -> dict[str, list[tuple[object, ...]]]:
    with outside() as other:
        found = {
            "mail": other.execute("SELECT text FROM mail").fetchall(),
            "invoice": other.execute("SELECT number, sold FROM invoice").fetchall(),
        }
    return found | {"sale": [tuple(row) for row in run_statement(app, "SELECT item FROM sale")]}
