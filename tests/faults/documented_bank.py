"""A bank whose accounts are documents, for workers that tests kill and pause.

DOCUMENTS_URL     the Redis server of the accounts
DOCUMENTS_AT      the steps of ``accounts.book`` at which a process kills itself, with commas; at each step one process
DOCUMENTS_HOLDS   if it is set, the thread is held there in place of that, until the file ``go`` exists
DOCUMENTS_FOLDER  where the processes note that they did, and the place of ``go``
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from stagepost import App, Context
from stagepost.flow.claim import Claim
from stagepost.recovery import suspicion
from stagepost.store.document import in_document
from stagepost.store.document.redis import RedisDocuments
from stagepost.transaction.steps import Step

AT = os.environ.get("DOCUMENTS_AT", "").split(",")
FOLDER = Path(os.environ.get("DOCUMENTS_FOLDER", "."))
KEY = "account:{account}"

if "DOCUMENTS_URL" in os.environ:
    # In a worker, and not in the tests' own process: a message that killed its process comes again soon.
    suspicion.PAUSE_SECONDS_FIRST = 0.1


@dataclass
class Booking:
    account: int
    cents: int


def strike(step: Step, claim: Claim) -> None:
    if claim.stage != "accounts.book" or step.value not in AT:
        return
    try:
        (FOLDER / f"at-{step}").touch(exist_ok=False)
    except FileExistsError:
        return
    if "DOCUMENTS_HOLDS" not in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    while not (FOLDER / "go").exists():
        time.sleep(0.01)


app = App("documented", listener=strike)
documents = RedisDocuments(os.environ.get("DOCUMENTS_URL", "redis://localhost"))


@app.endpoint("accounts.book")
@in_document(documents, key=KEY, ids="processed", ids_max=4)
def book(ctx: Context, booking: Booking) -> None:
    account = ctx.document
    account["cents"] = account.get("cents", 0) + booking.cents
    ctx.send(note, booking)


@app.endpoint("ledger.note")
def note(ctx: Context, booking: Booking) -> None:
    ctx.sql(
        "INSERT INTO entry (account, cents) VALUES (:account, :cents)", account=booking.account, cents=booking.cents
    )
