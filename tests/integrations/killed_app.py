"""An app whose handler writes by its session alone. Its worker dies once, at the point that KILL_AT names."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sqlalchemy import event
from sqlalchemy.orm import Session

from stagepost import App, Context
from stagepost.flow.claim import Claim
from stagepost.transaction.steps import Step
from tests.integrations.models import Line, Order, Sale

# The points that a session adds to the steps of the transaction.
IN_THE_SESSION = ("before_flush", "after_flush")


def reach(point: str) -> None:
    killed = Path(os.environ["KILLED"])
    if point == os.environ["KILL_AT"] and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def listen(step: Step, claim: Claim) -> None:
    reach(str(step))


for _point in IN_THE_SESSION:
    event.listen(Session, _point, lambda *_, point=_point: reach(point))

app = App("killed", listener=listen)


@app.endpoint("count")
def count(ctx: Context, order: Order) -> None:
    ctx.session.add(Sale(order_id=f"counted {order.id}"))


@app.endpoint("pay")
def pay(ctx: Context, order: Order) -> None:
    ctx.session.add(Sale(order_id=order.id, lines=[Line(item=f"{ctx.message_id}")]))
    ctx.send(count, order)
