"""Apps that talk over a broker, for processes of their own: payments takes money, and the ledger books it.

Their edge dies at each step for which there is a *ticket*: a file of the step's name in the service's folder. The
process that takes the ticket dies, so each ticket costs one life.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.transaction.steps import EdgeStep

PREPARATION = "CREATE TABLE IF NOT EXISTS effect (transfer_id TEXT NOT NULL, amount INTEGER NOT NULL)"
FOLDER = "TICKETS"
# ActiveMQ has one space of addresses for all tests.
PREFIX = "SERVICE_PREFIX"
prefix = os.environ.get(PREFIX, "")


@dataclass
class Transfer:
    transfer_id: str
    amount: int


@dataclass
class Booked:
    transfer_id: str


payments = App(f"{prefix}payments")
ledger = App(f"{prefix}ledger")
# It has no stages: its worker is a dispatcher alone.
web = App(f"{prefix}web")

book_it = payments.remote(f"{prefix}ledger.book", Transfer, Booked)
pay = payments.staged(f"{prefix}payments.pay")


def _note(ctx: Context, transfer_id: str, amount: int) -> None:
    # No unique key: an effect that happens twice is two rows.
    ctx.sql("INSERT INTO effect (transfer_id, amount) VALUES (:id, :amount)", id=transfer_id, amount=amount)


@pay.stage
def take(ctx: Context, transfer: Transfer) -> None:
    _note(ctx, transfer.transfer_id, -transfer.amount)
    ctx.request(book_it, transfer)


@pay.stage
def booked(ctx: Context, answer: Booked) -> None:
    _note(ctx, f"answer {answer.transfer_id}", 0)


@ledger.endpoint(f"{prefix}ledger.book")
def book(ctx: Context, transfer: Transfer) -> Booked:
    _note(ctx, transfer.transfer_id, transfer.amount)
    return Booked(transfer.transfer_id)


def _die_with_a_ticket(step: EdgeStep, message_ids: Sequence[str]) -> None:
    ticket = Path(os.environ[FOLDER]) / step
    try:
        ticket.unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


if FOLDER in os.environ:
    for each in (payments, ledger):
        engine_of(each).edge_listener = _die_with_a_ticket
