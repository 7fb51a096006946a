"""Two services with a broker between: the front is behind a gateway, and the back delivers to a consumer."""

from __future__ import annotations

import os
from typing import Any

from stagepost import App, Context, Redelivery, Target
from stagepost.gateway.out import Delivery, deliver
from tests.deliveries.messages import Placed

front = App("front")
back = App("back")

delivered: Target[Placed, Any] = front.remote("orders.out", Placed)


@front.endpoint("orders.place")
def place(ctx: Context, placed: Placed) -> None:
    ctx.send(delivered, placed)


orders_out = deliver(
    back,
    "orders.out",
    Delivery(
        url=os.environ.get("SHOP_FIRST", "https://nowhere.invalid/"),
        allow_private=["localhost"],
        timeout_seconds=0.5,
        pause_after=0,
        redelivery=Redelivery.fixed(every_seconds=0.1, times=200),
    ),
    message=Placed,
)
