"""A connection to RabbitMQ: what it receives, and what it passes on to its publisher and its topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from amqp import spec
from amqp.exceptions import AccessRefused, ResourceLocked

from stagepost.broker.rabbitmq.examination import Examination
from stagepost.broker.rabbitmq.frames import Arrival
from stagepost.broker.rabbitmq.link import Link
from stagepost.broker.rabbitmq.management import Ask
from stagepost.broker.rabbitmq.messages import id_and_headers_of, is_probe
from stagepost.broker.rabbitmq.publisher import Publisher
from stagepost.broker.rabbitmq.topology import Topology
from stagepost.flow.errors import BrokerDenied, BrokerMismatch
from stagepost.flow.texts import as_sentence
from stagepost.ports.broker import BrokerFeatures, Delivery, EdgeAddresses, Publication, PublishResult
from stagepost.ports.findings import Finding

ONE_ALONE, REQUEUE = False, True


class Token(NamedTuple):
    connection: int
    tag: int


class Consumer(NamedTuple):
    tag: str
    window: int


class RabbitConnection:
    """Implements ``BrokerConnection``, and ``ExaminableConnection``. ``ask`` asks the management API."""

    def __init__(self, link: Link, features: BrokerFeatures, young_seconds: float, ask: Ask | None = None) -> None:
        self.features = features
        self._ask = ask
        self._link = link
        self._topology = Topology(link, features.version, young_seconds)
        self._publisher = Publisher(link, self._topology)
        self._channel: Any = None
        self._consumers: dict[str, Consumer] = {}
        # The addresses by the tag of their consumer, also of those that were cancelled, which may still deliver.
        self._addresses: dict[str, str] = {}
        self._arrived: list[Delivery] = []
        self._unsettled: set[int] = set()
        link.amqp.on_arrival = self._on_arrival
        link.amqp.on_blocked = self._on_blocked
        link.amqp.on_unblocked = self._on_unblocked

    def prepare(self, addresses: Sequence[str], store: str) -> None:
        self._topology.prepare(addresses, store)

    def release(self, address: str, store: str) -> bool:
        return self._topology.release(address, store)

    def examine(self, addresses: EdgeAddresses, now: int) -> list[Finding]:
        return Examination(self._topology, self._link.name, self._ask, addresses).findings()

    def depth(self, address: str) -> int | None:
        return self._topology.depth(address)

    def subscribe(self, windows: Mapping[str, int]) -> None:
        for each in windows:
            # A consumer of a missing queue would cost the channel, and all deliveries with it.
            if each not in self._consumers and self._topology.depth(each) is None:
                raise BrokerMismatch(
                    f"there is no queue {each} at the broker {self._link.name}. Prepare the address first."
                )
        with self._link.used() as amqp:
            if self._channel is None:
                self._channel = amqp.channel()
            for address, consumer in list(self._consumers.items()):
                if windows.get(address) != consumer.window:
                    self._channel.basic_cancel(consumer.tag)
                    del self._consumers[address]
            for address, window in windows.items():
                if address not in self._consumers:
                    try:
                        self._consume(address, window)
                    except (AccessRefused, ResourceLocked) as error:
                        # The broker has closed the channel, and so taken back its deliveries.
                        self._link.lose(f"it does not let this user consume from {address}")
                        raise BrokerDenied(
                            f"the broker at {self._link.name} does not let this user consume from {address}: "
                            f"{as_sentence(error.reply_text)} "
                            "Grant the right to read it, or end its exclusive consumer."
                        ) from error

    def receive(self, seconds: float) -> list[Delivery]:
        with self._link.used(seconds) as amqp:
            self._link.wait(lambda: bool(self._arrived), seconds)
            amqp.read_what_is_there()
            arrived, self._arrived = self._arrived, []
            return arrived

    def settle(self, deliveries: Sequence[Delivery]) -> None:
        tags = self._tags_of(deliveries)
        with self._link.used() as amqp, amqp.transport.corked():
            together = self._prefix(tags)
            if together:
                self._channel.basic_ack(tags[together - 1], multiple=True)
            for each in tags[together:]:
                self._channel.basic_ack(each)
            self._unsettled -= set(tags)

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        tags = self._tags_of(deliveries)
        with self._link.used() as amqp, amqp.transport.corked():
            for each in tags:
                self._channel.send_method(spec.Basic.Nack, "Lbb", (each, ONE_ALONE, REQUEUE))
            self._unsettled -= set(tags)

    def publish(self, publications: Sequence[Publication], seconds: float) -> list[PublishResult]:
        return self._publisher.publish(publications, seconds)

    @property
    def is_blocked(self) -> bool:
        return self._publisher.is_blocked

    def is_alive(self, seconds: float) -> bool:
        return self._link.is_alive(seconds, self._topology.ping)

    def close(self) -> None:
        self._link.close()

    # For the link, in whichever thread reads.

    def _on_arrival(self, arrival: Arrival) -> None:
        if is_probe(arrival.message):
            self._channel.basic_ack(arrival.tag)
            return
        self._unsettled.add(arrival.tag)
        message_id, headers = id_and_headers_of(arrival.message)
        body = arrival.message.body or b""
        address = self._addresses[arrival.consumer]
        token = Token(id(self), arrival.tag)
        self._arrived.append(Delivery(address, message_id, body, headers, token, arrival.redelivered))

    def _on_blocked(self, reason: str) -> None:
        self._publisher.is_blocked = True

    def _on_unblocked(self) -> None:
        self._publisher.is_blocked = False

    def _consume(self, address: str, window: int) -> None:
        # An address keeps its tag: back-pressure ends and renews a subscription over and over.
        consumer = next((tag for tag, each in self._addresses.items() if each == address), f"{len(self._addresses)}")
        self._addresses[consumer] = address
        # The window holds for the consumers that come after it.
        self._channel.basic_qos(prefetch_size=0, prefetch_count=window, a_global=False)
        self._channel.basic_consume(queue=address, consumer_tag=consumer)
        self._consumers[address] = Consumer(consumer, window)

    def _prefix(self, tags: Sequence[int]) -> int:
        """Return how many of these tags, from the first one on, are the oldest unsettled ones.

        One frame acknowledges them, because no other delivery is older. RabbitMQ keeps back all but some thirty of
        single acknowledgements, and forgets the rest when the connection is closed.
        """
        pairs = zip(tags, sorted(self._unsettled), strict=False)
        return next((place for place, (tag, oldest) in enumerate(pairs) if tag != oldest), len(tags))

    def _tags_of(self, deliveries: Sequence[Delivery]) -> list[int]:
        """Return the tags of those that are not settled yet, in the order of their arrival."""
        tokens = [each.token for each in deliveries]
        if not all(isinstance(each, Token) and each.connection == id(self) for each in tokens):
            raise ValueError("a delivery belongs to another connection; settle it there, or let it come again")
        return sorted({each.tag for each in tokens if isinstance(each, Token)} & self._unsettled)
