"""Requests prove their producer by a key, by a signature with a time, or by a certificate that a proxy checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request

from stagepost import App, DeclarationError
from stagepost.app.app import engine_of
from stagepost.gateway import Producer, Route, asgi, hash_of_key, new_key
from stagepost.gateway.producers import TOLERANCE_SECONDS, Proxy, sign
from stagepost.testing import ManualClock
from tests.gateway.asgi_client import JSON, Call, Client
from tests.gateway.conftest import NewGateway
from tests.gateway.shop import ERP, KEY, ONE, ORDERS, WITH_ID, stored, with_endpoint

SECRET = "a secret of the two of us"
SIGNER = Producer("signer", secrets=["an older secret of us", SECRET])
SECOND = 1_000_000


@pytest.fixture
def timed_shop(new_sqlite: Callable[[], str], clock: ManualClock) -> App:
    return with_endpoint(App("shop", database=new_sqlite(), clock=clock))


def signed(app: App, path: str = "/orders", *, offset: int = 0, method: str = "POST", **changes: Any) -> Call:
    """Return a signed request. ``changes`` replace parts of it after it was signed."""
    body = json.dumps(ONE).encode() if method == "POST" else b""
    theirs = "order-1" if method == "POST" else ""
    timestamp = str(engine_of(app).clock.now() // SECOND + offset)
    headers = {
        **(JSON if body else {}),
        **({"Message-Id": theirs} if theirs else {}),
        "Stagepost-Producer": "signer",
        "Stagepost-Timestamp": timestamp,
        "Stagepost-Signature": sign(SECRET, timestamp, method, path, theirs, body),
    }
    headers |= changes.get("headers", {})
    return Call(method, changes.get("sent_to", path), headers, [changes.get("body", body)])


def code_of(client: Client, call: Call) -> str:
    answer = client.call(call)[0]
    return "" if answer.status == 200 else answer.code


def test_a_request_without_valid_credentials_is_refused_on_every_resource_of_a_route(
    sqlite_shop: App, gateway_of: NewGateway
) -> None:
    client = gateway_of(sqlite_shop)
    client.headers.clear()
    for path, method in (("/orders", "POST"), ("/orders/batch", "POST"), ("/orders/messages/x", "GET")):
        missing = client.call(Call(method, path, {**JSON, **WITH_ID}, [b"{}"]))[0]
        assert (missing.status, missing.code) == (401, "credentials-missing")
        for wrong in (f"Bearer {new_key()}", f"Basic {KEY}", "Bearer", f"Bearer {KEY}x", hash_of_key(KEY), "Bearer é"):
            headers = {**JSON, **WITH_ID, "Authorization": wrong}
            refused = client.call(Call(method, path, headers, [b"{}"]))[0]
            assert (refused.status, refused.code) == (401, "credentials-invalid"), wrong
            assert refused.headers["www-authenticate"] == "Bearer"
    assert stored(sqlite_shop) == 0


def test_a_producer_has_two_keys_while_one_is_replaced(sqlite_shop: App, gateway_of: NewGateway) -> None:
    old, new = new_key(), new_key()
    client = gateway_of(sqlite_shop, producers=[Producer("erp", keys=[hash_of_key(old), hash_of_key(new)])])
    answers = [client.post("/orders", ONE, {**WITH_ID, "Authorization": f"Bearer {key}"}) for key in (old, new)]
    assert [each.json["status"] for each in answers] == ["accepted", "duplicate"]


def test_a_route_may_be_for_some_producers_only(sqlite_shop: App, gateway_of: NewGateway) -> None:
    web = Producer("web", keys=[hash_of_key("web's key of its own")])
    client = gateway_of(sqlite_shop, Route("orders", to="orders.place", producers=["web"]), producers=[ERP, web])
    assert (client.post("/orders", ONE, WITH_ID).status, client.get("/orders/messages/x").status) == (403, 403)
    as_web = {**WITH_ID, "Authorization": "Bearer web's key of its own"}
    assert client.post("/orders", ONE, as_web).json["status"] == "accepted"


def test_a_signature_covers_time_method_path_id_and_body(timed_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(timed_shop, ORDERS, Route("more", to="orders.place"), producers=[SIGNER])
    assert code_of(client, signed(timed_shop, "/orders?x=1")) == ""
    changes: list[dict[str, Any]] = [
        {"body": b"{}"},
        {"sent_to": "/more"},
        {"sent_to": "/orders?x=2"},
        {"headers": {"Message-Id": "other"}},
        {"headers": {"Stagepost-Timestamp": "1"}},
        {"headers": {"Stagepost-Timestamp": "soon"}},
        {"headers": {"Stagepost-Producer": "erp"}},
        {"headers": {"Stagepost-Producer": ""}},
        {"headers": {"Stagepost-Signature": "v1=é"}},
        {"headers": {"Stagepost-Signature": ""}},
    ]
    for each in changes:
        assert code_of(client, signed(timed_shop, **each)) == "credentials-invalid", each
    assert code_of(client, signed(timed_shop, "/orders/messages/order-1", method="GET")) == ""
    assert stored(timed_shop) == 1


@pytest.mark.parametrize("side", [-1, 1])
def test_a_recorded_request_is_refused_once_its_time_is_off(side: int, timed_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(timed_shop, producers=[SIGNER])
    assert code_of(client, signed(timed_shop, offset=side * TOLERANCE_SECONDS)) == ""
    assert code_of(client, signed(timed_shop, offset=side * (TOLERANCE_SECONDS + 1))) == "signature-expired"


def test_only_a_named_proxy_is_believed_about_certificates(sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(
        sqlite_shop,
        producers=[Producer("erp", certificates=["CN=erp,O=Shop"])],
        proxy=Proxy(["10.1.0.0/16", "::1"], "X-Client-Subject"),
    )

    def code(address: str, *subjects: str) -> str:
        headers = [*JSON.items(), *WITH_ID.items(), *(("X-Client-Subject", each) for each in subjects)]
        call = Call("POST", "/orders", headers, [json.dumps(ONE).encode()], client=(address, 1))
        return code_of(client, call)

    assert code("10.1.2.3", "CN=erp,O=Shop") == ""
    assert code("::1", "CN=erp,O=Shop") == ""
    assert code("10.1.2.3", "CN=other") == "credentials-invalid"
    # The client's own header is first, where a proxy only adds one.
    assert code("10.1.2.3", "CN=erp,O=Shop", "CN=other") == "credentials-invalid"
    assert code("10.2.0.1", "CN=erp,O=Shop") == "credentials-missing"
    assert code("unknown", "CN=erp,O=Shop") == "credentials-missing"


def test_an_application_brings_its_own_authentication(sqlite_shop: App, gateway_of: NewGateway) -> None:
    async def authenticate(request: Request) -> str | None:
        return request.headers.get("x-user")

    client = gateway_of(sqlite_shop, authenticate=authenticate)
    assert client.post("/orders", ONE, WITH_ID).code == "credentials-invalid"
    assert client.post("/orders", ONE, {**WITH_ID, "X-User": "a b"}).code == "credentials-invalid"
    assert client.post("/orders", ONE, {**WITH_ID, "X-User": "kim"}).status == 200
    with pytest.raises(DeclarationError, match="leave out"):
        asgi(sqlite_shop, routes=[ORDERS], producers=[ERP], authenticate=authenticate)


def test_an_anonymous_producer_needs_no_credentials_and_a_wrong_key_is_still_refused(
    sqlite_shop: App, gateway_of: NewGateway
) -> None:
    client = gateway_of(sqlite_shop, anonymous="dev")
    assert client.post("/orders", ONE, WITH_ID).json["status"] == "accepted"
    assert client.post("/orders", ONE, {**WITH_ID, "Authorization": "Bearer x"}).code == "credentials-invalid"


@pytest.mark.parametrize(
    ("producers", "proxy", "reason"),
    [
        ([], None, "has no producer"),
        ([Producer("a")], None, "no credentials"),
        ([Producer("a b", keys=[hash_of_key("x")])], None, "producer's name"),
        ([Producer("a", keys=["the key itself"])], None, "not the hash"),
        ([ERP, ERP], None, "twice"),
        ([ERP, Producer("b", keys=ERP.keys)], None, "same key"),
        ([Producer("a", secrets=["short"])], None, "shorter than"),
        ([Producer("a", certificates=["CN=a"])], None, "no proxy"),
        ([Producer("a", certificates=["CN=a"])], Proxy(["here"], "X"), "no address"),
    ],
)
def test_producers_that_cannot_work_are_refused_at_the_start(
    producers: list[Producer], proxy: Proxy | None, reason: str, sqlite_shop: App
) -> None:
    with pytest.raises(DeclarationError, match=reason):
        asgi(sqlite_shop, routes=[ORDERS], producers=producers, proxy=proxy)


def test_no_credential_is_in_the_text_of_a_producer() -> None:
    assert repr([ERP, SIGNER]) == "[<Producer erp>, <Producer signer>]"
