"""The app of the fault tests: a bank whose ledger is append-only and has no key, so that a duplicate shows.

A transfer passes five stages, and each leaves one entry:

    bank.transfer           takes the money from the source, and asks
    bank.fraud              which looks at it, and answers to
    bank.transfer.credit    which gives the money to the target, and goes on to
    bank.transfer.confirm   which replies to
    bank.done

A chore is one stage with a time limit, plain (``bank.chore``) or async (``bank.errand``), and leaves one entry. A round
(``bank.round``) leaves one too, and sends a chore, an errand and another chore.

What goes wrong is in the message (see ``handler_faults``), or in the environment of the process:

    BANK_KILL        step,stage,occurrence,marker: SIGKILL there, once for all processes that share the marker file;
                     several of them with a semicolon between
    BANK_PAUSE       the same with SIGSTOP
    BANK_HOLD        the same, waiting at the gate that the marker is the name of: see ``handler_faults.gate``
    BANK_CLOCK       a file with the seconds by which the wall clock is off
    BANK_SABOTAGE    the guarantee of the library to break: see ``sabotage``
    BANK_QUEUE       the URL of its messages, where they are not beside its ledger; BANK_MODE is the stages' mode then
    BANK_CLEARING    how the bytes of its messages go after they were sent: see ``App(clearing=…)``
    BANK_LEASE       seconds until what was not marked as sent, or is in doubt, is looked at
    BANK_APP_NAME    the app's, if not bank
    BANK_BATCH       how many messages of a stage may share a transaction
    BANK_TIME_LIMIT  of chores and errands, in seconds
    BANK_BLOCKING    a failed chore or errand stays on its thread, for three seconds at first
    BANK_TUNE        name=seconds,…: shorten what would make a test long: see ``TUNED``
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from stagepost import App, Context, Endpoint, Redelivery, StagedEndpoint, Target
from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND, SystemClock, microseconds
from stagepost.runtime import watchdog
from stagepost.runtime.modes import check_mode
from stagepost.transaction import inbox_guard, relay, two_phase
from stagepost.transaction.sent_marks import Clearing
from stagepost.transaction.steps import Step, StepListener, unobserved
from tests.faults.handler_faults import killed_once, meet, meet_async, once, wait_at

LEDGER = (
    """
    CREATE TABLE IF NOT EXISTS ledger
    (flow_id TEXT NOT NULL, stage TEXT NOT NULL, account TEXT NOT NULL, amount INTEGER NOT NULL, process INTEGER)
    """,
    # For the handlers that end their transaction behind our back. Nothing in it is checked.
    "CREATE TABLE IF NOT EXISTS scratch (name TEXT PRIMARY KEY)",
    # For those that write more than fits the cache, so that their own statement meets a full disk.
    "CREATE TABLE IF NOT EXISTS bulk (flow_id TEXT, data BLOB)",
)


@dataclass
class Transfer:
    source: str
    target: str
    amount: int
    fault: str = ""


@dataclass
class Check:
    account: str
    fault: str = ""


@dataclass
class Checked:
    account: str


@dataclass
class Confirm:
    account: str


@dataclass
class Receipt:
    account: str
    fault: str = ""


@dataclass
class Progress:
    transfer: Transfer | None = None


@dataclass
class Chore:
    name: str
    fault: str = ""


FRAUD = Target("bank.fraud", Check, Checked)


def enter(ctx: Context, account: str, amount: int) -> None:
    ctx.sql(
        "INSERT INTO ledger (flow_id, stage, account, amount, process) VALUES (:flow, :stage, :account, :amount, :pid)",
        flow=ctx.flow_id,
        stage=ctx.stage,
        account=account,
        amount=amount,
        pid=os.getpid(),
    )


def transfer(ctx: Context, state: Progress, order: Transfer) -> None:
    meet(ctx, order.fault, before=True)
    state.transfer = order
    enter(ctx, order.source, -order.amount)
    meet(ctx, order.fault, before=False)
    ctx.request(FRAUD, Check(order.source, order.fault))


def fraud(ctx: Context, check: Check) -> Checked:
    meet(ctx, check.fault, before=True)
    enter(ctx, check.account, 0)
    meet(ctx, check.fault, before=False)
    return Checked(check.account)


def credit(ctx: Context, state: Progress, checked: Checked) -> None:
    assert state.transfer is not None
    meet(ctx, state.transfer.fault, before=True)
    enter(ctx, state.transfer.target, state.transfer.amount)
    meet(ctx, state.transfer.fault, before=False)
    ctx.next(Confirm(checked.account))


def confirm(ctx: Context, state: Progress, confirmation: Confirm) -> Receipt:
    assert state.transfer is not None
    meet(ctx, state.transfer.fault, before=True)
    enter(ctx, confirmation.account, 0)
    meet(ctx, state.transfer.fault, before=False)
    return Receipt(confirmation.account, state.transfer.fault)


def done(ctx: Context, receipt: Receipt) -> None:
    meet(ctx, receipt.fault, before=True)
    enter(ctx, receipt.account, 0)
    meet(ctx, receipt.fault, before=False)


def chore(ctx: Context, order: Chore) -> None:
    meet(ctx, order.fault, before=True)
    enter(ctx, order.name, 0)
    meet(ctx, order.fault, before=False)


async def errand(ctx: Context, order: Chore) -> None:
    await meet_async(ctx, order.fault, before=True)
    enter(ctx, order.name, 0)
    await meet_async(ctx, order.fault, before=False)


def go_round(ctx: Context, order: Chore) -> None:
    meet(ctx, order.fault, before=True)
    enter(ctx, order.name, 0)
    meet(ctx, order.fault, before=False)
    for number, address in enumerate(["bank.chore", "bank.errand", "bank.chore"], 1):
        ctx.send(Target(address, Chore, None), Chore(f"{order.name}/{number}", order.fault))


@dataclass(frozen=True)
class Bank:
    app: App
    transfer: StagedEndpoint[Transfer, Receipt]
    done: Endpoint[Receipt, None]
    chore: Endpoint[Chore, None]
    errand: Endpoint[Chore, None]
    round: Endpoint[Chore, None]


def open_bank(database: str | None = None, queue: str | None = None, mode: str | None = None) -> Bank:
    time_limit = float(os.environ.get("BANK_TIME_LIMIT", "600"))
    batch = int(os.environ.get("BANK_BATCH", "1"))
    app = App(
        os.environ.get("BANK_APP_NAME", "bank"),
        database=database,
        queue=queue,
        mode=None if mode is None else check_mode(mode),
        clearing=cast("Clearing", os.environ.get("BANK_CLEARING", "worker")),
        listener=listener_of_environment(),
        clock=clock_of_environment(),
    )
    transfers: StagedEndpoint[Transfer, Receipt] = app.staged("bank.transfer", batch=batch)
    transfers.stage(transfer)
    transfers.stage(credit)
    transfers.stage(confirm)
    app.endpoint("bank.fraud", batch=batch)(fraud)
    is_blocking = "BANK_BLOCKING" in os.environ
    few = Redelivery(redeliveries=2, first_seconds=3 if is_blocking else 0.05, blocking=is_blocking)
    return Bank(
        app,
        transfers,
        app.endpoint("bank.done", batch=batch)(done),
        app.endpoint("bank.chore", redelivery=few, time_limit=time_limit, batch=batch)(chore),
        app.endpoint("bank.errand", redelivery=few, time_limit=time_limit, batch=batch)(errand),
        app.endpoint("bank.round", batch=batch)(go_round),
    )


class DisplacedClock(SystemClock):
    """The wall clock is off by what the file says; the monotonic one is not."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def now(self) -> int:
        return super().now() + microseconds(float(self._file.read_text()))


