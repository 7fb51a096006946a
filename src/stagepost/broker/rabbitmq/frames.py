"""Put messages together from frames, also those of foreign senders that py-amqp cannot decode."""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import unpack_from
from typing import Any, NamedTuple

from amqp import Message, spec
from amqp.exceptions import AMQPError

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
DELIVER: tuple[int, int] = spec.Basic.Deliver
WITH_CONTENT = frozenset({spec.Basic.Return, spec.Basic.Deliver, spec.Basic.GetOk})

# Any bytes of a foreign sender may raise one of these in py-amqp's decoder.
UNDECODABLE = (AMQPError, struct.error, ValueError, LookupError, ArithmeticError, OSError, TypeError, RecursionError)


class InboundMessage(Message):  # type: ignore[misc]  # py-amqp has no types
    """A message whose undecodable properties are left out: one bad sender must not end the connection of all."""

    undecodable = ""

    def _load_properties(self, class_id: int, buf: bytes, offset: int) -> int:
        try:
            offset = super()._load_properties(class_id, buf, offset)
        except UNDECODABLE as error:
            self.properties: dict[str, Any] = {}
            self.undecodable = f"{type(error).__name__}: {error}"
        return offset


class Arrival(NamedTuple):
    """A message that was delivered to a consumer."""

    consumer: str
    tag: int
    redelivered: bool
    message: Any


class FrameHandler:
    """Implements py-amqp's ``frame_handler``: returns whether a frame completed a method.

    Deliveries go to ``on_arrival``, and all other methods to ``on_method``.
    """

    def __init__(self, on_method: Callable[..., Any], on_arrival: Callable[[Arrival], None]) -> None:
        self._on_method = on_method
        self._on_arrival = on_arrival
        self._incomplete: dict[int, Any] = {}

    def __call__(self, frame: tuple[int, int, bytes]) -> bool:
        kind, channel, payload = frame
        if kind == HEARTBEAT:
            return False
        if kind == METHOD:
            method = unpack_from(">HH", payload)
            if method in WITH_CONTENT:
                self._incomplete[channel] = InboundMessage(frame_method=method, frame_args=payload)
                return False
            self._on_method(channel, method, payload, None)
            return True
        message = self._incomplete.get(channel)
        if message is None or kind not in (HEADER, BODY):
            raise ConnectionError(f"the broker sent a frame of type {kind} in a wrong place")
        if kind == HEADER:
            message.inbound_header(payload)
        else:
            message.inbound_body(payload)
        if not message.ready:
            return False
        del self._incomplete[channel]
        if message.frame_method == DELIVER:
            self._on_arrival(arrival_of(message))
        else:
            self._on_method(channel, message.frame_method, message.frame_args, message)
        return True


def arrival_of(message: Any) -> Arrival:
    """Read the arguments of ``basic.deliver``. Exchange and routing key are left out: they may be no text."""
    payload = message.frame_args
    size = payload[4]
    (tag, bits) = unpack_from(">QB", payload, 5 + size)
    return Arrival(payload[5 : 5 + size].decode(), tag, bool(bits & 1), message)
