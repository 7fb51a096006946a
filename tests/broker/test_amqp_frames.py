"""Frames and messages of AMQP, without a server."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pytest
from amqp import Message, spec
from hypothesis import given
from hypothesis import strategies as st

from stagepost.broker.rabbitmq.frames import Arrival, FrameHandler, InboundMessage
from stagepost.broker.rabbitmq.link import Link
from stagepost.broker.rabbitmq.messages import (
    LONG_ID_HEADER,
    UNDECODABLE_HEADER,
    id_and_headers_of,
    message_of,
    text_of,
)
from stagepost.broker.rabbitmq.topology import DIFFERENCE, Topology
from stagepost.broker.rabbitmq.transport import PROTOCOL_HEADER, Transport
from stagepost.flow.clock import SystemClock
from stagepost.ports.broker import Publication

FRAME_BYTES_MAX = 131_072
monotonic = SystemClock.monotonic


def frame(payload: bytes, kind: int = 1, channel: int = 3, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


class Ends:
    """A transport, and the other end of its socket."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.transport = Transport(ours, monotonic)
        self.transport.deadline = monotonic() + 60

    def close(self) -> None:
        self.transport.close()
        self.theirs.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def test_a_connection_begins_with_the_protocols_name(ends: Ends) -> None:
    ends.transport.connect()
    ends.transport.connect()
    assert ends.theirs.recv(100) == PROTOCOL_HEADER


def test_a_frame_that_comes_byte_by_byte_is_put_together(ends: Ends) -> None:
    for each in frame(b"payload"):
        with pytest.raises(TimeoutError):
            ends.transport.read_frame(0.0)
        ends.theirs.sendall(bytes([each]))
    assert ends.transport.read_frame(monotonic() + 60) == (1, 3, b"payload")


def test_frames_that_came_together_are_read_one_by_one_and_after_the_deadline_too(ends: Ends) -> None:
    ends.theirs.sendall(frame(b"one") + frame(b"") + frame(b"three")[:4])
    assert ends.transport.read_frame(monotonic() + 60)[2] == b"one"
    assert ends.transport.read_frame(0.0)[2] == b""
    with pytest.raises(TimeoutError):
        ends.transport.read_frame(0.0)


def test_a_frame_without_its_end_is_an_error(ends: Ends) -> None:
    ends.theirs.sendall(frame(b"one", end=b"\0"))
    with pytest.raises(ConnectionError, match="a frame without its end"):
        ends.transport.read_frame(monotonic() + 60)


def test_the_end_of_the_other_side_is_an_error(ends: Ends) -> None:
    ends.theirs.close()
    with pytest.raises(ConnectionResetError, match="the broker closed the connection"):
        ends.transport.read_frame(monotonic() + 60)


def test_a_peer_that_reads_nothing_does_not_hold_a_write(ends: Ends) -> None:
    ends.transport.deadline = monotonic() + 0.05
    with pytest.raises(TimeoutError):
        ends.transport.write(b"x" * 100_000_000)


def test_a_window_goes_out_at_its_end(ends: Ends) -> None:
    ends.theirs.setblocking(False)
    with ends.transport.corked():
        ends.transport.write(b"one")
        ends.transport.write(b"two")
        with pytest.raises(BlockingIOError):
            ends.theirs.recv(100)
    assert ends.theirs.recv(100) == b"onetwo"


# Messages of foreign senders.


def delivered(properties: bytes, *, routing_key: bytes = b"key") -> Arrival:
    """Return what a handler makes of a delivery with these raw properties, and check that it goes on after it."""
    arrived: list[Arrival] = []
    methods: list[Any] = []
    handler = FrameHandler(lambda *method: methods.append(method), arrived.append)
    arguments = struct.pack(">HHB", *spec.Basic.Deliver, 2) + b"ct" + struct.pack(">QB", 7, 1)
    arguments += b"\x01e" + bytes([len(routing_key)]) + routing_key
    assert not handler((1, 1, arguments))
    assert not handler((2, 1, struct.pack(">HHQ", 60, 0, 4) + properties))
    assert not handler((8, 0, b""))
    assert handler((3, 1, b"body"))
    assert handler((1, 1, struct.pack(">HHQB", *spec.Basic.Ack, 1, 0)))
    assert len(methods) == 1
    [arrival] = arrived
    return arrival


def test_a_delivery_has_its_tag_and_its_flag() -> None:
    arrival = delivered(Message(message_id="m1")._serialize_properties())
    assert (arrival.consumer, arrival.tag, arrival.redelivered) == ("ct", 7, True)
    assert arrival.message.body == b"body"
    assert id_and_headers_of(arrival.message) == ("m1", {})


def test_a_routing_key_that_is_no_text_ends_no_connection() -> None:
    assert delivered(b"\0\0", routing_key=b"\xff\xfe").tag == 7


@pytest.mark.parametrize(
    "properties",
    [
        b"\x00\x80\x02\xff\xfe",  # a message id that is no UTF-8
        b"\x80\x00\x05\xff",  # a content type that is cut off
        b"\x20\x00\x00\x00\x00\x04\x01a?x",  # a header of an unknown type
        b"\x20\x00\x00\x00\x00\x0b\x01aT\xff\xff\xff\xff\xff\xff\xff\xff",  # a moment beyond all calendars
        b"\x20\x00\x7f\xff\xff\xff\x01aS",  # headers that are longer than the frame
        b"",
    ],
)
def test_properties_that_cannot_be_read_are_left_out(properties: bytes) -> None:
    message_id, headers = id_and_headers_of(delivered(properties).message)
    assert message_id == ""
    assert set(headers) <= {UNDECODABLE_HEADER, "a"}