def clock_of_environment() -> SystemClock:
    file = os.environ.get("BANK_CLOCK")
    return DisplacedClock(Path(file)) if file else SystemClock()


def listener_of_environment() -> StepListener:
    if "BANK_KILL" in os.environ:
        return all_of([killed_once(each) for each in os.environ["BANK_KILL"].split(";")])
    if "BANK_PAUSE" in os.environ:
        step, stage, occurrence, marker = os.environ["BANK_PAUSE"].split(",")
        return once(step, stage, occurrence, marker, pause)
    if "BANK_HOLD" in os.environ:
        step, stage, occurrence, name = os.environ["BANK_HOLD"].split(",")
        return once(step, stage, occurrence, f"{name}.entered", lambda current, claim: wait_at(name))
    return unobserved


def all_of(listeners: Sequence[StepListener]) -> StepListener:
    def listen(current: Step, claim: Claim) -> None:
        for each in listeners:
            each(current, claim)

    return listen


def pause(step: Step, claim: Claim) -> None:
    # To this very thread: sent to the process, another one may take it, and this one goes on for a moment.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


# What BANK_TUNE may shorten: the module and its constant, in seconds.
TUNED: dict[str, tuple[str, str]] = {
    # After how long without a heartbeat the supervisor kills.
    "hung": ("stagepost.worker.supervisor", "HUNG_SECONDS"),
    # After how long without a heartbeat a suspect's process is killed.
    "silent": ("stagepost.runtime.isolation", "SILENT_SECONDS"),
    # How long the supervisor may wait before it starts another one in place of one that did not live long.
    "restart": ("stagepost.worker.supervisor", "RESTART_SECONDS_MAX"),
    # Until a message that died is tried again.
    "death": ("stagepost.recovery.suspicion", "PAUSE_SECONDS_FIRST"),
    # How long messages may wait beside an idle thread before their worker is replaced.
    "no_progress": ("__main__", "NO_PROGRESS_SECONDS"),
    # Until a database that did not answer is asked again.
    "retry": ("stagepost.transaction.database_wait", "RETRY_SECONDS"),
    # How much work is claimed ahead. On a busy machine each message takes so long that only one would be.
    "ahead": ("stagepost.runtime.prefetch", "AHEAD_SECONDS"),
    # For how long a writer waits for another one, on SQLite.
    "writer": ("stagepost.store.sqlite.writer_lock", "WAIT_SECONDS_MAX"),
}


