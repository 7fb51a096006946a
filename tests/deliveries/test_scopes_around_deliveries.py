"""A delivery has a scope of services, as any stage has."""

from __future__ import annotations

from typing import Any

import msgspec

from stagepost.gateway.out import Delivery, Posted, deliver
from tests.conftest import NewApp
from tests.deliveries.conftest import BODY, NewConsumer, NewHarness
from tests.deliveries.consumer import answer


class Notes:
    """Scopes that note what happens to them."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self) -> Notes:
        self.calls.append("open")
        return self

    def get(self, wanted: Any) -> Any:
        return wanted()

    def close(self) -> None:
        self.calls.append("close")


def test_each_attempt_of_a_delivery_is_inside_a_scope(
    new_app: NewApp, consumer: NewConsumer, harness_of: NewHarness
) -> None:
    notes = Notes()
    app = new_app(scopes=notes)
    shop = consumer(answer(503))
    shop.on_request = lambda request: notes.calls.append("request")
    route = deliver(app, "out", Delivery(url=shop.url, allow_private=["localhost"]))
    app.start(route, Posted(msgspec.Raw(BODY)), flow_id="f1")
    harness_of(app).drain()
    assert notes.calls == ["open", "request", "close"] * 2
