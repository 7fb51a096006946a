"""An app with two routes and a stage of its own. Each test names the consumers in the environment."""

from __future__ import annotations

import os

from stagepost import App, Context, Redelivery
from stagepost.gateway.out import Delivery, Refusal, deliver
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