def tune(wanted: str) -> None:
    for each in filter(None, wanted.split(",")):
        name, _, value = each.partition("=")
        match name:
            # An import that does not end; the file says that it has begun.
            case "import":
                Path(value).touch()
                time.sleep(3600)
            # How long an interrupted handler may take to come back before its process is replaced.
            case "yield":
                watchdog.ThreadWatch.__init__.__defaults__ = (float(value),)
            # Until a relay tries again to send what the queue did not take.
            case "unsendable":
                relay.PAUSE = int(float(value) * SECOND)
            case _:
                place, constant = TUNED[name]
                constants = vars(import_module(place))
                assert constant in constants, f"{place} has no {constant}"
                constants[constant] = float(value)


tune(os.environ.get("BANK_TUNE", ""))
if "BANK_SABOTAGE" in os.environ:
    # It knows the rooms of both stores, and to import them takes as long as all else at a worker's start.
    import_module("tests.faults.sabotage").apply(os.environ["BANK_SABOTAGE"])
if "BANK_LEASE" in os.environ:
    inbox_guard.LEASE = relay.LEASE = int(os.environ["BANK_LEASE"]) * SECOND
    two_phase.DOUBT_SECONDS = float(os.environ["BANK_LEASE"])
    relay.LOOK_SECONDS = two_phase.DOUBT_SECONDS / 2
app = open_bank(None, os.environ.get("BANK_QUEUE"), os.environ.get("BANK_MODE")).app
