"""The OpenAPI document holds for requests that are made of it, and its page loads nothing from elsewhere."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from stagepost import App
from stagepost.gateway import Gateway, Limits, Rejected, Route, asgi
from tests.gateway.conftest import NewGateway
from tests.gateway.shop import BY_FIELDS, ERP, ORDERS, WITH_KEY, Order
from tests.servers.chromium import visit

CONFORM = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEMA = {"type": "object", "properties": {"amount": {"minimum": 0}}, "required": ["amount"]}


def check(order: Order) -> None:
    if order.amount > 1_000_000:
        raise Rejected("too-much", "no account has so much", field="amount")


ROUTES = [
    ORDERS,
    BY_FIELDS,
    Route("checked", to="orders.place", check=check, schema=SCHEMA),
    Route("any", deliver={"url": "https://nowhere.invalid"}, schema=SCHEMA),
    Route("events", deliver={"url": "https://nowhere.invalid"}, id="cloudevents"),
]


def gateway(app: App) -> Gateway:
    return asgi(app, routes=ROUTES, producers=[ERP], limits=Limits(batch_max=20))


def test_the_document_names_every_route_and_its_types(sqlite_shop: App, gateway_of: NewGateway) -> None:
    document = gateway_of(sqlite_shop, *ROUTES).get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    assert {f"/{each.name}" for each in ROUTES} < set(document["paths"])
    assert document["components"]["schemas"]["Order"]["required"] == ["account", "invoice"]


def test_documents_can_be_hidden(sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(sqlite_shop, has_documents=False)
    assert [client.get(each).status for each in ("/openapi.json", "/docs", "/")] == [404, 404, 404]


def run_schemathesis(app: App, cases: int) -> int:
    """Call the gateway with generated requests, valid and invalid ones. Return how many there were."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", gateway(app))
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    made = 0
    for operation in operations:
        for mode in schemathesis.GenerationMode:

            @settings(
                max_examples=max(1, cases // len(operations) // 2),
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                database=None,
            )
            @given(operation.as_strategy(generation_mode=mode))
            def call(case: schemathesis.Case[Any]) -> None:
                nonlocal made
                made += 1
                case.validate_response(case.call(headers=WITH_KEY), checks=CONFORM)

            with suppress(Unsatisfiable):
                # No request without parameters and body is invalid.
                call()
    return made


def test_generated_requests_are_answered_as_the_document_says(sqlite_shop: App) -> None:
    assert run_schemathesis(sqlite_shop, 60) > 30


@pytest.mark.more
def test_a_thousand_generated_requests_are_answered_as_the_document_says(sqlite_shop: App) -> None:
    assert run_schemathesis(sqlite_shop, 1_200) >= 1_000


@pytest.mark.soak
def test_ten_thousand_generated_requests_are_answered_as_the_document_says(sqlite_shop: App) -> None:
    assert run_schemathesis(sqlite_shop, 12_000) >= 10_000


@pytest.mark.more
def test_the_page_is_shown_by_a_browser_and_asks_no_other_host(
    sqlite_shop: App, gateway_of: NewGateway, tmp_path: Path
) -> None:
    answer = gateway_of(sqlite_shop, *ROUTES).get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = tmp_path / "docs.html"
    page.write_bytes(answer.body)
    seen = visit(page, tmp_path)
    assert seen.requests == []
    for each in ROUTES:
        assert f"<code>/{each.name}</code>" in seen.dom
    assert json.dumps("account") in answer.body.decode().replace("&quot;", '"')
