"""The connection to RabbitMQ, on a real server, against the contract of a broker's connection."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random

import amqp
import pytest

from stagepost.broker.rabbitmq.broker import rabbit_broker
from stagepost.broker.rabbitmq.driver import parsed
from stagepost.broker.rabbitmq.link import Link
from stagepost.flow.clock import SystemClock
from stagepost.ports.broker import Broker, BrokerConnection
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.testing.contract.broker_givens import STORE, exchanged, some
from stagepost.testing.contract.brokers import BrokerConnectionContract
from tests.servers.rabbitmq import BODY_BYTES_MAX, RabbitServer
from tests.waiting import PATIENCE_SECONDS

# A busy machine may be silent for longer than a second.
HEARTBEAT_SECONDS = 2


def broker_at(server: RabbitServer, parameters: str = f"heartbeat={HEARTBEAT_SECONDS}") -> Broker:
    """A broker whose new queues are used at once. A test of its own sees the age of a queue."""
    return rabbit_broker(parsed(server.url(parameters)), SystemClock(), Random(0), young_seconds=0)


@pytest.fixture
def broker(rabbitmq: RabbitServer) -> Broker:
    return broker_at(rabbitmq)


class RabbitFaults:
    """Implements ``BrokerFaults``."""

    oversized_bytes = BODY_BYTES_MAX + 1
    pause_seconds = 4.0 * HEARTBEAT_SECONDS

    def __init__(self, server: RabbitServer) -> None:
        self._server = server

    def cut(self) -> None:
        self._server.cut_connections()

    def restart(self) -> None:
        self._server.restart()

    def frozen(self) -> AbstractContextManager[None]:
        return self._server.frozen()

    def blocked(self) -> AbstractContextManager[None]:
        return self._server.in_alarm()

    def refuse(self, address: str) -> bool:
        self._server.control("set_policy", address, f"^{address}$", '{"max-length": 0}', "--apply-to", "queues")
        # A quorum queue refuses only when it has more than its limit.
        with amqp.Connection(f"127.0.0.1:{self._server.port}", confirm_publish=True) as connection:
            connection.channel().basic_publish(amqp.Message(b"", delivery_mode=2), routing_key=address)
        return True

    def declare_otherwise(self, address: str) -> str:
        with amqp.Connection(f"127.0.0.1:{self._server.port}") as connection:
            arguments = {"x-queue-type": "quorum", "x-overflow": "drop-head"}
            connection.channel().queue_declare(queue=address, durable=True, auto_delete=False, arguments=arguments)
        return "x-dead-letter-exchange"


@pytest.mark.more
class TestRabbitConnection(BrokerConnectionContract):
    @pytest.fixture
    def patient_broker(self, rabbitmq: RabbitServer) -> Broker:
        return broker_driver_of(rabbitmq.url()).broker(rabbitmq.url(), SystemClock(), Random(0))

    @pytest.fixture
    def faults(self, rabbitmq: RabbitServer) -> RabbitFaults:
        return RabbitFaults(rabbitmq)


def test_a_message_travels_through_rabbitmq(broker: Broker) -> None:
    """It stands for the whole contract, which runs with make test-more."""
    connection: BrokerConnection = broker.connect(PATIENCE_SECONDS)
    address = f"orders.{uuid.uuid4()}"
    connection.prepare([address], STORE)
    assert [each.message_id for each in exchanged(connection, *some(address, 100))][-1] == "m99"
    connection.close()


def test_a_queue_that_was_created_is_used_only_when_it_is_old_enough(
    rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed RabbitMQ 3.10 loses confirmed messages of a queue younger than two seconds, but not each time."""
    waits: list[float] = []
    wait = Link.wait

    def recorded(link: Link, done: Callable[[], bool], seconds: float) -> bool:
        waits.append(seconds)
        return seconds != 2.0 and wait(link, done, seconds)

    monkeypatch.setattr(Link, "wait", recorded)
    address = f"orders.{uuid.uuid4()}"
    counts = []
    for _ in range(2):
        connection = (
            broker_driver_of(rabbitmq.url()).broker(rabbitmq.url(), SystemClock(), Random(0)).connect(PATIENCE_SECONDS)
        )
        connection.prepare([address], STORE)
        connection.close()
        counts.append(waits.count(2.0))
    assert counts == [1, 1]
