"""The envelope: what is written is read, whatever it holds; what is not one is undecodable and does no harm."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost import Undecodable
from stagepost.flow.codec import decode_envelope, encode_envelope
from stagepost.flow.envelope import Envelope, Frame, Message

texts = st.text(st.characters(codec="utf-8"), max_size=10)
moments = st.integers(0, 2**62)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
raws = json_values.map(lambda value: msgspec.Raw(msgspec.json.encode(value)))
messages = st.builds(Message, type=texts, body=raws, state=raws)
frames = st.builds(Frame, to=texts, state=raws)
envelopes = st.builds(
    Envelope,
    message_id=texts,
    flow_id=texts,
    kind=st.sampled_from(["send", "request", "reply", "next"]),
    to=texts,
    sender=texts,
    messages=st.lists(messages, max_size=3).map(tuple),
    origin_at=moments,
    sent_at=moments,
    cause_id=st.none() | texts,
    ordinal=st.integers(0, 2**31),
    hops=st.integers(0, 300),
    stack=st.lists(frames, max_size=4).map(tuple),
    properties=st.dictionaries(texts, raws, max_size=3),
)

SIMPLE = Envelope(
    message_id="m1",
    flow_id="order:1",
    kind="send",
    to="pay",
    sender="app@host:1",
    messages=(Message("Order", msgspec.Raw(b'{"id":"o1"}')),),
    origin_at=1,
    sent_at=2,
)


@given(envelopes)
def test_an_envelope_comes_back_as_it_was(envelope: Envelope) -> None:
    assert decode_envelope(encode_envelope(envelope)) == envelope


@given(envelopes)
def test_an_envelope_is_json_that_any_language_reads(envelope: Envelope) -> None:
    data = encode_envelope(envelope)
    assert json.loads(data)["message_id"] == envelope.message_id
    assert encode_envelope(decode_envelope(data)) == data


def test_what_says_nothing_is_not_written() -> None:
    assert json.loads(encode_envelope(SIMPLE)) == {
        "message_id": "m1",
        "flow_id": "order:1",
        "kind": "send",
        "to": "pay",
        "sender": "app@host:1",
        "messages": [{"type": "Order", "body": {"id": "o1"}}],
        "origin_at": 1,
        "sent_at": 2,
    }


def test_fields_of_a_later_version_are_ignored() -> None:
    data = json.loads(encode_envelope(SIMPLE)) | {"priority": 9, "attachments": {"a": [1]}}
    assert decode_envelope(msgspec.json.encode(data)) == SIMPLE


@given(st.binary(max_size=300))
def test_no_bytes_do_more_than_raise_undecodable(data: bytes) -> None:
    with pytest.raises(Undecodable, match="not an envelope"):
        decode_envelope(data)


@given(st.data())
def test_an_envelope_that_was_damaged_is_read_or_undecodable(data: st.DataObject) -> None:
    whole = bytearray(encode_envelope(SIMPLE))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] = data.draw(st.integers(0, 255))
    try:
        envelope = decode_envelope(bytes(whole))
    except Undecodable:
        return
    assert isinstance(envelope, Envelope)


@given(json_values)
def test_any_other_json_is_undecodable(value: object) -> None:
    with pytest.raises(Undecodable, match="not an envelope"):
        decode_envelope(json.dumps(value).encode())


@pytest.mark.parametrize("field", ["message_id", "flow_id", "kind", "to", "sender", "messages", "origin_at", "sent_at"])
@pytest.mark.parametrize("value", ["missing", None, {}, [[]], 1.5])
def test_a_field_that_is_missing_or_wrong_is_named_in_the_error(field: str, value: object) -> None:
    data = json.loads(encode_envelope(SIMPLE))
    if value == "missing":
        del data[field]
    else:
        data[field] = value
    with pytest.raises(Undecodable, match=field):
        decode_envelope(json.dumps(data).encode())


@pytest.mark.parametrize("begin", [b"", b'{"messages":', b'{"properties":{"a":'])
def test_what_is_nested_without_end_is_undecodable(begin: bytes) -> None:
    with pytest.raises(Undecodable):
        decode_envelope(begin + b"[" * 1_000_000)
