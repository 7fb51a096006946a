from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from stagepost import App
from stagepost.gateway.out import Delivery, Posted, deliver
from stagepost.testing import Harness, ManualClock
from tests.deliveries.consumer import Act, Consumer

BODY = b'{"order": "o1", "amount": 12}'
NewConsumer = Callable[..., Consumer]
Declare = Callable[..., Any]
NewHarness = Callable[..., Harness]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Deliveries are for apps whose messages are in the database of their data."""
    name = request.param
    made: Callable[[], str] = (lambda: "toy:") if name == "memory" else request.getfixturevalue(f"new_{name}")
    return made


@pytest.fixture
def consumer() -> Iterator[NewConsumer]:
    with ExitStack() as stack:
        yield lambda *script, **options: stack.enter_context(Consumer(*script, **options))


@pytest.fixture
def route(app: App) -> Declare:
    """Declare the deliveries to a consumer, and start one flow for each id."""

    def make(consumer: Consumer, *flow_ids: str, name: str = "orders.out", **settings: Any) -> Any:
        given = {"url": consumer.url, "allow_private": ["localhost"], **settings}
        endpoint = deliver(app, name, Delivery(**given))
        for each in flow_ids:
            app.start(endpoint, Posted(msgspec.Raw(BODY)), flow_id=each)
        return endpoint

    return make


@pytest.fixture
def waypoints() -> Callable[[Harness, str], list[str]]:
    return lambda harness, flow_id: [each.waypoint for each in harness.history(flow_id)]


__all__ = ["Act", "ManualClock"]
