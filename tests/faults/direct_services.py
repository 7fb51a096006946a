"""An app whose stages consume from the broker directly, for processes of their own. All it sends leaves the store.

Its process dies at each step of a direct mode for which there is a *ticket*: a file of the mode's and the step's name.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from stagepost import App, Context
from stagepost.flow.claim import Claim
from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import STEPS, Step

PREPARATION = "CREATE TABLE IF NOT EXISTS effect (stage TEXT NOT NULL, order_id TEXT NOT NULL)"
FOLDER = "TICKETS"
MODES: dict[str, Mode] = {"order.pay": "best_effort", "order.route": "transport"}
TICKETS = [f"{mode}-{step}" for mode in MODES.values() for step in STEPS[mode]]


@dataclass
class Order:
    order_id: str


def _die_with_a_ticket(step: Step, claim: Claim) -> None:
    # What the broker delivered has no row.
    if claim.row or claim.stage not in MODES or FOLDER not in os.environ:
        return
    try:
        (Path(os.environ[FOLDER]) / f"{MODES[claim.stage]}-{step}").unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


app = App("order", local=False, listener=_die_with_a_ticket)


def _note(ctx: Context, stage: str, order: Order) -> None:
    # No unique key: an effect that happens twice is two rows.
    ctx.sql("INSERT INTO effect (stage, order_id) VALUES (:stage, :id)", stage=stage, id=order.order_id)


@app.endpoint("order.book")
def book(ctx: Context, order: Order) -> None:
    _note(ctx, "book", order)


@app.endpoint("order.route", mode="transport")
def route(ctx: Context, order: Order) -> None:
    ctx.send(book, order)


@app.endpoint("order.pay", mode="best_effort")
def pay(ctx: Context, order: Order) -> None:
    if order.order_id.startswith("poison"):
        os.kill(os.getpid(), signal.SIGKILL)
    _note(ctx, "pay", order)
    ctx.send(route, order)
