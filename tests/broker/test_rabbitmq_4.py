"""RabbitMQ 4 by a scripted handshake. No test runs against it: Debian has 3.10.

The answers follow RabbitMQ's sources of 4.1: ``server_properties/1`` and ``handle_method0`` of
``deps/rabbit/src/rabbit_reader.erl``, and ``deps/rabbit/src/rabbit_quorum_queue.erl``. Its queues drop what was
delivered 20 times, unless they are declared with ``x-delivery-limit`` -1.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from random import Random
from typing import Any

import pytest
from amqp.serialization import dumps, loads

from stagepost.broker.rabbitmq.broker import rabbit_broker
from stagepost.broker.rabbitmq.driver import parsed
from stagepost.broker.rabbitmq.topology import mark_arguments
from stagepost.flow.clock import SystemClock
from tests.waiting import PATIENCE_SECONDS

PROPERTIES = {
    "capabilities": {"publisher_confirms": True, "basic.nack": True, "connection.blocked": True},
    "cluster_name": "rabbit@here",
    "copyright": "Copyright (c) 2007-2025 Broadcom Inc and/or its subsidiaries",
    "information": "Licensed under the MPL 2.0. Website: https://rabbitmq.com",
    "platform": "Erlang/OTP 27.3",
    "product": "RabbitMQ",
    "version": "4.1.0",
}
METHOD, HEADER = 1, 2
Answer = tuple[tuple[int, int], bytes]


class ScriptedRabbit:
    """A server that declares any queue, and confirms and forgets each message. ``declared`` has the arguments."""

    def __init__(self) -> None:
        self.declared: dict[str, Mapping[str, Any]] = {}
        self._confirmed: dict[int, int] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            with client, client.makefile("rb") as stream:
                assert stream.read(8) == b"AMQP\x00\x00\x09\x01"
                start = dumps("ooFSS", (0, 9, PROPERTIES, "PLAIN AMQPLAIN ANONYMOUS", "en_US"))
                client.sendall(frame(0, ((10, 10), start)))
                while head := stream.read(7):
                    kind, channel, size = struct.unpack(">BHI", head)
                    payload = stream.read(size + 1)[:-1]
                    client.sendall(b"".join(frame(channel, each) for each in self._answers(kind, channel, payload)))

    def _answers(self, kind: int, channel: int, payload: bytes) -> Iterator[Answer]:
        if kind == HEADER:
            # A message of Stagepost's probe has no body.
            self._confirmed[channel] = self._confirmed.get(channel, 0) + 1
            yield (60, 80), dumps("Lb", (self._confirmed[channel], False))
        if kind != METHOD:
            return
        method = struct.unpack_from(">HH", payload)
        match method:
            case (10, 11):
                yield (10, 30), dumps("BlB", (2047, 131_072, 60))
            case (10, 40):
                yield (10, 41), dumps("s", ("",))
            case (10, 50) | (20, 40) | (85, 10):
                yield (method[0], method[1] + 1), b""
            case (20, 10):
                yield (20, 11), dumps("S", ("",))
            case (50, 10):
                (_, name, is_passive, *_, arguments), _ = loads("BsbbbbbF", payload, 4)
                if is_passive and name not in self.declared:
                    missing = f"NOT_FOUND - no queue '{name}' in vhost '/'"
                    yield (20, 40), dumps("BsBB", (404, missing, 50, 10))
                    return
                if not is_passive:
                    self.declared[name] = arguments
                yield (50, 11), dumps("sll", (name, 0, 0))
            case (60, 70):
                yield (60, 72), dumps("s", ("",))


def frame(channel: int, answer: Answer) -> bytes:
    payload = struct.pack(">HH", *answer[0]) + answer[1]
    return struct.pack(">BHI", METHOD, channel, len(payload)) + payload + b"\xce"


@pytest.fixture
def rabbit() -> Iterator[ScriptedRabbit]:
    with closing(ScriptedRabbit()) as rabbit:
        yield rabbit


def test_rabbitmq_4_is_recognised_and_its_queues_get_no_delivery_limit(rabbit: ScriptedRabbit) -> None:
    broker = rabbit_broker(parsed(rabbit.url), SystemClock(), Random(0), young_seconds=0)
    with closing(broker.connect(PATIENCE_SECONDS)) as connection:
        assert connection.features[:3] == ("RabbitMQ", "4.1.0", False)
        connection.prepare(["orders"], "store-1")
    limits = {name: arguments.get("x-delivery-limit") for name, arguments in rabbit.declared.items()}
    # No message is delivered from the queue of the mark.
    assert limits == {"_dead.orders": -1, "orders": -1, "_store.orders": None}
    assert rabbit.declared["_store.orders"] == mark_arguments("store-1")
    assert {arguments["x-queue-type"] for arguments in rabbit.declared.values()} == {"quorum"}
