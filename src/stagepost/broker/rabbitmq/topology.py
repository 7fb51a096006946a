"""The queues, exchanges and marks at the broker: declare what is missing, compare what is there, change nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from amqp import Message, spec
from amqp.exceptions import AccessRefused, ChannelError, NotFound, PreconditionFailed, ResourceLocked

from stagepost.broker.rabbitmq.link import ANSWER_SECONDS, AmqpConnection, Link
from stagepost.broker.rabbitmq.messages import PERSISTENT, PROBE_HEADER, is_probe, is_short
from stagepost.flow.errors import AddressTaken, BrokerDenied, BrokerMismatch
from stagepost.flow.texts import as_sentence
from stagepost.ports.broker import is_topic, mark_address, refused_address, topic_of

# RabbitMQ 3.10 loses the confirmed messages of a younger quorum queue when it is killed.
YOUNG_SECONDS = 2.0
QUORUM: dict[str, object] = {"x-queue-type": "quorum"}
# The marks compare this argument, which a queue without deliveries never uses.
MARK_ARGUMENT = "x-dead-letter-routing-key"
# From this version on, quorum queues drop what was delivered too often, unless a queue says otherwise.
LIMITING_VERSION = 4

# The text of a refusal. It is the only place where RabbitMQ tells the arguments of a queue.
DIFFERENCE = re.compile(
    r"inequivalent arg '(?P<name>[^']+)'.*received (?:the value )?(?P<ours>.*?)(?: of type '\w+')?"
    r" but current is (?:the value )?(?P<theirs>.*?)(?: of type '\w+')?$"
)


class QueueState(NamedTuple):
    messages: int
    consumers: int


class Topology:
    """The declaring side of a connection. It has a channel of its own, because a refusal closes a channel."""

    def __init__(self, link: Link, version: str, young_seconds: float = YOUNG_SECONDS) -> None:
        self._link = link
        major = version.partition(".")[0]
        # A version that is no number is taken for a newer one, because the limit is the greater danger.
        self._is_limiting = not major.isdecimal() or int(major) >= LIMITING_VERSION
        self._young_seconds = young_seconds
        self._channel: Any = None
        self._topics: set[str] = set()

    def prepare(self, addresses: Sequence[str], store: str) -> None:
        created: list[str] = []
        unmarked: list[str] = []
        for each in addresses:
            with self._link.used() as amqp:
                is_marked = self._is_marked(amqp, each, store)
                created += self._prepare_one(amqp, each, is_marked=is_marked)
                unmarked += [] if is_marked else [each]
        if created:
            self._wait_until_safe(created)
        # An address without a mark is one that nobody saw grow old. So a crash in the wait does not skip it.
        for each in unmarked:
            with self._link.used() as amqp, self._rights_to(each):
                self._ensure(amqp, mark_address(each), mark_arguments(store), store)

    def release(self, address: str, store: str) -> bool:
        mark = mark_address(address)
        with self._link.used() as amqp:
            if self._count(amqp, mark) is None:
                return False
            try:
                self._declare(amqp, mark, mark_arguments(store))
            except PreconditionFailed:
                return False
            self._opened(amqp).queue_delete(queue=mark)
            return True

    def depth(self, address: str) -> int | None:
        with self._link.used() as amqp, self._rights_to(address):
            return self._count(amqp, address)

    def differences(self, address: str, store: str) -> list[str]:
        """Say what of ``prepare`` is missing at an address, or is another's. Declares nothing."""
        wanted = {
            mark_address(address): mark_arguments(store),
            address: self._arguments(refused_address(address)),
            refused_address(address): self._arguments(),
        }
        found: list[str] = []
        for name, arguments in wanted.items():
            with self._link.used() as amqp, self._rights_to(name):
                if self._state(amqp, name) is None:
                    found.append(f"there is no queue {name}")
                    continue
                try:
                    self._ensure(amqp, name, arguments, store)
                except (AddressTaken, BrokerMismatch) as error:
                    found.append(str(error))
        return found

    def state(self, address: str) -> QueueState | None:
        """Return the messages and the consumers of an address; None where it has no queue."""
        with self._link.used() as amqp, self._rights_to(address):
            return self._state(amqp, address)

    @property
    def virtual_host(self) -> str:
        with self._link.used() as amqp:
            return str(amqp.virtual_host)

    def has_topic(self, amqp: AmqpConnection, topic: str) -> bool:
        """Say whether a topic has an exchange. It is found once for a connection."""
        if topic not in self._topics:
            try:
                self._opened(amqp).exchange_declare(exchange=topic, type="fanout", passive=True)
            except NotFound:
                return False
            self._topics.add(topic)
        return True

    def ping(self, amqp: AmqpConnection) -> None:
        """Send what changes nothing, and wait for its answer."""
        self._opened(amqp).flow(active=True)

    def forget_topic(self, topic: str) -> None:
        self._topics.discard(topic)

    def _is_marked(self, amqp: AmqpConnection, address: str, store: str) -> bool:
        """Say whether an address has the mark of the store, or needs none. Raises ``AddressTaken``."""
        if not is_short(mark_address(address)):
            raise BrokerMismatch(f"the address {address[:60]}… is too long for RabbitMQ. Shorten the name.")
        if is_topic(address):
            return True
        with self._rights_to(address):
            if self._count(amqp, mark_address(address)) is None:
                return False
            self._ensure(amqp, mark_address(address), mark_arguments(store), store)
            return True

    def _prepare_one(self, amqp: AmqpConnection, address: str, *, is_marked: bool) -> list[str]:
        """Declare what an address needs beside its mark. Returns the queues that may be young."""
        topic = topic_of(address)
        with self._rights_to(address):
            if topic and not self.has_topic(amqp, topic):
                self._opened(amqp).exchange_declare(
                    exchange=topic, type="fanout", durable=True, auto_delete=False
                )  # fmt: skip
            if is_topic(address):
                return []
            wanted = {
                refused_address(address): self._arguments(),
                address: self._arguments(refused_address(address)),
            }
            created = [name for name, arguments in wanted.items() if self._ensure(amqp, name, arguments)]
            if topic:
                self._opened(amqp).queue_bind(queue=address, exchange=topic, routing_key=topic)
            return created if is_marked else list(wanted)

    @contextmanager
    def _rights_to(self, address: str) -> Iterator[None]:
        try:
            yield
        except (AccessRefused, ResourceLocked) as error:
            raise BrokerDenied(
                f"the broker at {self._link.name} does not allow to use {address}: {as_sentence(error.reply_text)} "
                "Grant the user "
                "the rights to configure, write and read it, or end the client that has it alone."
            ) from error

    def _ensure(self, amqp: AmqpConnection, name: str, arguments: Mapping[str, object], store: str = "") -> bool:
        """Declare a queue. Returns whether there was none before."""
        exists = self._count(amqp, name) is not None
        try:
            self._declare(amqp, name, arguments)
        except ChannelError as error:
            if isinstance(error, AccessRefused | ResourceLocked):
                raise
            self._refuse(name, error, store)
        return not exists

    def _refuse(self, name: str, error: ChannelError, store: str) -> NoReturn:
        found = DIFFERENCE.search(error.reply_text or "")
        if found and found["name"] == MARK_ARGUMENT and name.startswith(mark_address("")):
            address = name.removeprefix(mark_address(""))
            raise AddressTaken(
                f"the store {found['theirs']} receives from {address} at the broker {self._link.name}, and this one is "
                f"{store}. Let all replicas share one store. If that store is gone, run: stagepost release {address} "
                f"--store {found['theirs']}"
            ) from error
        reason = error.reply_text
        if found:
            reason = f"its {found['name']} is {found['theirs']}, and must be {found['ours']}"
        raise BrokerMismatch(
            f"the queue {name} exists at the broker {self._link.name}, and cannot be used: {as_sentence(reason)} "
            "Delete the queue "
            "when it is empty, or take another name."
        ) from error

    def _declare(self, amqp: AmqpConnection, name: str, arguments: Mapping[str, object]) -> None:
        self._opened(amqp).queue_declare(queue=name, durable=True, auto_delete=False, arguments=dict(arguments))

    def _count(self, amqp: AmqpConnection, name: str) -> int | None:
        state = self._state(amqp, name)
        return None if state is None else state.messages

    def _state(self, amqp: AmqpConnection, name: str) -> QueueState | None:
        """Return the messages that wait in a queue, and its consumers; None where there is no such queue."""
        if not is_short(name):
            return None
        try:
            found = self._opened(amqp).queue_declare(queue=name, passive=True)
        except NotFound:
            return None
        return QueueState(int(found.message_count), int(found.consumer_count))

    def _arguments(self, refused: str | None = None) -> dict[str, object]:
        arguments = QUORUM | {"x-overflow": "reject-publish"}
        if refused is not None:
            arguments |= {
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": refused,
                "x-dead-letter-strategy": "at-least-once",
            }
        return arguments | ({"x-delivery-limit": -1} if self._is_limiting else {})

    def _wait_until_safe(self, created: Sequence[str]) -> None:
        """Wait until new queues are old enough, then see each one confirm a message."""
        if self._young_seconds:
            with self._link.used(self._young_seconds + ANSWER_SECONDS):
                self._link.wait(lambda: False, self._young_seconds)
        for each in created:
            with self._link.used() as amqp:
                channel = amqp.channel()
                channel.auto_decode = False
                probe = Message(b"", delivery_mode=PERSISTENT, application_headers={PROBE_HEADER: "1"})
                channel.confirm_select()
                channel.send_method(spec.Basic.Publish, "Bssbb", (0, "", each, True, False), probe, wait=spec.Basic.Ack)
                found = channel.basic_get(each)
                if found is not None and is_probe(found):
                    channel.basic_ack(found.delivery_tag)
                elif found is not None:
                    # Another sender was faster. Receivers know the probe, and settle it.
                    channel.basic_reject(found.delivery_tag, requeue=True)
                channel.close()

    def _opened(self, amqp: AmqpConnection) -> Any:
        """Return the channel, which py-amqp opens again after each refusal."""
        if self._channel is None:
            self._channel = amqp.channel()
            self._channel.auto_decode = False
        return self._channel


def mark_arguments(store: str) -> dict[str, object]:
    return QUORUM | {"x-dead-letter-exchange": "", MARK_ARGUMENT: store}
