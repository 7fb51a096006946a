"""A bank whose accounts are documents, for workers that tests kill and stop.

DOCUMENTS_URL     the Redis server of the accounts
DOCUMENTS_SIGNAL  the signal that a process sends itself: KILL or STOP
DOCUMENTS_AT      the steps of ``accounts.book`` at which it does, with commas; at each one once, whichever process
DOCUMENTS_AFTER   the number of passings before that, in each process
DOCUMENTS_FOLDER  where the processes note that they did
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from stagepost import App, Context
from stagepost.flow.claim import Claim
from stagepost.recovery import suspicion
from stagepost.store.document import in_document
from stagepost.store.document.redis import RedisDocuments
from stagepost.transaction.steps import Step

SIGNAL = signal.Signals[f"SIG{os.environ.get('DOCUMENTS_SIGNAL', 'KILL')}"]
AT = os.environ.get("DOCUMENTS_AT", "").split(",")
AFTER = int(os.environ.get("DOCUMENTS_AFTER", "0"))
FOLDER = Path(os.environ.get("DOCUMENTS_FOLDER", "."))
KEY = "account:{account}"

if "DOCUMENTS_URL" in os.environ:
    # In a worker, and not in the tests' own process: a message that killed its process comes again soon.
    suspicion.PAUSE_SECONDS_FIRST = 0.1


@dataclass
class Booking:
    account: int
    cents: int


passed = Counter[Step]()


def strike(step: Step, claim: Claim) -> None:
    if claim.stage != "accounts.book" or step.value not in AT:
        return
    passed[step] += 1
    if passed[step] <= AFTER:
        return
    try:
        (FOLDER / f"at-{step}").touch(exist_ok=False)
    except FileExistsError:
        return
    # To this very thread: sent to the process, another one may take it, and this one goes on for a moment.
    signal.pthread_kill(threading.get_ident(), SIGNAL)


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
