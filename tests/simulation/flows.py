"""What the simulated flows do: money moves from a payer, over a stop, to a bank; some orders are poison.

The ledger is append-only and knows no key, so that what is done twice stands there twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from stagepost import App, Context, Redelivery
from stagepost.testing import ManualClock
from stagepost.transaction.steps import Halt


@dataclass
class Order:
    number: int
    amount: int
    # How many attempts each stage fails before it succeeds, and what is wrong for good: "", "refuse", "fail", "kill".
    failures: int = 0
    poison: str = ""


@dataclass
class Transfer:
    order: Order


@dataclass
class Cleared:
    number: int


@dataclass
class Payment:
    order: Order | None = None


@dataclass
class Receipt:
    number: int


class HandlerKillsItsProcess(Halt):
    """Stands for a crash inside the handler: the world sees it and lets the worker die."""


def make_app(seed: int, attempts_seen: dict[tuple[str, int], int], *, queue: str | None = None) -> App:
    """``attempts_seen`` counts handler runs by stage and order: what commits must not depend on it."""
    app = App(
        "simulated",
        database="toy:",
        queue=queue,
        clock=ManualClock(),
        random=Random(seed),
        redelivery=Redelivery.exponential(4, first_seconds=0.5),
    )

    def fails_first(ctx: Context, order: Order) -> None:
        attempts_seen[ctx.stage, order.number] = attempts_seen.get((ctx.stage, order.number), 0) + 1
        if ctx.attempt <= order.failures:
            raise ConnectionError(f"order {order.number} fails in its attempt {ctx.attempt}")

    pay = app.staged("pay")

    @pay.stage
    def reserve(ctx: Context, payment: Payment, order: Order) -> None:
        if order.poison == "refuse":
            ctx.refuse("never")
        payment.order = order
        ctx.connection.append(("reserve", order.number, -order.amount))
        ctx.request(clear, Transfer(order))
        ctx.send(note, Receipt(order.number))
        fails_first(ctx, order)

    @pay.stage
    def settle(ctx: Context, payment: Payment, cleared: Cleared) -> Receipt:
        assert payment.order is not None
        fails_first(ctx, payment.order)
        ctx.connection.append(("settle", cleared.number, payment.order.amount))
        return Receipt(cleared.number)

    @app.endpoint("clear")
    def clear(ctx: Context, transfer: Transfer) -> Cleared:
        # It never touches the database: its transaction begins after it.
        if transfer.order.poison == "fail":
            raise ValueError("always")
        if transfer.order.poison == "kill":
            raise HandlerKillsItsProcess
        return Cleared(transfer.order.number)

    @app.endpoint("note")
    def note(ctx: Context, receipt: Receipt) -> None:
        with ctx.initiate() as out:
            out.send(audit, receipt, flow_id=f"audit:{receipt.number}")

    @app.endpoint("audit")
    def audit(ctx: Context, receipt: Receipt) -> None:
        ctx.connection.append(("audit", receipt.number, 0))

    @app.endpoint("done")
    def done(ctx: Context, receipt: Receipt) -> None:
        ctx.connection.append(("done", receipt.number, 0))

    return app


def expected_ledger(order: Order) -> list[tuple[str, int, int]]:
    """What one order must leave behind, exactly once."""
    if order.poison == "refuse":
        return []
    half = [("audit", order.number, 0), ("reserve", order.number, -order.amount)]
    if order.poison:
        return half
    return [half[0], ("done", order.number, 0), half[1], ("settle", order.number, order.amount)]


EXPECTED_REASON = {"refuse": "refused", "fail": "exhausted", "kill": "worker-died"}
