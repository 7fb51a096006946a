"""The producer's own view of a message that a route delivers."""

from __future__ import annotations

import pytest

from stagepost import App
from stagepost.gateway import Route, asgi
from tests.deliveries.conftest import Act, NewConsumer, NewHarness
from tests.deliveries.consumer import answer
from tests.gateway.asgi_client import client_of
from tests.gateway.shop import ONE, WITH_ID


@pytest.mark.parametrize(
    ("script", "reason", "waypoints"),
    [
        ([answer(422)], "refused", ["accepted", "received", "refused", "dead"]),
        (
            [answer(503), answer(422)],
            "maybe-delivered",
            ["accepted", "received", "failed", "delayed", "received", "failed", "dead"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_producer_can_tell_a_refusal_from_a_message_that_may_be_delivered(
    app: App, consumer: NewConsumer, harness: NewHarness, script: list[Act], reason: str, waypoints: list[str]
) -> None:
    shop = consumer(*script)
    delivery = {"url": shop.url, "allow_private": ["localhost"]}
    with client_of(asgi(app, routes=[Route("orders", deliver=delivery)], anonymous="erp")) as client:
        assert client.post("/orders", ONE, WITH_ID).status == 200
        harness().drain()
        found = client.status_of("orders", WITH_ID["Message-Id"]).json
    assert (found["status"], found["received"]) == ("dead", len(script))
    assert [each["waypoint"] for each in found["waypoints"]] == waypoints
    assert [each["reason"] for each in found["waypoints"] if "reason" in each] == [reason]
    # The consumer's words are for the operator.
    assert "localhost" not in str(found)
