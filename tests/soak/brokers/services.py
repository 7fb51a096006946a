"""Two services that talk over a broker, for processes of their own. A transfer passes six stages, in three modes.

    payments.pay    takes the money from an account, in ``single``
    ledger.route    passes the transfer on, in ``transport``
    ledger.book     runs in ``best_effort``, and is idempotent: it looks for its entry first
    ledger.enter    and ledger.check: in ``single``, one in the store of the other
    payments.close  ends the transfer, in ``single``

All that payments sends leaves its store, also to itself. Handlers raise at random. A process dies at a step for which
there is a *ticket*: a file of the step's name. The process that takes the ticket dies. Another ticket pauses it there.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagepost import App, Context, Target
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import STEPS, EdgeStep, Step
from tests.soak.brokers import sabotage

TABLE = "CREATE TABLE effect (stage TEXT NOT NULL, transfer_id TEXT NOT NULL, amount INTEGER NOT NULL)"
# The stage that is idempotent looks for its own work.
INDEX = "CREATE INDEX effect_transfer ON effect (transfer_id)"
# The settings of a process: where its tickets are, what its addresses begin with, how often it raises, what is broken.
PAUSE, PAUSED = "pause-", "paused-"
TICKETS, PREFIX, RAISES, SABOTAGE = "SOAK_TICKETS", "SOAK_PREFIX", "SOAK_RAISES", "SOAK_SABOTAGE"
prefix = os.environ.get(PREFIX, "")
raises = float(os.environ.get(RAISES, "0"))
# A child that runs a suspect alone lives: its death would be the message's own.
IS_ALONE = sys.argv[0].endswith("alone.py")
MODES: dict[str, Mode] = {f"{prefix}ledger.book": "best_effort", f"{prefix}ledger.route": "transport"}
# Nothing of a campaign is sent again from stored copies.
OF_STORED_COPIES = (EdgeStep.RESENDING, EdgeStep.RESENT)
DEATHS = [
    *(f"{mode}-{step}" for mode in ("single", *MODES.values()) for step in STEPS[mode]),
    *(f"edge-{step}" for step in EdgeStep if step not in OF_STORED_COPIES),
]


class Injected(Exception):
    """A failure of a handler that the campaign wants."""


@dataclass
class Transfer:
    transfer_id: str
    amount: int


def die_at(step: Step, claim: Claim) -> None:
    mode = "single" if claim.row else MODES.get(claim.stage, "single")
    _die_with(f"{mode}-{step}")


def die_at_the_edge(step: EdgeStep, message_ids: Sequence[str]) -> None:
    _die_with(f"edge-{step}")


def _die_with(ticket: str) -> None:
    folder = os.environ.get(TICKETS)
    if not folder or IS_ALONE:
        return
    _pause_with(Path(folder), ticket)
    try:
        (Path(folder) / ticket).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _pause_with(folder: Path, ticket: str) -> None:
    """Wait at a step for which there is a ticket to pause, until the campaign removes its other half."""
    paused = folder / f"{PAUSED}{ticket}"
    try:
        (folder / f"{PAUSE}{ticket}").rename(paused)
    except FileNotFoundError:
        return
    while paused.exists():
        time.sleep(0.02)


payments = App(f"{prefix}payments", local=False, listener=die_at)
ledger = App(f"{prefix}ledger", listener=die_at)
for each in (payments, ledger):
    engine_of(each).edge_listener = die_at_the_edge

to_route: Target[Transfer, Any] = payments.remote(f"{prefix}ledger.route", Transfer)
to_close: Target[Transfer, Any] = ledger.remote(f"{prefix}payments.close", Transfer)


def _note(ctx: Context, stage: str, transfer: Transfer, amount: int) -> None:
    # No unique key: an effect that happens twice is two rows.
    ctx.sql(
        "INSERT INTO effect (stage, transfer_id, amount) VALUES (:stage, :id, :amount)",
        stage=stage,
        id=transfer.transfer_id,
        amount=amount,
    )


def _maybe_raise() -> None:
    if random.random() < raises:
        raise Injected("the campaign wants this attempt to fail")


@payments.endpoint(f"{prefix}payments.pay")
def pay(ctx: Context, transfer: Transfer) -> None:
    _note(ctx, "pay", transfer, -transfer.amount)
    _maybe_raise()
    ctx.send(to_route, transfer)


@payments.endpoint(f"{prefix}payments.close")
def close(ctx: Context, transfer: Transfer) -> None:
    _note(ctx, "close", transfer, 0)
    _maybe_raise()


@ledger.endpoint(f"{prefix}ledger.check")
def check(ctx: Context, transfer: Transfer) -> None:
    _note(ctx, "check", transfer, 0)
    _maybe_raise()
    ctx.send(to_close, transfer)


@ledger.endpoint(f"{prefix}ledger.enter")
def enter(ctx: Context, transfer: Transfer) -> None:
    _note(ctx, "enter", transfer, 0)
    _maybe_raise()
    ctx.send(check, transfer)


@ledger.endpoint(f"{prefix}ledger.book", mode="best_effort")
def book(ctx: Context, transfer: Transfer) -> None:
    # A run that is repeated leaves two of these rows, and the journal says so.
    _note(ctx, "run", transfer, 0)
    _maybe_raise()
    if not ctx.sql("SELECT 1 FROM effect WHERE transfer_id = :id AND stage = 'book'", id=transfer.transfer_id):
        _note(ctx, "book", transfer, transfer.amount)
    ctx.send(enter, transfer)


@ledger.endpoint(f"{prefix}ledger.route", mode="transport")
def route(ctx: Context, transfer: Transfer) -> None:
    _maybe_raise()
    ctx.send(book, transfer)


if SABOTAGE in os.environ:
    sabotage.apply(os.environ[SABOTAGE])
