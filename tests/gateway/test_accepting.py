"""The producer's contract: a message is accepted once, and nothing is refused that was accepted."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.flow import ids
from stagepost.flow.envelope import Message
from stagepost.flow.initiation import acceptance_of_encoded
from stagepost.gateway import Limits, Producer, Rejected, Route, hash_of_key
from stagepost.gateway.json_bodies import parse
from stagepost.testing import Harness
from tests.gateway.conftest import NewGateway
from tests.gateway.shop import BY_FIELDS, ERP, ONE, ORDERS, WITH_ID, Order, stored, with_endpoint

IN_EVERY_MODE = True
# Routes, and where their ids are.
IDS: dict[str, str | list[str]] = {"headers": "Message-Id", "fields": ["n"]}


def test_a_message_is_stored_before_the_answer_and_handled_once(
    app: App, gateway_of: NewGateway, harness_of: Callable[..., Harness]
) -> None:
    handled: list[Order] = []

    @app.endpoint("orders.place")
    def place(ctx: Context, order: Order) -> None:
        handled.append(order)

    client = gateway_of(app)
    answer = client.post("/orders", ONE, WITH_ID)
    assert (answer.status, answer.json["status"], answer.json["id"]) == (200, "accepted", "order-1")
    assert answer.json["message_id"] == ids.of_producer("orders", "erp", "order-1")
    assert stored(app) == 1
    again = client.post("/orders", ONE, WITH_ID)
    assert (again.status, again.json) == (200, answer.json | {"status": "duplicate"})
    harness_of(app).drain()
    assert client.post("/orders", ONE, WITH_ID).json["status"] == "duplicate"
    harness_of(app).drain()
    assert handled == [Order("a", 1, 2.5)]


def test_another_body_under_the_same_id_is_a_conflict_and_changes_nothing(shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(shop)
    client.post("/orders", ONE, WITH_ID)
    answer = client.post("/orders", ONE | {"amount": 3}, WITH_ID)
    assert (answer.status, answer.code) == (409, "id-conflict")
    assert answer.headers["content-type"] == "application/problem+json"
    assert client.post("/orders", ONE, WITH_ID).json["status"] == "duplicate"
    assert stored(shop) == 1


def test_many_requests_at_once_with_one_id_are_one_message(shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(shop)
    answers = client.call(*(client.posting("/orders", ONE, WITH_ID) for _ in range(20)))
    outcomes = sorted(each.json["status"] for each in answers)
    assert outcomes == ["accepted"] + 19 * ["duplicate"]
    assert stored(shop) == 1


def test_requests_at_once_with_one_id_and_two_bodies_are_one_message(shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(shop)
    bodies = [ONE, ONE | {"amount": 9}]
    answers = client.call(*(client.posting("/orders", bodies[n % 2], WITH_ID) for n in range(10)))
    assert sorted(each.status for each in answers) == 5 * [200] + 5 * [409]
    assert stored(shop) == 1


def test_the_layout_of_a_body_and_the_form_of_its_numbers_make_no_other_message(
    sqlite_shop: App, gateway_of: NewGateway
) -> None:
    client = gateway_of(sqlite_shop)
    texts = [
        b'{"account": "a", "invoice": 1, "amount": 2}',
        b'{"amount":2.0,"invoice":1,"account":"\\u0061"}',
        b'\n{"invoice":1,\n"account":"a","amount":20e-1}\n',
    ]
    answers = [client.post("/orders", each, WITH_ID) for each in texts]
    assert [each.json["status"] for each in answers] == ["accepted", "duplicate", "duplicate"]
    assert client.post("/orders", b'{"account":"a","invoice":1}', WITH_ID).status == 409


def test_numbers_that_are_one_float_and_two_decimals_are_two_messages(sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(sqlite_shop)
    assert client.post("/orders", b'{"account":"a","invoice":1,"amount":0.1}', WITH_ID).status == 200
    answer = client.post("/orders", b'{"account":"a","invoice":1,"amount":0.10000000000000000001}', WITH_ID)
    assert answer.status == 409
    assert client.post("/orders", b'{"account":"a","invoice":1,"amount":0.100}', WITH_ID).json["status"] == "duplicate"


def test_ids_of_fields_are_a_canonical_array_which_the_gateway_never_makes(
    sqlite_shop: App, gateway_of: NewGateway
) -> None:
    client = gateway_of(sqlite_shop)
    answer = client.post("/invoices", ONE)
    assert answer.json["id"] == '["a",1]'
    assert client.post("/invoices", ONE | {"account": "b"}).json["status"] == "accepted"
    for missing in ({"account": "a"}, {"account": "a", "invoice": None}, [1], "text", None):
        refused = client.post("/invoices", missing)
        assert (refused.status, refused.code) == (422, "id-field-missing")
    wrong_values: list[object] = [True, 1.5, [], {}, ""]
    for wrong in wrong_values:
        refused = client.post("/invoices", ONE | {"invoice": wrong})
        assert (refused.status, refused.code, refused.json["field"]) == (422, "id-field-invalid", "invoice")
    assert stored(sqlite_shop) == 2


def test_a_text_and_a_number_in_a_field_are_two_ids(sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(sqlite_shop, Route("any", deliver={"url": "https://nowhere.invalid"}, id=["n"]))
    assert [client.post("/any", {"n": n}).json["status"] for n in ("1", 1)] == ["accepted", "accepted"]


@pytest.mark.parametrize("name", ["Message-Id", "Idempotency-Key"])
def test_a_request_without_its_id_is_refused(name: str, sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(sqlite_shop, Route("orders", to="orders.place", id=name))
    answer = client.post("/orders", ONE)
    assert (answer.status, answer.code, answer.json["field"]) == (400, "id-missing", name)
    for wrong in ("", " ", "x" * 201, "a\tb"):
        assert client.post("/orders", ONE, {name: wrong}).code == "id-invalid"
    assert stored(sqlite_shop) == 0
    first = client.post("/orders", ONE, {name: '"quoted"'})
    assert first.json["id"] == "quoted"


def test_two_producers_and_two_routes_have_ids_of_their_own(sqlite_shop: App, gateway_of: NewGateway) -> None:
    other = Producer("web", keys=[hash_of_key("another")])
    client = gateway_of(sqlite_shop, ORDERS, Route("more", to="orders.place"), producers=[ERP, other])
    as_other = {**WITH_ID, "Authorization": "Bearer another"}
    answers = [
        client.post("/orders", ONE, WITH_ID),
        client.post("/more", ONE, WITH_ID),
        client.post("/orders", ONE | {"amount": 7}, as_other),
    ]
    assert [each.json["status"] for each in answers] == 3 * ["accepted"]
    assert len({each.json["message_id"] for each in answers}) == 3
    # A producer sees its own messages alone.
    assert client.get("/more/messages/order-1", as_other).code == "message-unknown"


def test_the_type_and_the_schema_are_checked_and_nothing_is_stored(sqlite_shop: App, gateway_of: NewGateway) -> None:
    schema = {"properties": {"amount": {"type": "number", "minimum": 1}}, "required": ["amount"]}
    client = gateway_of(sqlite_shop, Route("orders", to="orders.place", schema=schema))
    answer = client.post("/orders", ONE | {"invoice": "x"}, WITH_ID)
    assert (answer.status, answer.code, answer.json["field"]) == (422, "message-invalid", "$.invoice")
    answer = client.post("/orders", ONE | {"amount": 0}, WITH_ID)
    assert (answer.status, answer.code, answer.json["field"]) == (422, "schema-mismatch", "$.amount")
    assert stored(sqlite_shop) == 0
    assert client.post("/orders", ONE, WITH_ID).json["status"] == "accepted"


def test_a_check_answers_with_the_services_own_code_and_nothing_is_stored(
    sqlite_shop: App, gateway_of: NewGateway
) -> None:
    is_strict = True
    calls: list[Order] = []

    def check(order: Order) -> None:
        calls.append(order)
        if is_strict and order.amount > 2:
            raise Rejected("credit-limit", "the account has no credit", status=402, field="amount")

    client = gateway_of(sqlite_shop, Route("orders", to="orders.place", check=check))
    answer = client.post("/orders", ONE, WITH_ID)
    assert (answer.status, answer.code, answer.json["field"]) == (402, "credit-limit", "amount")
    assert stored(sqlite_shop) == 0
    is_strict = False
    assert client.post("/orders", ONE, WITH_ID).json["status"] == "accepted"
    is_strict = True
    # A message that was accepted is a duplicate, whatever the check says today, and is not checked again.
    assert client.post("/orders", ONE, WITH_ID).json["status"] == "duplicate"
    assert len(calls) == 2


def test_an_async_check_is_awaited_and_a_check_that_fails_stores_nothing(
    sqlite_shop: App, gateway_of: NewGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(order: Order) -> None:
        if order.amount > 2:
            raise ZeroDivisionError("secret\nmistake")

    client = gateway_of(sqlite_shop, Route("orders", to="orders.place", check=check))
    answer = client.post("/orders", ONE, WITH_ID)
    assert (answer.status, answer.code) == (500, "check-failed")
    assert "secret" not in answer.body.decode()
    assert "ZeroDivisionError: secret\\nmistake" in caplog.text
    assert stored(sqlite_shop) == 0
    assert client.post("/orders", ONE | {"amount": 1}, WITH_ID).json["status"] == "accepted"


def test_an_accepted_message_is_a_duplicate_for_a_stricter_schema_too(shop: App, gateway_of: NewGateway) -> None:
    gateway_of(shop).post("/orders", ONE, WITH_ID)
    stricter = gateway_of(shop, Route("orders", to="orders.place", schema={"required": ["other"]}))
    assert stricter.post("/orders", ONE, WITH_ID).json["status"] == "duplicate"
    assert stricter.post("/orders", ONE | {"amount": 1}, WITH_ID).status == 409
    assert stricter.post("/orders", b"{", WITH_ID).status == 409
    assert stricter.post("/orders", ONE, {"Message-Id": "new"}).code == "schema-mismatch"


def test_an_accepted_message_is_a_duplicate_for_a_lower_limit_of_its_size_too(
    shop: App, gateway_of: NewGateway
) -> None:
    earlier = gateway_of(shop)
    assert [earlier.post("/orders", ONE, WITH_ID).status, earlier.post("/invoices", ONE).status] == [200, 200]
    lower = gateway_of(shop, *(msgspec.structs.replace(each, body_max=20) for each in (ORDERS, BY_FIELDS)))
    assert lower.post("/orders", ONE, WITH_ID).json["status"] == "duplicate"
    assert lower.post("/invoices", ONE).json["status"] == "duplicate"
    assert lower.post("/orders", ONE | {"amount": 1}, WITH_ID).code == "id-conflict"
    refused = lower.post("/orders", ONE, {"Message-Id": "new"})
    assert (refused.status, refused.code) == (413, "body-too-large")
    batch = [{"id": each, "message": ONE} for each in ("order-1", "new")]
    assert [each["code_http"] for each in lower.post("/orders/batch", batch).json["results"]] == [200, 413]
    fields = [ONE, ONE | {"invoice": 2}]
    assert [each["code_http"] for each in lower.post("/invoices/batch", fields).json["results"]] == [200, 413]


def test_an_accepted_message_is_a_duplicate_for_a_lower_limit_of_its_depth_too(
    new_sqlite: Callable[[], str], gateway_of: NewGateway
) -> None:
    url = new_sqlite()
    apps = [App("shop", database=url) for _ in range(2)]
    routes = [Route(name, deliver={"url": "https://nowhere.invalid"}, id=id_) for name, id_ in IDS.items()]
    earlier, lower = (
        gateway_of(app, *routes, limits=Limits(json_depth_max=depth)) for app, depth in zip(apps, (64, 1), strict=True)
    )
    deep = {"n": 1, "more": {}}
    for path in ("/headers", "/fields"):
        assert earlier.post(path, deep, WITH_ID).json["status"] == "accepted"
        assert lower.post(path, deep, WITH_ID).json["status"] == "duplicate"
        assert lower.post(path, deep | {"n": 2}, {"Message-Id": "new"}).code == "json-too-deep"
    assert lower.post("/headers", deep | {"n": 2}, WITH_ID).code == "id-conflict"
    batch = [deep, {"n": 3}, deep | {"n": 2}]
    assert [each["code_http"] for each in lower.post("/fields/batch", batch).json["results"]] == [200, 200, 400]
    assert stored(apps[0]) == 3
    for each in apps:
        each.close()


def test_a_batch_answers_for_each_message(shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(shop)
    client.post("/invoices", ONE)
    batch = [ONE, ONE | {"amount": 9}, ONE | {"invoice": 2}, {"account": "a"}, ONE | {"invoice": 3, "amount": "x"}, 7]
    answer = client.post("/invoices/batch", batch)
    assert answer.status == 207
    results = answer.json["results"]
    assert [each["code_http"] for each in results] == [200, 409, 200, 422, 422, 422]
    assert [each["status"] for each in results] == ["duplicate", "refused", "accepted", "refused", "refused", "refused"]
    assert [each.get("code") for each in results[3:]] == ["id-field-missing", "message-invalid", "id-field-missing"]
    assert stored(shop) == 2


def test_lines_of_json_are_a_batch_whose_elements_may_have_ids_beside_them(
    sqlite_shop: App, gateway_of: NewGateway
) -> None:
    client = gateway_of(sqlite_shop)
    elements = [{"id": f"o-{n}", "message": ONE | {"invoice": n}} for n in range(3)]
    lines = "\n".join(json.dumps(each) for each in elements) + "\n\n"
    answer = client.post("/orders/batch", lines.encode(), {"Content-Type": "application/x-ndjson"})
    assert (answer.status, [each["status"] for each in answer.json["results"]]) == (200, 3 * ["accepted"])
    assert client.post("/orders", ONE | {"invoice": 1}, {"Message-Id": "o-1"}).json["status"] == "duplicate"
    for wrong in ([1], [{"id": 1, "message": {}}], [{"id": "a"}], [{"id": "a", "message": 1, "more": 2}]):
        assert client.post("/orders/batch", wrong).json["results"][0]["code"] in ("batch-invalid", "id-invalid")
    for text in (b"{}", b"7", b"[]", b""):
        assert client.post("/orders/batch", text).status == 400


def test_cloudevents_in_both_modes_are_the_same_message(sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(sqlite_shop, Route("events", deliver={"url": "https://nowhere.invalid"}, id="cloudevents"))
    attributes = {"ce-specversion": "1.0", "ce-type": "order", "ce-source": "/erp", "ce-id": "7"}
    assert client.post("/events", ONE, attributes).json["id"] == '["/erp","7"]'
    event: dict[str, Any] = {"specversion": "1.0", "type": "order", "source": "/erp", "id": "7", "data": ONE}
    structured = {"Content-Type": "application/cloudevents+json"}
    assert client.post("/events", event, structured).json["status"] == "duplicate"
    assert client.post("/events", event | {"id": "8"}, structured).json["status"] == "accepted"
    assert client.post("/events/batch", [event, event | {"id": "9"}]).status == 200
    for missing in ("id", "source"):
        assert client.post("/events", {**event, missing: None}, structured).code == "id-missing"
    assert client.post("/events", {**event, "id": "10", "specversion": "0.3"}, structured).code == "event-invalid"
    assert client.post("/events", ONE, {**attributes, "ce-specversion": ""}).code == "event-invalid"
    assert client.post("/events", ONE).code == "id-missing"


def test_a_producer_looks_up_its_message(shop: App, gateway_of: NewGateway, harness_of: Callable[..., Harness]) -> None:
    client = gateway_of(shop)
    assert client.status_of("invoices", '["a",1]').code == "message-unknown"
    assert client.post("/invoices", ONE).status == 200
    assert client.status_of("invoices", '["a",1]').json["status"] in ("waiting", "accepted")
    harness_of(shop).drain()
    found = client.status_of("invoices", '["a",1]').json
    assert (found["status"], found["received"]) == ("committed", 1)
    assert [each["waypoint"] for each in found["waypoints"]] == ["accepted", "received", "committed"]


def test_the_flow_of_a_long_id_is_named_by_the_message(sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(sqlite_shop)
    answer = client.post("/orders", ONE, {"Message-Id": "x" * 200})
    assert answer.status == 200
    assert uuid.UUID(answer.json["message_id"]).version == 5


@dataclass
class Other:
    account: str


def test_a_route_takes_one_of_several_types(sqlite_shop: App, gateway_of: NewGateway) -> None:
    @sqlite_shop.endpoint("many")
    def many(ctx: Context, message: Order) -> None:
        """Do nothing."""

    @many.handler
    def other(ctx: Context, message: Other) -> None:
        """Do nothing."""

    client = gateway_of(sqlite_shop, Route("others", to="many", type="Other"))
    assert client.post("/others", {"account": "x"}, WITH_ID).json["status"] == "accepted"
    assert client.post("/others", {"accounts": "x"}, {"Message-Id": "2"}).code == "message-invalid"


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_refusal_waits_for_a_commit_that_is_under_way_elsewhere(
    store: str, request: pytest.FixtureRequest, gateway_of: NewGateway
) -> None:
    """Without the wait, another process would accept the message that this one has just called invalid."""
    url = request.getfixturevalue(f"new_{store}")()
    ours, theirs = (with_endpoint(App("shop", database=url)) for _ in range(2))
    client = gateway_of(ours, Route("orders", to="orders.place", schema={"required": ["other"]}))
    assert client.post("/orders", ONE, {"Message-Id": "new"}).code == "schema-mismatch"
    accepted = acceptance_of_encoded(
        theirs.target("orders.place"),
        (Message("Order", msgspec.Raw(b"{}")),),
        parse(json.dumps(ONE).encode()).digest,
        flow_id="elsewhere",
        message_id=ids.of_producer("orders", "erp", "order-1"),
        node="elsewhere",
        now=1,
        scope="gateway:orders:erp",
    )
    answers: list[str] = []
    with closing(engine_of(theirs).access()) as access:
        access.session.begin()
        assert [each.outcome for each in access.session.accepted.accept([accepted])] == ["started"]
        asking = threading.Thread(target=lambda: answers.append(client.post("/orders", ONE, WITH_ID).json["status"]))
        asking.start()
        # It still waits, or has not begun to: either is well, and an answer is not.
        asking.join(0.3)
        assert asking.is_alive()
        access.session.commit()
        asking.join()
    assert answers == ["duplicate"]
    for each in (ours, theirs):
        each.close()
