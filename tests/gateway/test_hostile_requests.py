"""Requests from strangers: each mistake has a status and a code, and none stores anything or is a 500."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagepost import App
from stagepost.gateway import Limits, Route
from tests.gateway.asgi_client import JSON, Call, Client
from tests.gateway.conftest import NewGateway
from tests.gateway.shop import ONE, WITH_ID, stored

KIB = 1024
SMALL = Limits(body_max=KIB, json_depth_max=20, batch_max=5, body_seconds=0.05, header_bytes_max=4 * KIB)


@pytest.fixture
def client(sqlite_shop: App, gateway_of: NewGateway) -> Client:
    return gateway_of(
        sqlite_shop,
        Route("any", deliver={"url": "https://nowhere.invalid"}),
        Route("orders", to="orders.place"),
        limits=SMALL,
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "json-invalid"),
        (b"{", "json-invalid"),
        (b"\xff\xfe[\x001\x00]\x00", "json-invalid"),
        (b"\xef\xbb\xbf[]", "json-invalid"),
        (b'"\xc3\x28"', "json-invalid"),
        (b'"\\ud800"', "json-invalid"),
        (b'{"\\udfff": 1}', "json-invalid"),
        (b'"\\u0000"', "json-invalid"),
        (b'{"a\\u0000": 1}', "json-invalid"),
        (b'"\\\\\\u0000"', "json-invalid"),
        (b'{"a": 1, "a": 1}', "json-invalid"),
        (b"NaN", "json-invalid"),
        (b"[Infinity]", "json-invalid"),
        (b"-Infinity", "json-invalid"),
        (b"1e400", "json-invalid"),
        (b"1e99999999999999999999", "json-invalid"),
        (b"1e-99999999999999999999999", "json-invalid"),
        (b"01", "json-invalid"),
        (b"[1,]", "json-invalid"),
        (b"'a'", "json-invalid"),
        (b'"a\nb"', "json-invalid"),
        (b"[1] [2]", "json-invalid"),
        (b"[" * 21 + b"]" * 21, "json-too-deep"),
        (b'{"a":' * 21 + b"1" + b"}" * 21, "json-too-deep"),
        (b"[" * 1000, "json-too-deep"),
        (b" " * (KIB + 1), "body-too-large"),
        (b'"' + b"x" * KIB + b'"', "body-too-large"),
    ],
)
def test_a_body_that_is_not_plain_json_is_refused(body: bytes, code: str, client: Client, sqlite_shop: App) -> None:
    assert client.post("/any", body, WITH_ID).code == code
    assert stored(sqlite_shop) == 0


@pytest.mark.parametrize(
    "body", [b"[" * 20 + b"]" * 20, b'"\\\\u0000"', b"18446744073709551616", b'"\\ud83d\\ude00"', b"null", b"1e-400"]
)
def test_odd_json_that_is_valid_is_accepted(body: bytes, client: Client) -> None:
    assert client.post("/any", body, WITH_ID).json["status"] == "accepted"


def test_json_too_deep_for_its_parser_is_refused(sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(sqlite_shop, Route("any", deliver={"url": "https://nowhere.invalid"}))
    for depth in (1_100, 100_000):
        for text in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
            assert client.post("/any", text, WITH_ID).code == "json-too-deep"
    assert client.post("/any", b"1" * 5_000, WITH_ID).code == "json-invalid"


def test_a_body_is_counted_as_it_arrives(client: Client, sqlite_shop: App) -> None:
    headers = {**client.headers, **JSON, **WITH_ID}
    exact = b'"' + b"x" * (KIB - 2) + b'"'
    assert client.call(Call("POST", "/any", headers, [exact[:100], exact[100:]]))[0].status == 200
    more = client.call(Call("POST", "/any", {**headers, "Message-Id": "2"}, [exact, b" "]))[0]
    assert (more.status, more.code) == (413, "body-too-large")
    endless = Call("POST", "/any", headers, [b" " * 1_000_000] * 20)
    assert client.call(endless)[0].code == "body-too-large"
    assert stored(sqlite_shop) == 1


def test_a_client_that_leaves_in_mid_body_stores_nothing_and_gets_nothing(
    client: Client, sqlite_shop: App, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Call("POST", "/any", {**client.headers, **JSON, **WITH_ID}, [b"[1]"], is_leaving=True)
    with caplog.at_level("INFO"):
        assert client.call(whole)[0].status == 0
    assert [each.__dict__.get("event") for each in caplog.records] == ["gateway-client-left"]
    assert stored(sqlite_shop) == 0
    stated = {**client.headers, **JSON, **WITH_ID, "Content-Length": "30"}
    assert client.call(Call("POST", "/any", stated, [b"[1]"]))[0].code == "framing-invalid"


def test_a_body_that_does_not_end_is_given_up(client: Client, sqlite_shop: App) -> None:
    slow = Call("POST", "/any", {**client.headers, **JSON, **WITH_ID}, [b"[1"], never_ends=True)
    answer = client.call(slow)[0]
    assert (answer.status, answer.code, answer.headers["connection"]) == (408, "body-too-slow", "close")
    assert stored(sqlite_shop) == 0


def test_compressed_bodies_are_bounded_after_their_decompression(client: Client, sqlite_shop: App) -> None:
    def post(data: bytes, encoding: str = "gzip", theirs: str = "1") -> str:
        answer = client.post("/any", data, {"Message-Id": theirs, "Content-Encoding": encoding})
        return "" if answer.status == 200 else answer.code

    assert post(gzip.compress(b"[1]")) == ""
    assert client.post("/any", b"[1]", {"Message-Id": "1"}).json["status"] == "duplicate"
    bomb = gzip.compress(b" " * 50_000_000)[:KIB]
    assert post(bomb) == "body-too-large"
    assert post(gzip.compress(b"[1]")[:-3]) == "content-encoding-invalid"
    assert post(gzip.compress(b"[1]") * 2) == "content-encoding-invalid"
    assert post(zlib.compress(b"[1]")) == "content-encoding-invalid"
    assert post(b"[1]") == "content-encoding-invalid"
    for encoding in ("br", "deflate", "gzip, gzip", "zstd"):
        assert post(b"[1]", encoding) == "content-encoding-unsupported"
    assert stored(sqlite_shop) == 1


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1"]
)
def test_another_content_type_is_refused(kind: str, client: Client) -> None:
    answer = client.post("/any", ONE, {**WITH_ID, "Content-Type": kind})
    assert (answer.status, answer.code) == (415, "content-type-unsupported")
    assert client.post("/any", ONE, {**WITH_ID, "Content-Type": 'Application/JSON; charset="UTF-8"'}).status == 200


def test_header_tricks_are_refused(client: Client, sqlite_shop: App) -> None:
    def code(*more: tuple[str, str]) -> str:
        headers = [*client.headers.items(), *JSON.items(), *WITH_ID.items(), *more]
        return client.call(Call("POST", "/any", headers, [b"[1]"]))[0].code

    assert code(("Content-Length", "3"), ("Transfer-Encoding", "chunked")) == "framing-invalid"
    assert code(("Content-Length", "3"), ("Content-Length", "3")) == "header-repeated"
    assert code(("Content-Type", "application/json")) == "header-repeated"
    assert code(("Authorization", "Bearer x")) == "header-repeated"
    assert code(("Message-Id", "2")) == "header-repeated"
    assert code(*((f"x-{n}", "") for n in range(100))) == "headers-too-large"
    assert code(("x", "y" * 4 * KIB)) == "headers-too-large"
    assert stored(sqlite_shop) == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/any", 405),
        ("PUT", "/any", 405),
        ("POST", "/any/messages/1", 405),
        ("POST", "/healthz", 405),
        ("OPTIONS", "/any", 405),
        ("POST", "/nothing", 404),
        ("POST", "/any/more", 404),
        ("GET", "/any/messages/", 404),
        ("GET", "/any/messages/%00", 400),
        ("POST", "//any", 404),
        ("POST", "/../any", 404),
        ("GET", "/metrics", 404),
        ("POST", "http://elsewhere/any", 404),
    ],
)
def test_other_methods_and_paths_are_refused(method: str, path: str, status: int, client: Client) -> None:
    answer = client.call(Call(method, path, {**client.headers, **JSON, **WITH_ID}, [b"[1]"]))[0]
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")


def test_a_large_message_is_matched_with_its_schema_in_a_thread(sqlite_shop: App, gateway_of: NewGateway) -> None:
    schema = {"items": {"type": "integer"}}
    client = gateway_of(sqlite_shop, Route("any", deliver={"url": "https://nowhere.invalid"}, schema=schema))
    assert client.post("/any", [1] * 100_000, {"Message-Id": "1"}).status == 200
    wrong = client.post("/any", ["x"] * 100_000, {"Message-Id": "2"})
    assert wrong.code == "schema-mismatch"
    assert wrong.json["field"].startswith("$[")


def test_rates_are_kept_for_each_producer_and_a_batch_counts_its_messages(
    sqlite_shop: App, gateway_of: NewGateway
) -> None:
    client = gateway_of(sqlite_shop, Route("orders", to="orders.place", rate=0.001, burst=3))
    elements = [{"id": str(n), "message": ONE} for n in range(2)]
    assert client.post("/orders/batch", elements).status == 200
    assert client.post("/orders", ONE, {"Message-Id": "3"}).status == 200
    answer = client.post("/orders", ONE, {"Message-Id": "4"})
    assert (answer.status, answer.code) == (429, "rate-limited")
    assert int(answer.headers["retry-after"]) > 900
    assert stored(sqlite_shop) == 3


def test_a_route_with_too_many_waiting_messages_takes_no_more(sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(sqlite_shop, Route("orders", to="orders.place", waiting_max=1))
    assert client.post("/orders", ONE, WITH_ID).status == 200
    # The count of the first request is two seconds old at most, so another gateway counts again.
    other = gateway_of(sqlite_shop, Route("orders", to="orders.place", waiting_max=1))
    answer = other.post("/orders", ONE, {"Message-Id": "2"})
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "queue-full", "5")


def test_further_requests_are_refused_while_many_are_at_work(sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(
        sqlite_shop,
        Route("any", deliver={"url": "https://nowhere.invalid"}),
        limits=Limits(concurrency=2, body_seconds=0.1),
    )
    headers = {**client.headers, **JSON, **WITH_ID}
    slow = [Call("POST", "/any", headers, [b"["], never_ends=True) for _ in range(2)]
    alive = Call("GET", "/healthz", {}, [b""])
    disguised = Call("GET", "/any/healthz", {}, [b""])
    answers = client.call(*slow, client.posting("/any", [1], WITH_ID), disguised, alive)
    assert [each.code for each in answers[:3]] == ["body-too-slow", "body-too-slow", "overloaded"]
    assert answers[3].code == "overloaded"
    assert answers[4].status == 200
    assert client.post("/any", [1], WITH_ID).status == 200


def test_slow_bodies_of_strangers_leave_room_for_known_producers(sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(sqlite_shop, Route("orders", to="orders.place"), limits=Limits(concurrency=4, body_seconds=0.1))
    headers = {**JSON, **WITH_ID, "Stagepost-Signature": "v1=x", "Stagepost-Timestamp": "1"}
    slow = [Call("POST", "/orders", headers, [b"["], never_ends=True) for _ in range(3)]
    answers = client.call(*slow, client.posting("/orders", ONE, WITH_ID))
    assert [each.code for each in answers[:3]] == ["body-too-slow", "body-too-slow", "overloaded"]
    assert answers[3].json["status"] == "accepted"


ANY_BODY = st.one_of(
    st.binary(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=10,
    ),
)
HEADER_TEXT = st.text(st.characters(max_codepoint=255), max_size=40)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["/any", "/orders", "/any/batch", "/orders/batch"]),
    body=ANY_BODY,
    theirs=st.text(st.characters(max_codepoint=255), max_size=30),
    kind=st.sampled_from([*JSON.values(), "application/x-ndjson", "application/cloudevents+json"]),
    more=st.lists(
        st.tuples(st.sampled_from(["content-encoding", "content-type", "ce-id", "x-any", "expect"]), HEADER_TEXT),
        max_size=2,
    ),
)
def test_no_request_whatsoever_is_an_internal_error(
    path: str, body: object, theirs: str, kind: str, more: list[tuple[str, str]], client: Client
) -> None:
    call = client.posting(path, body)
    headers = [*client.headers.items(), ("Content-Type", kind), ("Message-Id", theirs), *more]
    answer = client.call(Call("POST", path, headers, call.chunks))[0]
    assert answer.status in (200, 207, 400, 409, 413, 415, 422)
    assert answer.status in (200, 207) or answer.json["code"]
