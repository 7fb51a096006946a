"""RabbitMQ's port, where something else answers: each answer is an error that names it, and no thread ends silently."""

from __future__ import annotations

import gc
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

import pytest
from amqp.method_framing import Buffer

from stagepost.broker.rabbitmq.broker import features_of, rabbit_broker
from stagepost.broker.rabbitmq.driver import parsed
from stagepost.broker.rabbitmq.link import AmqpConnection, Link
from stagepost.broker.rabbitmq.topology import Topology
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import BrokerConnectionLost, BrokerUnavailable
from tests.waiting import wait_until

FRAME_END = b"\xce"
START = struct.pack(">HH", 10, 10)


def method(payload: bytes) -> bytes:
    return struct.pack(">BHI", 1, 0, len(payload)) + payload + FRAME_END


Answering = Callable[[bytes], str]


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Return a function that starts a server with one answer to each client, and returns its URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(answer: bytes) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client, suppress(OSError):
                    client.sendall(answer)
                    client.recv(1_000)

    def start(answer: bytes) -> str:
        threading.Thread(target=serve, args=(answer,), daemon=True).start()
        return f"amqp://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    listener.close()


@pytest.mark.parametrize(
    "answer",
    [
        method(START + b"\x00"),
        method(START + b"\x00\x09" + struct.pack(">I", 3) + b"\x02\xff\xfe"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        method(b"\xff"),
    ],
    ids=["cut short", "no UTF-8", "ssh", "http", "no method"],
)
def test_bytes_that_are_not_amqp_are_an_error_that_names_the_host(answering: Answering, answer: bytes) -> None:
    url = answering(answer)
    broker = rabbit_broker(parsed(url), SystemClock(), Random(0), sleep=lambda seconds: None)
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1"):
        broker.connect(0.5)


def test_a_connection_that_failed_keeps_no_buffer_until_the_next_garbage_collection(answering: Answering) -> None:
    """A broker that restarts costs many of them, and a full collection may be hours away."""
    broker = rabbit_broker(parsed(answering(b"")), SystemClock(), Random(0), sleep=lambda seconds: None)

    def buffers() -> int:
        return sum(isinstance(each, Buffer) for each in gc.get_objects())

    gc.collect()
    before = buffers()
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(BrokerUnavailable):
                broker.connect(0.5)
        assert buffers() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("version", ["3.10.8", "4.1", "4.2.0-rc.1", "main", ""])
def test_any_version_can_be_read(version: str) -> None:
    features = features_of({"product": "RabbitMQ", "version": version})
    assert features.version == version
    Topology(None, features.version)  # type: ignore[arg-type]  # it opens nothing


class BrokenConnection:
    """The connection whose reading fails in a way that nobody expected."""

    heartbeat = 0.01
    deadline = 0.0

    def read_what_is_there(self) -> None:
        raise RuntimeError("unexpected")

    def collect(self) -> None: ...


def test_a_thread_of_heart_beats_that_breaks_loses_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    broken: AmqpConnection = BrokenConnection()  # type: ignore[assignment]  # it has all that the thread uses
    link = Link(broken, "127.0.0.1", SystemClock())
    with caplog.at_level(logging.ERROR):
        link.start()
        wait_until(lambda: link.is_lost, "the connection is lost")
    with pytest.raises(BrokerConnectionLost, match="RuntimeError: unexpected"):
        link.check()
