"""An app that calls a card processor by HTTP and sends mails by SMTP. Its environment says where, and what to kill."""

from __future__ import annotations

import os
import signal
import smtplib
import time
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path

import httpx2

from stagepost import App, Context, Redelivery
from stagepost.flow.claim import Claim
from stagepost.recovery import suspicion
from stagepost.transaction.steps import Step
from stagepost.worker import supervisor

PLACES = Path(os.environ["CALLS_PLACES"])
# ``step`` kills this process once when it passes the step, and ``step:2`` kills it twice.
# ``step:hold`` holds its thread there once, until ``go`` exists.
# ``FLOW/STAGE/STEP …`` kills it once at each of these.
KILL = os.environ.get("CALLS_KILL", "")
# A call that ends by its time-out is asked about, or repeated, and a busy machine delays sound ones by seconds.
TIMEOUT_SECONDS = 4.0
SETTLE_AFTER_SECONDS = 8.0


@dataclass
class Payment:
    id: str
    # For whom the call takes longer than it may: a sleep that is no library's.
    sleeps: float = 0
    # The message is refused after its call.
    is_refused: bool = False


@dataclass
class Capture:
    id: str


@dataclass
class Ending:
    """A payment, and how its message ends."""

    id: str
    how: str


def at_step(step: Step, claim: Claim) -> None:
    if "/" in KILL:
        place = f"{claim.flow_id}/{claim.stage}/{step}"
        killed = PLACES / place.replace("/", "-")
        if place in KILL.split() and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return
    name, _, how = KILL.partition(":")
    if step != name or claim.stage not in ("pay", "mail"):
        return
    for n in range(int(how) if how.isdecimal() else 1):
        try:
            (PLACES / f"killed-{n}").touch(exist_ok=False)
        except FileExistsError:
            continue
        if how == "hold":
            while not (PLACES / "go").exists():
                time.sleep(0.01)
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        return


if "/" in KILL:
    # Processes are killed often, so they are replaced soon.
    supervisor.RESTART_SECONDS_MAX = suspicion.PAUSE_SECONDS_FIRST = 0.1
times = int(os.environ.get("CALLS_ATTEMPTS", "20"))
app = App("calls", listener=at_step, redelivery=Redelivery.fixed(every_seconds=0.2, times=times))


def place_of(name: str) -> str:
    return (PLACES / name).read_text()


def capture(payment: Payment, *, key: str, timeout: float) -> Capture:
    if payment.sleeps and not (PLACES / f"slept-{payment.id}").exists():
        (PLACES / f"slept-{payment.id}").touch()
        end = time.monotonic() + payment.sleeps
        while time.monotonic() < end:
            time.sleep(0.05)
    answer = httpx2.post(f"{place_of('http')}/{payment.id}", headers={"Idempotency-Key": key}, timeout=timeout)
    answer.raise_for_status()
    return Capture(answer.text)


def find(payment: Payment, *, key: str, timeout: float) -> Capture | None:
    answer = httpx2.get(f"{place_of('http')}/{key}", timeout=timeout)
    return Capture(answer.text) if answer.status_code == 200 else None


def void(payment: Payment, capture: Capture, *, key: str, timeout: float) -> None:
    httpx2.delete(
        f"{place_of('http')}/{capture.id}", headers={"Idempotency-Key": key}, timeout=timeout
    ).raise_for_status()


def send(payment: Payment, *, key: str, timeout: float) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"], mail["Message-ID"] = (
        "a@a.test",
        "b@b.test",
        payment.id,
        f"<{key}@a.test>",
    )
    host, port = place_of("smtp").split(":")
    with smtplib.SMTP(host, int(port), timeout=timeout) as server:
        server.send_message(mail)


card = app.effect(
    "card", call=capture, query=find, undo=void, timeout=TIMEOUT_SECONDS, settle_after=SETTLE_AFTER_SECONDS
)
letter = app.effect("letter", call=send, timeout=TIMEOUT_SECONDS, settle_after=SETTLE_AFTER_SECONDS)


@app.endpoint("pay")
def pay(ctx: Context, payment: Payment) -> None:
    captured = ctx.effect(card, payment)
    if payment.is_refused:
        ctx.refuse("no such account")
    ctx.sql("INSERT INTO paid (payment, capture) VALUES (:payment, :capture)", payment=payment.id, capture=captured.id)


@app.endpoint("mail")
def mail(ctx: Context, payment: Payment) -> None:
    ctx.effect(letter, payment)
    ctx.sql("INSERT INTO paid (payment, capture) VALUES (:payment, 'mail')", payment=payment.id)


def charge(ending: Ending, *, key: str, timeout: float) -> Capture:
    return capture(Payment(ending.id), key=key, timeout=timeout)


def find_charge(ending: Ending, *, key: str, timeout: float) -> Capture | None:
    return find(Payment(ending.id), key=key, timeout=timeout)


def refund(ending: Ending, charged: Capture, *, key: str, timeout: float) -> None:
    if ending.how == "stuck" and not (PLACES / "mended").exists():
        raise ConnectionError("the processor refunds nothing today")
    void(Payment(ending.id), charged, key=key, timeout=timeout)


charges = app.effect(
    "charge", call=charge, query=find_charge, undo=refund, timeout=TIMEOUT_SECONDS, settle_after=SETTLE_AFTER_SECONDS
)
# Nobody can be asked about its result.
blind = app.effect("blind", call=charge, undo=refund, timeout=TIMEOUT_SECONDS, settle_after=SETTLE_AFTER_SECONDS)


@app.endpoint("done")
def done(ctx: Context, ending: Ending) -> None: ...


@app.endpoint("settle", redelivery=Redelivery.fixed(every_seconds=0.2, times=1))
def settle(ctx: Context, ending: Ending) -> Ending:
    seen = PLACES / f"seen-{ending.id}"
    takes_another_branch = ending.how in ("branch", "unknown", "doubted") and seen.exists()
    if not takes_another_branch:
        seen.touch()
        ctx.effect(blind if ending.how == "doubted" else charges, ending)
    if ending.how == "branch" and not takes_another_branch:
        raise ValueError("the next attempt takes another branch")
    if not (PLACES / "mended").exists():
        if ending.how in ("refused", "stuck"):
            ctx.refuse("no such account")
        if ending.how == "exhausted":
            raise ValueError("each attempt fails")
        if ending.how == "failed":
            ctx.fail_with(ending)
    ctx.sql("INSERT INTO paid (payment, capture) VALUES (:payment, 'settled')", payment=ending.id)
    return ending
