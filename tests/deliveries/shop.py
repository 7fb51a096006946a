"""An app with two routes and a stage of its own. Each test names the consumers in the environment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from stagepost import App, Context, Redelivery
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.gateway.out import Delivery, Refusal, deliver
from stagepost.transaction.steps import Step
from tests.deliveries.messages import Placed

app = App("shop", database=os.environ.get("SHOP_DATABASE"))
QUICK = Redelivery.fixed(every_seconds=0.1, times=50)


def _delivery(name: str) -> Delivery:
    return Delivery(
        url=os.environ.get(name, "https://nowhere.invalid/"),
        allow_private=["localhost"],
        redelivery=QUICK,
        concurrency=2,
        timeout_seconds=float(os.environ.get("SHOP_TIMEOUT", "30")),
        report_to="refused",
    )


first = deliver(app, "first", _delivery("SHOP_FIRST"))
second = deliver(app, "second", _delivery("SHOP_SECOND"))


@app.endpoint("refused")
def refused(ctx: Context, refusal: Refusal) -> None: ...


@app.endpoint("place")
def place(ctx: Context, placed: Placed) -> None: ...


def _die_with_a_ticket(step: Step, claim: Claim) -> None:
    """Die at a step of a delivery for which there is a ticket: a file of the step's name, which costs one life."""
    if claim.stage != "first":
        return
    try:
        (Path(os.environ["SHOP_TICKETS"]) / step).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


if "SHOP_TICKETS" in os.environ:
    engine_of(app).listener = _die_with_a_ticket
