"""RabbitMQ with another client: it reads our messages, and we read its messages. TLS, as a client without us has it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random

import aio_pika
import pytest

from stagepost.broker.rabbitmq.broker import rabbit_broker
from stagepost.broker.rabbitmq.driver import parsed
from stagepost.broker.rabbitmq.topology import Topology
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import BrokerDenied, BrokerUnavailable, DeclarationError
from stagepost.ports.broker import Broker, Publication
from stagepost.testing.contract.broker_givens import STORE, drained, exchanged, published, some
from stagepost.testing.contract.brokers import AWKWARD
from stagepost.transaction.steps import Halt
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.more

# AMQP's property takes 255 bytes, and our ids have up to 200 characters.
TOO_LONG_ID = "№" * 200


def broker_at(url: str) -> Broker:
    return rabbit_broker(parsed(url), SystemClock(), Random(0), young_seconds=0)


def test_another_client_reads_our_messages(rabbitmq: RabbitServer) -> None:
    address = "others.read"
    connection = broker_at(rabbitmq.url()).connect(PATIENCE_SECONDS)
    connection.prepare([address], STORE)
    headers = {"content-type": "application/json", "ünï": AWKWARD, "empty": ""}
    big = b"x" * 300_000
    published(
        connection, Publication(address, "m1", b"\x00\xff body", headers), Publication(address, TOO_LONG_ID, big, {})
    )
    connection.close()

    async def read() -> list[aio_pika.abc.AbstractIncomingMessage]:
        async with await aio_pika.connect(rabbitmq.url()) as client:
            channel = await client.channel()
            queue = await channel.get_queue(address)
            return [await queue.get(no_ack=True, timeout=PATIENCE_SECONDS) for _ in range(2)]

    first, second = asyncio.run(read())
    assert (first.body, first.message_id, first.content_type) == (b"\x00\xff body", "m1", "application/json")
    assert headers.items() <= first.headers.items()
    assert first.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert (second.body, second.message_id, second.headers["message-id"]) == (big, None, TOO_LONG_ID)


def test_we_read_the_messages_of_another_client(rabbitmq: RabbitServer) -> None:
    address, topic = "others.write", "others.news"
    connection = broker_at(rabbitmq.url()).connect(PATIENCE_SECONDS)
    connection.prepare([address, f"billing@{topic}"], STORE)
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    async def write() -> None:
        async with await aio_pika.connect(rabbitmq.url()) as client:
            channel = await client.channel()
            message = aio_pika.Message(
                b"\x00\xff" * 200_000,
                message_id="their-1",
                correlation_id="c",
                content_type="text/plain",
                timestamp=at,
                app_id="shop",
                priority=3,
                headers={
                    "count": 7,
                    "big": 2**40,
                    "yes": True,
                    "nothing": None,
                    "nested": {"a": [1, "ü"]},
                },
            )
            await channel.default_exchange.publish(message, routing_key=address)
            exchange = await channel.get_exchange(topic)
            await exchange.publish(aio_pika.Message(b"news"), routing_key="anything")

    asyncio.run(write())
    [arrived] = drained(connection, address, 1)
    assert (arrived.message_id, arrived.body) == ("their-1", b"\x00\xff" * 200_000)
    expected = {
        "count": "7",
        "big": str(2**40),
        "yes": "true",
        "nothing": "",
        "nested": '{"a": [1, "\\u00fc"]}',
        "correlation-id": "c",
        "content-type": "text/plain",
        "app-id": "shop",
        "priority": "3",
        "timestamp": str(int(at.timestamp())),
    }
    assert expected.items() <= arrived.headers.items()
    [news] = drained(connection, f"billing@{topic}", 1)
    assert news.body == b"news"
    connection.close()


def test_a_topic_may_be_an_exchange_of_another_type(rabbitmq: RabbitServer) -> None:
    topic = "others.exchange"

    async def declare() -> None:
        async with await aio_pika.connect(rabbitmq.url()) as client:
            channel = await client.channel()
            await channel.declare_exchange(topic, aio_pika.ExchangeType.DIRECT, durable=True)

    asyncio.run(declare())
    connection = broker_at(rabbitmq.url()).connect(PATIENCE_SECONDS)
    connection.prepare([f"billing@{topic}"], STORE)
    published(connection, *some(f"@{topic}", 1))
    assert [each.message_id for each in drained(connection, f"billing@{topic}", 1)] == ["m0"]
    connection.close()


def test_a_probe_of_a_new_queue_is_no_delivery(rabbitmq: RabbitServer) -> None:
    """It stays in the queue where another sender was faster."""
    address = "others.probe"
    connection = broker_at(rabbitmq.url()).connect(PATIENCE_SECONDS)
    connection.prepare([address], STORE)
    published(connection, Publication(address, "", b"", {"stagepost-probe": "1"}), *some(address, 1))
    assert [each.message_id for each in drained(connection, address, 1)] == ["m0"]
    connection.close()
    again = broker_at(rabbitmq.url()).connect(PATIENCE_SECONDS)
    again.subscribe({address: 10})
    assert again.receive(0.2) == []
    again.close()


def test_a_crash_while_a_new_queue_grows_old_does_not_skip_the_wait(
    rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "others.crash"
    waited: list[list[str]] = []

    def die(topology: Topology, created: list[str]) -> None:
        raise Halt

    with monkeypatch.context() as dying:
        dying.setattr(Topology, "_wait_until_safe", die)
        first = broker_at(rabbitmq.url()).connect(PATIENCE_SECONDS)
        with pytest.raises(Halt):
            first.prepare([address], STORE)
        first.close()
    monkeypatch.setattr(Topology, "_wait_until_safe", lambda topology, created: waited.append(created))
    second = broker_at(rabbitmq.url()).connect(PATIENCE_SECONDS)
    for _ in range(2):
        second.prepare([address], STORE)
    second.close()
    assert [address in each for each in waited] == [True]


def test_a_queue_that_another_client_has_alone_is_denied(rabbitmq: RabbitServer) -> None:
    address = "others.alone"
    connection = broker_at(rabbitmq.url()).connect(PATIENCE_SECONDS)

    async def hold() -> None:
        async with await aio_pika.connect(rabbitmq.url()) as client:
            await (await client.channel()).declare_queue(address, exclusive=True)
            for call in (lambda: connection.subscribe({address: 1}), lambda: connection.prepare([address], STORE)):
                with pytest.raises(BrokerDenied, match="end the client that has it alone"):
                    await asyncio.to_thread(call)

    asyncio.run(hold())
    # Neither refusal costs the connection.
    assert connection.receive(0) == []
    connection.close()


def test_a_user_without_the_right_to_read_is_denied(rabbitmq: RabbitServer) -> None:
    address, host = "others.unread", rabbitmq.add_host()
    connection = broker_at(rabbitmq.url(host=host)).connect(PATIENCE_SECONDS)
    connection.prepare([address], STORE)
    connection.close()
    rabbitmq.control("add_user", "writer", "s3cret")
    rabbitmq.control("set_permissions", "-p", host, "writer", ".*", ".*", "^$")
    place = rabbitmq.url(host=host).partition("@")[2]
    writer = broker_at(f"amqp://writer:s3cret@{place}").connect(PATIENCE_SECONDS)
    with pytest.raises(BrokerDenied, match="Grant the right to read it"):
        writer.subscribe({address: 1})
    writer.close()


# TLS.


def test_messages_travel_over_tls(rabbitmq: RabbitServer) -> None:
    broker = broker_at(rabbitmq.tls_url(f"cafile={rabbitmq.certificate}&heartbeat=1"))
    connection = broker.connect(PATIENCE_SECONDS)
    connection.prepare(["others.tls"], STORE)
    big = Publication("others.tls", "big", b"x" * 1_000_000, {})
    arrived = exchanged(connection, *some("others.tls", 100), big)
    assert arrived[-1].body == big.body
    assert connection.receive(1.5) == []
    assert connection.is_alive(1.0)
    connection.close()


def test_a_certificate_that_is_not_trusted_is_denied(rabbitmq: RabbitServer) -> None:
    with pytest.raises(BrokerDenied, match=r"shows a certificate that is not trusted .* in the parameter cafile"):
        broker_at(rabbitmq.tls_url()).connect(PATIENCE_SECONDS)


def test_a_certificate_of_another_host_is_denied(rabbitmq: RabbitServer) -> None:
    url = rabbitmq.tls_url(f"cafile={rabbitmq.certificate}").replace("localhost", "127.0.0.1")
    with pytest.raises(BrokerDenied, match=r"shows a certificate that is not trusted"):
        broker_at(url).connect(PATIENCE_SECONDS)


def test_a_port_without_tls_is_unavailable_over_tls(rabbitmq: RabbitServer) -> None:
    with pytest.raises(BrokerUnavailable, match=r"no host of the broker amqps://127\.0\.0\.1"):
        broker_at(f"amqps://127.0.0.1:{rabbitmq.port}").connect(0.5)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ("cafile=/nowhere.pem", r"the file /nowhere\.pem of the parameter cafile does not exist"),
        (f"cafile={__file__}", r"a file of its TLS parameters is no PEM file"),
        (f"keyfile={__file__}", r"the parameter keyfile needs the parameter certfile"),
        ("verify=no", r"the parameter 'verify', and only cafile, certfile, heartbeat, keyfile, management are known"),
    ],
)
def test_wrong_parameters_of_tls_are_found_at_the_declaration(parameters: str, reason: str) -> None:
    with pytest.raises(DeclarationError, match=reason):
        parsed(f"amqps://one?{parameters}")
