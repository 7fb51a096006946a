"""A RabbitMQ connection whose network or server fails: it says so in time, and loses nothing that was confirmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random

import amqp
import pytest

from stagepost.broker.rabbitmq.broker import rabbit_broker
from stagepost.broker.rabbitmq.connection import RabbitConnection
from stagepost.broker.rabbitmq.driver import parsed
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import BrokerConnectionLost, BrokerDenied, BrokerUnavailable
from stagepost.ports.broker import Broker, BrokerConnection, Delivery
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.testing.contract.broker_givens import STORE, drained, published, received, some
from tests.servers.amqp_proxy import ACK, DELIVER, PUBLISH, AmqpProxy
from tests.servers.ports import reserved_port
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.more

# Silence of a few seconds is a loss, for the tests of that alone: a busy machine may be silent for a moment too.
HEARTBEAT = "heartbeat=1"
# So long that silence is never the reason of a loss.
PATIENT = "heartbeat=60"
WINDOW = 100

Connect = Callable[[str], BrokerConnection]


def broker_at(url: str) -> Broker:
    """A broker whose new queues are used at once: no test of these kills the server with a young queue."""
    return rabbit_broker(parsed(url), SystemClock(), Random(0), young_seconds=0)


@pytest.fixture
def proxy(rabbitmq: RabbitServer) -> Iterator[AmqpProxy]:
    proxy = AmqpProxy(rabbitmq.port)
    yield proxy
    proxy.close()


@pytest.fixture
def connect() -> Iterator[Connect]:
    opened: list[BrokerConnection] = []

    def open_one(url: str) -> BrokerConnection:
        opened.append(broker_at(url).connect(PATIENCE_SECONDS))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def address(request: pytest.FixtureRequest, rabbitmq: RabbitServer, connect: Connect) -> str:
    """The address of a prepared queue."""
    name = f"lost.{request.node.name.replace('[', '.').replace(']', '')}"
    connect(rabbitmq.url()).prepare([name], STORE)
    return name


def test_a_cut_within_a_published_frame_leaves_the_messages_before_it(
    rabbitmq: RabbitServer, proxy: AmqpProxy, connect: Connect, address: str
) -> None:
    connection = connect(proxy.url(PATIENT))
    published(connection, *some(address, 3))
    proxy.cut_within(PUBLISH, "server")
    assert connection.publish(some(address, WINDOW), PATIENCE_SECONDS) == ["lost"] * WINDOW
    assert proxy.sprung.is_set()
    with pytest.raises(BrokerConnectionLost):
        connection.receive(0)
    assert len(drained(connect(rabbitmq.url()), address, 3)) == 3


def test_a_cut_within_a_confirm_loses_the_answer_and_not_the_messages(
    rabbitmq: RabbitServer, proxy: AmqpProxy, connect: Connect, address: str
) -> None:
    connection = connect(proxy.url(PATIENT))
    published(connection, *some(address, 1))
    # The broker confirms the first messages while others are on their way. With the last one it has the whole window.
    proxy.cut_within(ACK, "client", tag=WINDOW + 1)
    results = connection.publish(some(address, WINDOW), PATIENCE_SECONDS)
    assert set(results) <= {"confirmed", "lost"}
    assert results[-1] == "lost"
    assert len(drained(connect(rabbitmq.url()), address, WINDOW + 1)) == WINDOW + 1


def test_a_cut_within_a_delivery_brings_it_again(
    rabbitmq: RabbitServer, proxy: AmqpProxy, connect: Connect, address: str
) -> None:
    published(connect(rabbitmq.url()), *some(address, 3))
    connection = connect(proxy.url(PATIENT))
    proxy.cut_within(DELIVER, "client")
    connection.subscribe({address: 3})
    wait_for_loss(connection)
    assert [each.message_id for each in drained(connect(rabbitmq.url()), address, 3)] == ["m0", "m1", "m2"]


def test_a_network_that_swallows_all_is_noticed_by_the_missing_heart_beats(
    rabbitmq: RabbitServer, proxy: AmqpProxy, connect: Connect, address: str
) -> None:
    connection = connect(proxy.url(HEARTBEAT))
    with proxy.black_hole():
        with pytest.raises(BrokerConnectionLost, match=r"nothing came from the broker for \d"):
            connection.receive(PATIENCE_SECONDS)
        with pytest.raises(BrokerUnavailable, match=r"no answer within"):
            broker_at(proxy.url()).connect(1.0)


def test_the_heart_beats_notice_a_loss_while_the_driving_thread_works(
    proxy: AmqpProxy, connect: Connect, address: str
) -> None:
    connection = connect(proxy.url(HEARTBEAT))
    assert isinstance(connection, RabbitConnection)
    with proxy.black_hole():
        # No call of this thread asks.
        wait_until(lambda: connection._link.is_lost, "the connection is known to be lost")


def test_a_broker_that_keeps_its_heart_beats_and_never_confirms_loses_the_connection_at_the_deadline(
    rabbitmq: RabbitServer, proxy: AmqpProxy, connect: Connect, address: str
) -> None:
    connection = connect(proxy.url("heartbeat=3"))
    published(connection, *some(address, 1))
    with proxy.swallowing(ACK):
        # Longer than two heart-beats: silence is not the reason.
        assert connection.publish(some(address, 2), 8.0) == ["unconfirmed"] * 2
    assert not connection.is_alive(0)
    assert len(drained(connect(rabbitmq.url()), address, 3)) == 3


def test_a_new_queue_is_not_ready_before_it_has_confirmed_a_message(
    proxy: AmqpProxy, connect: Connect, request: pytest.FixtureRequest
) -> None:
    connection = connect(proxy.url(PATIENT))
    with proxy.swallowing(ACK), pytest.raises(BrokerConnectionLost, match="no answer within 10 s"):
        connection.prepare([f"lost.{request.node.name}"], STORE)


def test_a_reset_by_the_network_is_a_loss_and_not_our_deadline(
    proxy: AmqpProxy, connect: Connect, address: str
) -> None:
    connection = connect(proxy.url(PATIENT))
    published(connection, *some(address, 1))
    proxy.cut()
    wait_for_loss(connection)


def test_a_deleted_queue_ends_the_connection_that_receives_from_it(
    rabbitmq: RabbitServer, connect: Connect, address: str
) -> None:
    connection = connect(rabbitmq.url(PATIENT))
    connection.subscribe({address: 1})
    with amqp.Connection(f"127.0.0.1:{rabbitmq.port}") as other:
        other.channel().queue_delete(queue=address)
    with pytest.raises(BrokerConnectionLost):
        connection.receive(PATIENCE_SECONDS)


def test_a_topic_that_is_deleted_under_way_costs_its_own_publications_alone(
    rabbitmq: RabbitServer, connect: Connect, address: str
) -> None:
    connection = connect(rabbitmq.url(PATIENT))
    connection.prepare([f"billing@{address}"], STORE)
    published(connection, *some(f"@{address}", 1))
    with amqp.Connection(f"127.0.0.1:{rabbitmq.port}") as other:
        other.channel().exchange_delete(address)
    window = [*some(address, 2), *some(f"@{address}", 1), *some(address, 2)]
    assert connection.publish(window, PATIENCE_SECONDS) == ["confirmed"] * 2 + ["unroutable"] + ["confirmed"] * 2
    assert connection.publish(window[2:], PATIENCE_SECONDS) == ["unroutable"] + ["confirmed"] * 2


def test_an_alarm_that_begins_later_costs_one_window_and_is_known_to_the_next_connection(
    rabbitmq: RabbitServer, connect: Connect, address: str
) -> None:
    connection = connect(rabbitmq.url(PATIENT))
    published(connection, *some(address, 1))
    with rabbitmq.in_alarm():
        assert connection.publish(some(address, 3), 3.0) == ["unconfirmed"] * 3
        again = connect(rabbitmq.url(PATIENT))
        assert again.publish(some(address, 3), PATIENCE_SECONDS) == ["refused"] * 3
        assert again.is_blocked
        # It is heard without a call that publishes.
    wait_until(lambda: not again.is_blocked, "the end of the alarm is known")
    published(again, *some(address, 1))


def test_wrong_credentials_and_an_unknown_virtual_host_are_denied(rabbitmq: RabbitServer) -> None:
    for url in (
        f"amqp://guest:wrong-secret@127.0.0.1:{rabbitmq.port}",
        f"amqp://127.0.0.1:{rabbitmq.port}/unknown",
    ):
        with pytest.raises(BrokerDenied, match=r"the broker at 127\.0\.0\.1:\d+ refuses the user 'guest' or") as denied:
            broker_at(url).connect(PATIENCE_SECONDS)
        assert "secret" not in str(denied.value)


def test_missing_rights_are_denied_with_the_address(rabbitmq: RabbitServer) -> None:
    rabbitmq.control("add_user", "clerk", "secret")
    rabbitmq.control("set_permissions", "clerk", "^$", "^$", "^$")
    try:
        connection = broker_at(f"amqp://clerk:secret@127.0.0.1:{rabbitmq.port}").connect(PATIENCE_SECONDS)
        with pytest.raises(BrokerDenied, match=r"does not allow to use orders\.place: .* Grant the user"):
            connection.prepare(["orders.place"], STORE)
        connection.close()
    finally:
        rabbitmq.control("delete_user", "clerk")


def test_a_dead_host_is_passed_over(rabbitmq: RabbitServer) -> None:
    dead = reserved_port()
    broker = broker_at(f"amqp://127.0.0.1:{dead},127.0.0.1:{rabbitmq.port}")
    broker.connect(PATIENCE_SECONDS).close()
    with pytest.raises(BrokerUnavailable, match=rf"127\.0\.0\.1:{dead} \(no connection: "):
        broker_at(f"amqp://127.0.0.1:{dead}").connect(0.1)


def test_a_kill_in_mid_window_keeps_what_was_confirmed_and_the_client_finds_the_node_on_another_port(
    rabbitmq: RabbitServer,
) -> None:
    """``prepare`` waits until the queue is safe: RabbitMQ 3.10 loses the messages of a younger one."""
    address = "lost.killed"
    other_port = reserved_port()
    url = f"amqp://127.0.0.1:{rabbitmq.port},127.0.0.1:{other_port}/?{PATIENT}"
    broker = broker_driver_of(url).broker(url, SystemClock(), Random(0))
    connection = broker.connect(PATIENCE_SECONDS)
    connection.prepare([address], STORE)
    confirmed: set[str] = set()
    killing: Future[None] | None = None
    with ThreadPoolExecutor(1) as pool:
        # The kill is seen at once. A server that is slow to answer is not dead.
        while connection.is_alive(PATIENCE_SECONDS):
            window = [each._replace(message_id=f"{len(confirmed)}.{each.message_id}") for each in some(address, WINDOW)]
            results = connection.publish(window, PATIENCE_SECONDS)
            confirmed |= {
                each.message_id for each, result in zip(window, results, strict=True) if result == "confirmed"
            }
            if killing is None and len(confirmed) >= 3 * WINDOW:
                killing = pool.submit(rabbitmq.kill)
    connection.close()
    rabbitmq.start(other_port)
    again = broker.connect(PATIENCE_SECONDS)
    again.subscribe({address: 1_000})
    arrived: set[str] = set()

    def take() -> bool:
        deliveries = again.receive(1.0)
        again.settle(deliveries)
        arrived.update(each.message_id for each in deliveries)
        return confirmed <= arrived

    wait_until(take, "all confirmed messages arrive")
    again.close()


def test_a_frozen_server_holds_no_call_and_is_found_again(
    rabbitmq: RabbitServer, connect: Connect, address: str
) -> None:
    connection = connect(rabbitmq.url(PATIENT))
    published(connection, *some(address, 2))
    connection.subscribe({address: 1})
    [first] = received(connection, 1)
    with rabbitmq.frozen():
        assert connection.publish(some(address, WINDOW), 1.0) == ["unconfirmed"] * WINDOW
        with pytest.raises(BrokerConnectionLost, match="no answer within 1 s"):
            connection.settle([first])
    # The server reads the window after it has thawed. Its messages were unknown, and are there.
    again = connect(rabbitmq.url(PATIENT))
    assert first.message_id in {each.message_id for each in received_at_least(again, address, 2)}


def wait_for_loss(connection: BrokerConnection) -> None:
    """Receive until the connection says that it is lost."""
    lost: list[BrokerConnectionLost] = []

    def receive() -> bool:
        try:
            connection.receive(1.0)
        except BrokerConnectionLost as error:
            lost.append(error)
        return bool(lost)

    wait_until(receive, "the connection says that it is lost")


def received_at_least(connection: BrokerConnection, address: str, count: int) -> list[Delivery]:
    connection.subscribe({address: 1_000})
    deliveries: list[Delivery] = []

    def take() -> bool:
        deliveries.extend(connection.receive(1.0))
        return len(deliveries) >= count

    wait_until(take, f"{count} deliveries come")
    return deliveries