@given(st.binary(max_size=60))
def test_no_properties_end_a_connection(properties: bytes) -> None:
    id_and_headers_of(delivered(properties).message)


def test_a_frame_in_a_wrong_place_is_an_error_of_the_connection() -> None:
    handler = FrameHandler(lambda *_: None, lambda _: None)
    with pytest.raises(ConnectionError, match="a frame of type 3 in a wrong place"):
        handler((3, 1, b"body"))


# Publications as messages, and back.


def travelled(publication: Publication) -> tuple[str, dict[str, str]]:
    message = message_of(publication, FRAME_BYTES_MAX)
    assert message is not None
    assert message.properties["delivery_mode"] == 2
    inbound = InboundMessage()
    inbound._load_properties(60, message._serialize_properties(), 0)
    return id_and_headers_of(inbound)


CHARACTERS = st.characters(codec="utf-8")


@given(st.text(CHARACTERS), st.dictionaries(st.text(CHARACTERS, max_size=60), st.text(CHARACTERS), max_size=8))
def test_ids_and_headers_of_any_text_travel(message_id: str, headers: dict[str, str]) -> None:
    headers.pop(LONG_ID_HEADER, None)
    arrived_id, arrived = travelled(Publication("a", message_id, b"", headers))
    assert arrived_id == message_id
    assert headers.items() <= arrived.items()


def test_an_id_that_is_too_long_for_the_property_travels_as_a_header() -> None:
    long_id = "№" * 200
    message_id, headers = travelled(Publication("a", long_id, b"", {}))
    assert (message_id, headers) == (long_id, {LONG_ID_HEADER: long_id})


def test_headers_that_receivers_without_stagepost_know_become_properties_too() -> None:
    headers = {"content-type": "application/json", "correlation-id": "c", "reply-to": "r", "type": "Order"}
    message = message_of(Publication("a", "m1", b"", headers), FRAME_BYTES_MAX)
    assert message is not None
    assert (message.content_type, message.correlation_id, message.reply_to, message.type) == tuple(headers.values())


@pytest.mark.parametrize(
    "headers", [{"n" * 256: "x"}, {"a": "x" * FRAME_BYTES_MAX}, {f"h{n}": "x" * 100 for n in range(1300)}]
)
def test_headers_that_no_frame_holds_are_too_large(headers: dict[str, str]) -> None:
    assert message_of(Publication("a", "m1", b"", headers), FRAME_BYTES_MAX) is None


def test_headers_that_just_fit_are_sent() -> None:
    fixed = len(Message(application_headers={"a": ""}, delivery_mode=2, message_id="m1")._serialize_properties())
    most = FRAME_BYTES_MAX - 20 - fixed
    assert message_of(Publication("a", "m1", b"", {"a": "x" * most}), FRAME_BYTES_MAX) is not None
    assert message_of(Publication("a", "m1", b"", {"a": "x" * (most + 1)}), FRAME_BYTES_MAX) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (b"\xff", "\ufffd"),
        (True, "true"),
        (False, "false"),
        (None, ""),
        (7, "7"),
        (1.5, "1.5"),
        (Decimal("1.50"), "1.50"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        ({b"\xff": [{"b": b"c"}]}, '{"\\ufffd": [{"b": "c"}]}'),
        ([1, {"a": Decimal("1")}], '[1, {"a": "1"}]'),
    ],
)
def test_values_of_foreign_headers_become_text(value: object, text: str) -> None:
    assert text_of(value) == text


# Queues.


@pytest.mark.parametrize(("version", "is_limiting"), [("3.10.8", False), ("3.13.7", False), ("4.0.1", True)])
def test_a_queue_has_no_delivery_limit_where_the_broker_has_one_by_default(version: str, is_limiting: bool) -> None:
    """This follows RabbitMQ's release notes of 4.0.1. Versions from 4 on were not run against."""
    topology = Topology(cast("Link", None), version)
    for arguments in (topology._arguments(), topology._arguments("_dead.a")):
        assert arguments.get("x-delivery-limit") == (-1 if is_limiting else None)
        assert arguments["x-queue-type"] == "quorum"
        assert arguments["x-overflow"] == "reject-publish"
    assert topology._arguments("_dead.a")["x-dead-letter-strategy"] == "at-least-once"


@pytest.mark.parametrize(
    ("argument", "values", "theirs"),
    [
        (
            "x-dead-letter-routing-key",
            "the value 's2' of type 'longstr' but current is the value 's1' of type 'longstr'",
            "'s1'",
        ),
        ("x-queue-type", "the value 'quorum' of type 'longstr' but current is none", "none"),
        ("durable", "'true' but current is 'false'", "'false'"),
    ],
)
def test_the_first_argument_that_differs_is_read_from_the_refusal(argument: str, values: str, theirs: str) -> None:
    found = DIFFERENCE.search(
        f"PRECONDITION_FAILED - inequivalent arg '{argument}' for queue 'a' in vhost '/': received {values}"
    )
    assert found is not None
    assert (found["name"], found["theirs"]) == (argument, theirs)
