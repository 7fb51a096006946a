"""What people may change of a dead letter's envelope, and how what they wrote is read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from stagepost.flow.codec import encode_envelope
from stagepost.flow.envelope import Envelope, Frame, Message
from stagepost.recovery.editing import EditRefused, document_of, edited_messages, envelope_of, with_value
from stagepost.testing.contract.givens import NOW, a_letter

BODY = b'{"id":"a","amount":1.10,"big":123456789012345678901234567890,"lines":[{"sku":"x"}],"note":"\xc3\xa4"}'


def an_envelope(body: bytes = BODY, state: bytes = b'{"paid":false}', *, more: int = 0) -> Envelope:
    message = Message("Order", msgspec.Raw(body), msgspec.Raw(state))
    return Envelope(
        message_id="m1",
        flow_id="flow",
        kind="request",
        to="pay",
        sender="shop",
        messages=(message,) * (1 + more),
        origin_at=NOW,
        sent_at=NOW,
        stack=(Frame("shop.paid", msgspec.Raw(b'{"n":1}')),),
    )


def bodies(messages: tuple[Message, ...] | None) -> list[bytes]:
    assert messages is not None
    return [bytes(each.body) for each in messages]


def changed(*assignments: str, envelope: Envelope | None = None) -> tuple[Message, ...] | None:
    envelope = envelope or an_envelope()
    document = document_of(envelope)
    for each in assignments:
        document = with_value(document, each)
    return edited_messages(envelope, document)


def test_an_edited_message_keeps_its_own_id() -> None:
    envelope = an_envelope()
    named = msgspec.structs.replace(
        envelope, messages=tuple(msgspec.structs.replace(each, id="m1") for each in envelope.messages)
    )
    assert changed(envelope=named) is None
    edited = changed("messages.0.body.amount=2", envelope=named)
    assert edited is not None
    assert {each.id for each in edited} == {"m1"}


def test_a_message_is_shown_with_its_type_and_its_state_and_nothing_that_stays() -> None:
    shown = json.loads(document_of(an_envelope()))
    assert shown == {"messages": [{"type": "Order", "body": json.loads(BODY), "state": {"paid": False}}]}
    assert len(document_of(an_envelope()).splitlines()) > 10


def test_a_document_that_was_not_changed_changes_nothing() -> None:
    document = document_of(an_envelope())
    assert edited_messages(an_envelope(), document) is None
    assert edited_messages(an_envelope(), document.replace("  ", "\t")) is None
    assert changed('messages.0.body.id="a"') is None


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("messages.0.body.amount=2.50", BODY.replace(b"1.10", b"2.50")),
        ('messages.0.body.lines.0.sku="y=z"', BODY.replace(b'"x"', b'"y=z"')),
        ("messages.0.body.lines=[]", BODY.replace(b'[{"sku":"x"}]', b"[]")),
        ("messages.0.body.new=null", BODY[:-1] + b',"new":null}'),
        ('messages.0.body={"id":"b"}', b'{"id":"b"}'),
    ],
)
def test_what_is_set_is_changed_and_the_rest_keeps_every_digit(assignment: str, expected: bytes) -> None:
    assert bodies(changed(assignment)) == [expected]


def test_a_state_can_be_changed_and_leaves_the_body_as_it_came() -> None:
    spaced = an_envelope(b'{ "id" : "a" }')
    (message,) = changed("messages.0.state.paid=true", envelope=spaced) or ()
    assert (bytes(message.body), bytes(message.state)) == (b'{ "id" : "a" }', b'{"paid":true}')


def test_several_are_set_in_order_and_each_message_by_its_place() -> None:
    found = changed("messages.1.body={}", "messages.1.body.n=1", envelope=an_envelope(more=1))
    assert bodies(found) == [BODY, b'{"n":1}']


@pytest.mark.parametrize(
    ("assignment", "why"),
    [
        ("messages.0.body.amount", "is not PATH=JSON"),
        ("=1", "is not PATH=JSON"),
        ("messages.0.body.id=abc", "a text needs its quotes"),
        ("messages.0.body.id=", "does not end in JSON"),
        ("messages.1.body.id=1", "'1' is not an index of a list of 1"),
        ("messages.first=1", "'first' is not an index of a list of 1"),
        ("messages.0.body.line.sku=1", "there is no 'line'; there are id, amount"),
        ("messages.0.body.id.more=1", "'more' names a part of a plain value"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_place(assignment: str, why: str) -> None:
    with pytest.raises(EditRefused) as refused:
        with_value(document_of(an_envelope()), assignment)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "document",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"messages": [{"type": "Order", "body": {}, "state": null,}]}',
        '{"messages": [{"type": "Order", "body": {}}], "flow_id": "f2"}',
        '{"messages": [{"type": "Order", "state": null}]}',
        '{"messages": [{"type": "Order", "body": "\ud800"}]}',
    ],
)
def test_what_is_no_longer_the_letters_json_is_refused(document: str) -> None:
    with pytest.raises(EditRefused, match="no longer the letter's JSON"):
        edited_messages(an_envelope(), document)


@pytest.mark.parametrize("types", [[], ["Parcel"], ["Order", "Order"]])
def test_neither_types_nor_the_number_of_messages_can_be_changed(types: list[str]) -> None:
    document = json.dumps({"messages": [{"type": each, "body": {}} for each in types]})
    with pytest.raises(EditRefused, match="neither the types of the messages nor their number"):
        edited_messages(an_envelope(), document)


def letter(data: bytes, stage: str = "pay") -> Any:
    return a_letter(stage=stage, envelope=data)


def test_what_is_no_envelope_cannot_be_edited() -> None:
    with pytest.raises(EditRefused, match=r"the letter is not an envelope.*stays unchanged"):
        envelope_of(letter(b"\x00\xff not JSON"))


def test_what_is_addressed_to_another_stage_cannot_be_edited() -> None:
    data = encode_envelope(an_envelope())
    assert envelope_of(letter(data)) == an_envelope()
    with pytest.raises(EditRefused, match="the letter of ship is addressed to pay"):
        envelope_of(letter(data, "ship"))


def test_what_is_no_text_cannot_be_edited() -> None:
    with pytest.raises(EditRefused, match="cannot be shown as text"):
        document_of(an_envelope(b'{"id":"\xff"}'))


@pytest.mark.parametrize("document", ["", '{"messages": [', '{"messages": "\udcff"}'])
def test_nothing_can_be_set_in_what_is_no_json(document: str) -> None:
    with pytest.raises(EditRefused, match="the document is not JSON, so no value can be set"):
        with_value(document, "messages.0.body.id=1")
