"""An app whose stages consume from the broker directly, for processes of their own. All it sends leaves the store.

Its process dies at each step of a stage for which there is a *ticket*: a file of the stage's label and the step's name.
A stage with a guard is killed between its two commits, and in the commit of its stored copy.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from stagepost import App, Context
from stagepost.flow.claim import Claim
from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import STEPS, Step

PREPARATION = "CREATE TABLE IF NOT EXISTS effect (stage TEXT NOT NULL, order_id TEXT NOT NULL)"
FOLDER = "TICKETS"
# The folder beside it, with a file for each process that took a ticket.
DEAD = "dead"
# ActiveMQ has one space of addresses for all tests.
NAME = "SERVICE_NAME"
name = os.environ.get(NAME, "order")
MODES: dict[str, Mode] = {f"{name}.pay": "best_effort", f"{name}.route": "transport"}
GUARDED = f"{name}.bill"
COPY = "copy-committing"
TICKETS = [f"{mode}-{step}" for mode in MODES.values() for step in STEPS[mode]]
TICKETS += [f"guarded-{Step.COMMITTED}", COPY]


@dataclass
class Order:
    order_id: str


def _die_with_a_ticket(step: Step, claim: Claim) -> None:
    label: str | None = "guarded" if claim.stage == GUARDED else MODES.get(claim.stage)
    # What the broker delivered has no row.
    if claim.row:
        label = "copy" if label == "guarded" else None
    if label is None or FOLDER not in os.environ:
        return
    ticket = Path(os.environ[FOLDER]) / f"{label}-{step}"
    try:
        ticket.rename(ticket.parent.with_name(DEAD) / str(os.getpid()))
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


app = App(name, local=False, listener=_die_with_a_ticket)


def _note(ctx: Context, stage: str, order: Order) -> None:
    # No unique key: an effect that happens twice is two rows.
    ctx.sql("INSERT INTO effect (stage, order_id) VALUES (:stage, :id)", stage=stage, id=order.order_id)


def _wait_once(order: Order) -> None:
    """Tell the test which process runs the order, and wait there. Another run of it does not wait."""
    running = Path(os.environ[FOLDER]) / f"running-{order.order_id}"
    if running.exists():
        return
    running.write_text(str(os.getpid()))
    while not (running.parent / "go").exists():
        time.sleep(0.05)


@app.endpoint(f"{name}.book")
def book(ctx: Context, order: Order) -> None:
    _note(ctx, "book", order)


@app.endpoint(f"{name}.bill", mode="best_effort", guard="proactive")
def bill(ctx: Context, order: Order) -> None:
    _note(ctx, "bill", order)
    ctx.send(book, order)


@app.endpoint(f"{name}.route", mode="transport")
def route(ctx: Context, order: Order) -> None:
    ctx.send(bill, order)


@app.endpoint(f"{name}.pay", mode="best_effort")
def pay(ctx: Context, order: Order) -> None:
    if order.order_id.startswith("poison"):
        os.kill(os.getpid(), signal.SIGKILL)
    if order.order_id.startswith("slow"):
        _wait_once(order)
    _note(ctx, "pay", order)
    ctx.send(route, order)
