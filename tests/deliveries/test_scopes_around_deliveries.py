"""A delivery has a scope of services, as any stage has. That sinks are around both is in test_sinks.py."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stagepost import Context
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


@pytest.mark.parametrize("kind", ["handler", "delivery"])
def test_each_attempt_of_any_stage_is_inside_a_scope(
    kind: str, new_app: NewApp, consumer: NewConsumer, harness_of: NewHarness
) -> None:
    notes = Notes()
    app = new_app(scopes=notes)
    if kind == "delivery":
        shop = consumer(answer(503))
        shop.on_request = lambda request: notes.calls.append("work")
        deliver(app, "out", Delivery(url=shop.url, allow_private=["localhost"]))
    else:

        @app.endpoint("out")
        def out(ctx: Context, message: Posted) -> None:
            notes.calls.append("work")
            if ctx.attempt == 1:
                raise ValueError

    app.start(app.target("out"), Posted(msgspec.Raw(BODY)), flow_id="f1")
    harness_of(app).drain()
    assert notes.calls == ["open", "work", "close"] * 2
