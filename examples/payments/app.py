"""Reserve an order on the payer's account, clear it with the other bank, settle it, and write a receipt.

Three endpoints have four stages, and each stage is one transaction. The demo runs a consumer outside, which gets the
receipts over HTTP. Three kinds of orders end as dead letters: an order above the limit is refused, an order for an
unknown bank fails every time, and one order kills its process.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from decimal import Decimal

from examples.payments import ledger
from stagepost import App, Context, Redelivery, Target

# The delays are short, so that the demo does not wait long for messages that fail every time.
app = App("payments", redelivery=Redelivery.exponential(3, first_seconds=0.2))

LIMIT = Decimal("100000.00")
BANKS = {"AB", "CD", "EF", "GH", "IJ", "KL", "MN", "OP", "QR", "ST", "UV", "WX", "YZ"}
DEADLY = "POISON"
CONFIRM = "payments.confirm"


@dataclass
class Order:
    """A row of the input file: its columns fill these fields by name."""

    order_id: int
    account_id: int
    bank_to: str
    account_to: str
    amount: Decimal
    k_symbol: str = ""


@dataclass
class Transfer:
    order_id: int
    bank: str
    account: str
    amount: Decimal
    symbol: str


@dataclass
class Cleared:
    reference: str


@dataclass
class Payment:
    """The state that travels with the flow from stage to stage."""

    order: Order | None = None


@dataclass
class Receipt:
    order_id: int
    reference: str


def transfer(ctx: Context, transfer: Transfer) -> Cleared:
    """Clear a transfer with the other bank. This represents foreign code, which may refuse, fail or crash."""
    if transfer.symbol == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)
    if transfer.bank not in BANKS:
        raise LookupError(f"no clearing agreement with bank {transfer.bank}")
    return Cleared(f"{transfer.bank}-{transfer.order_id}")


# With PAYMENTS_CLEARING=remote the clearing house is a service of its own, behind the broker of the settings.
IS_REMOTE = os.environ.get("PAYMENTS_CLEARING") == "remote"
clearing: Target[Transfer, Cleared] = (
    app.remote("clearing.transfer", Transfer, Cleared) if IS_REMOTE else app.endpoint("clearing.transfer")(transfer)
)
pay = app.staged("payments.pay")


@pay.stage
def reserve(ctx: Context, payment: Payment, order: Order) -> None:
    if order.amount <= 0 or order.amount > LIMIT:
        ctx.refuse(f"the amount {order.amount} is refused: an order must be above 0 and at most {LIMIT}")
    payment.order = order
    ledger.reserve(ctx, order.order_id, order.account_id, ledger.hundredths(order.amount))
    ctx.request(clearing, Transfer(order.order_id, order.bank_to, order.account_to, order.amount, order.k_symbol))


@pay.stage
def settle(ctx: Context, payment: Payment, cleared: Cleared) -> Receipt:
    order = payment.order
    assert order is not None
    ledger.settle(ctx, order.order_id, order.bank_to, order.account_to, ledger.hundredths(order.amount))
    return Receipt(order.order_id, cleared.reference)


# Where the receipts are posted to, if anywhere.
CONSUMER = os.environ.get("PAYMENTS_CONSUMER")
if CONSUMER:
    from examples.payments.consumer import PATIENCE_SECONDS
    from stagepost.gateway.out import Delivery, deliver

    deliver(
        app,
        CONFIRM,
        Delivery(
            url=CONSUMER,
            allow_private=["127.0.0.1"],
            timeout_seconds=PATIENCE_SECONDS,
            redelivery=Redelivery.exponential(12, first_seconds=0.2, cap_seconds=2),
            pause_after=10,
        ),
        message=Receipt,
    )


@app.endpoint("payments.receipts")
def receipts(ctx: Context, receipt: Receipt) -> None:
    ctx.sql(
        "INSERT INTO receipt (order_id, reference) VALUES (:order_id, :reference)",
        order_id=receipt.order_id,
        reference=receipt.reference,
    )
    if CONSUMER:
        ctx.send(app.target(CONFIRM), receipt)
