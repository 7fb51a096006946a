"""The headers of a delivery, read by the libraries of the specifications."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import msgspec
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from standardwebhooks import Webhook, WebhookVerificationError

from stagepost import App, Context
from stagepost.flow.clock import SECOND
from stagepost.gateway.out import Posted
from stagepost.testing import ManualClock
from tests.deliveries.conftest import Declare, NewConsumer, NewHarness

SECRETS = [f"whsec_{base64.b64encode(bytes([each]) * 32).decode()}" for each in (1, 2)]


@pytest.fixture
def clock() -> ManualClock:
    """The library compares the signature's time with the real one."""
    return ManualClock(int(datetime.now(UTC).timestamp()) * SECOND)


@pytest.mark.parametrize("secrets", [SECRETS[:1], SECRETS])
def test_the_library_of_standard_webhooks_verifies_each_delivery(
    consumer: NewConsumer, route: Declare, harness: NewHarness, secrets: list[str]
) -> None:
    shop = consumer()
    route(shop, "f1", secret=secrets)
    harness().drain()
    (request,) = shop.requests
    for each in secrets:
        assert Webhook(each).verify(request.body, request.headers) == {"order": "o1", "amount": 12}
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS[0]).verify(request.body + b" ", request.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(f"whsec_{base64.b64encode(bytes(32)).decode()}").verify(request.body, request.headers)
    assert request.headers["webhook-id"] == request.headers["message-id"]


def test_a_route_without_a_secret_signs_nothing(consumer: NewConsumer, route: Declare, harness: NewHarness) -> None:
    shop = consumer()
    route(shop, "f1")
    harness().drain()
    assert not [each for each in shop.requests[0].headers if each.startswith("webhook")]


def test_the_sdk_of_cloudevents_reads_each_delivery(
    consumer: NewConsumer, route: Declare, harness: NewHarness, clock: ManualClock
) -> None:
    shop = consumer()
    route(shop, "f1")
    harness().drain()
    (request,) = shop.requests
    event = from_http_event(HTTPMessage(request.headers, request.body))
    assert event.get_id() == request.headers["message-id"] == request.headers["idempotency-key"]
    assert event.get_source() == "/shop/orders.out"
    assert event.get_type() == "orders.out"
    assert event.get_time() == datetime.fromtimestamp(clock.now() // SECOND, UTC)
    assert event.get_data() == {"order": "o1", "amount": 12}


def test_the_attributes_of_a_producers_event_reach_the_consumer(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness
) -> None:
    shop = consumer()
    attributes = {
        "specversion": "1.0",
        "id": "7 of 9",
        "source": "/erp/zürich",
        "type": "com.example.placed",
        "subject": 'one "quoted" 100% \U0001f600',
        "region": "eu",
        "datacontenttype": "application/json; charset=utf-8",
    }
    app.start(route(shop), Posted(msgspec.Raw(b"[1]"), attributes), flow_id="f1")
    harness().drain()
    (request,) = shop.requests
    event = from_http_event(HTTPMessage(request.headers, request.body))
    found = {name: event.get_attributes()[name] for name in attributes}
    assert found == attributes
    assert request.headers["message-id"] != "7 of 9"
    assert all(each.isascii() for each in request.headers.values())


@pytest.mark.parametrize("value", ["text/plain\r\nX-Evil: 1", "tëxt", "", "application/json\x7f"])
def test_an_attribute_makes_no_header_of_its_own(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness, value: str
) -> None:
    shop = consumer()
    posted = Posted(msgspec.Raw(b"1"), {"datacontenttype": value, "subject": value, "bad name\r\nx: y": "1"})
    app.start(route(shop), posted, flow_id="f1")
    outcomes = harness().drain()
    (request,) = shop.requests
    assert len(outcomes) == 1
    assert "x-evil" not in request.headers
    assert "x" not in request.headers
    assert request.headers["content-type"] == "application/json"


def test_a_delivery_of_a_declared_type_is_its_canonical_json(
    app: App, consumer: NewConsumer, harness: NewHarness
) -> None:
    from stagepost.gateway.out import Delivery, deliver
    from tests.deliveries.messages import Placed

    shop = consumer()
    endpoint = deliver(app, "placed", Delivery(url=shop.url, allow_private=["localhost"]), message=Placed)

    @app.endpoint("place")
    def place(ctx: Context, placed: Placed) -> None:
        ctx.send(endpoint, placed)

    app.start(place, Placed("o1", 7), flow_id="f1")
    harness().drain()
    (request,) = shop.requests
    assert request.body == b'{"amount":7,"order":"o1"}'
    assert request.headers["ce-type"] == "Placed"
