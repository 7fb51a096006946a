"""An app with one endpoint behind a gateway, and a producer with a key."""

from __future__ import annotations

from dataclasses import dataclass

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.gateway import Producer, Route, hash_of_key, new_key

KEY = new_key()
ERP = Producer("erp", keys=[hash_of_key(KEY)])
WITH_KEY = {"Authorization": f"Bearer {KEY}"}
ORDERS = Route("orders", to="orders.place")
BY_FIELDS = Route("invoices", to="orders.place", id=["account", "invoice"])

ONE = {"account": "a", "invoice": 1, "amount": 2.5}
WITH_ID = {"Message-Id": "order-1"}


@dataclass
class Order:
    account: str
    invoice: int
    amount: float = 0.0


def with_endpoint(app: App) -> App:
    @app.endpoint("orders.place")
    def place(ctx: Context, order: Order) -> None:
        """Do nothing."""

    return app


def stored(app: App) -> int:
    """Return how many messages wait in the app's queue or in its outbox."""
    access = engine_of(app).access()
    try:
        waiting = sum(each.ready for each in access.session.queue.depths())
        return waiting + access.work.outbox.backlog().size
    finally:
        access.close()
