"""Publish windows of messages on one channel, and match the broker's confirms to them."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any

from amqp import Message, spec
from amqp.exceptions import AMQPError, ChannelError

from stagepost.broker.rabbitmq.link import AmqpConnection, Link
from stagepost.broker.rabbitmq.messages import is_short, message_of
from stagepost.broker.rabbitmq.topology import Topology
from stagepost.flow.errors import BrokerConnectionLost
from stagepost.ports.broker import Publication, PublishResult, is_topic, topic_of

# The channel's errors after which the publication that caused them is known. All others are a refusal.
ANSWERS_OF_ERRORS: dict[int, PublishResult] = {311: "oversized", 404: "unroutable", 406: "oversized"}
MANDATORY = True


class Publisher:
    """The publishing side of a connection.

    RabbitMQ tells a connection that it is blocked only when it publishes. So an empty message without a target asks
    first, and a blocked broker gets no window that it would keep unanswered.
    """

    def __init__(self, link: Link, topology: Topology) -> None:
        self._link = link
        self._topology = topology
        self._channel: Any = None
        self._has_asked = False
        self.is_blocked = False
        self._next_tag = 1
        # The places in the window, by delivery tag, of those without an answer.
        self._unanswered: dict[int, int] = {}
        # The same places by what a returned message tells of itself.
        self._places: dict[tuple[str, str, str], deque[int]] = {}
        self._results: list[PublishResult | None] = []

    def publish(self, publications: Sequence[Publication], seconds: float) -> list[PublishResult]:
        self._link.check()
        self._results = [None] * len(publications)
        try:
            with self._link.used(seconds) as amqp:
                self._publish(amqp, publications)
        except BrokerConnectionLost:
            # The answers that came are as good as before.
            missing: PublishResult = "unconfirmed" if self._link.is_ours_to_blame else "lost"
            return [each or missing for each in self._results]
        return [each or "unconfirmed" for each in self._results]

    def _publish(self, amqp: AmqpConnection, publications: Sequence[Publication]) -> None:
        self._open(amqp)
        self._ask(amqp)
        if self.is_blocked:
            self._results = ["refused"] * len(publications)
            return
        messages = self._checked(amqp, publications)
        try:
            self._send(amqp, publications, messages)
            self._await_all(amqp)
        except ChannelError:
            # The broker closed the channel over one of them, and ignored all after it.
            self._publish_rest_alone(amqp, publications, messages)

    def _open(self, amqp: AmqpConnection) -> None:
        if self._channel is None:
            self._channel = amqp.channel()
            self._channel.auto_decode = False
            self._channel.events["basic_ack"].add(self._on_ack)
            self._channel.events["basic_nack"].add(self._on_nack)
            self._channel.events["basic_return"].add(self._on_return)
            self._select()

    def _select(self) -> None:
        """Ask for confirms. They are counted from 1 on a channel that py-amqp opened, or opened again."""
        self._channel.confirm_select()
        self._next_tag = 1
        self._unanswered.clear()
        self._places.clear()

    def _ask(self, amqp: AmqpConnection) -> None:
        if self._has_asked:
            # A frame since the last call may say that the broker is blocked.
            amqp.read_what_is_there()
            return
        self._has_asked = True
        nowhere = f"stagepost.{uuid.uuid4()}"
        tag = self._write(Message(b""), "", nowhere)
        self._unanswered[tag] = -1
        while tag in self._unanswered and not self.is_blocked:
            amqp.blocking_read()
        self._unanswered.pop(tag, None)

    def _checked(self, amqp: AmqpConnection, publications: Sequence[Publication]) -> list[Message | None]:
        """Return the messages, and answer for those that are not worth sending."""
        topics = {each.address: True for each in publications if is_topic(each.address)}
        for address in topics:
            topics[address] = is_short(topic_of(address)) and self._topology.has_topic(amqp, topic_of(address))
        messages: list[Message | None] = []
        for place, each in enumerate(publications):
            message = None
            if not is_short(each.address) or not topics.get(each.address, True):
                self._results[place] = "unroutable"
            else:
                message = message_of(each, amqp.frame_max)
                if message is None:
                    self._results[place] = "oversized"
            messages.append(message)
        return messages

    def _send(
        self, amqp: AmqpConnection, publications: Sequence[Publication], messages: Sequence[Message | None]
    ) -> None:
        with amqp.transport.corked():
            for place, message in enumerate(messages):
                if message is not None and self._results[place] is None:
                    self._send_one(place, publications[place], message)

    def _send_one(self, place: int, publication: Publication, message: Message) -> None:
        exchange, routing_key = route_of(publication.address)
        # A message without a target comes back with this, and without its place.
        key = (exchange, routing_key, message.properties.get("message_id", ""))
        self._places.setdefault(key, deque()).append(place)
        self._unanswered[self._write(message, exchange, routing_key)] = place

    def _write(self, message: Message, exchange: str, routing_key: str) -> int:
        # Its own basic_publish reads from the socket before each message.
        self._channel.send_method(
            spec.Basic.Publish, "Bssbb", (0, exchange, routing_key, MANDATORY, False), message
        )  # fmt: skip
        tag = self._next_tag
        self._next_tag += 1
        return tag

    def _await_all(self, amqp: AmqpConnection) -> None:
        while self._unanswered:
            amqp.blocking_read()
        self._places.clear()

    def _publish_rest_alone(
        self, amqp: AmqpConnection, publications: Sequence[Publication], messages: Sequence[Message | None]
    ) -> None:
        self._select()
        for place, message in enumerate(messages):
            if message is None or self._results[place] is not None:
                continue
            try:
                self._send_one(place, publications[place], message)
                self._await_all(amqp)
            except ChannelError as error:
                self._results[place] = ANSWERS_OF_ERRORS.get(error.reply_code, "refused")
                self._topology.forget_topic(topic_of(publications[place].address))
                self._select()

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._answer(tag, multiple, "confirmed")

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._answer(tag, multiple, "refused")

    def _answer(self, tag: int, multiple: bool, answer: PublishResult) -> None:
        tags = [each for each in self._unanswered if each <= tag] if multiple else [tag]
        for each in tags:
            place = self._unanswered.pop(each, -1)
            if place >= 0 and self._results[place] is None:
                self._results[place] = answer

    def _on_return(self, error: AMQPError, exchange: str, routing_key: str, message: Any) -> None:
        """Note a message that no queue took. The broker returns it before it confirms it."""
        message_id = message.properties.get("message_id", "")
        places = self._places.get((exchange, routing_key, message_id))
        if places:
            self._results[places.popleft()] = "unroutable"


def route_of(address: str) -> tuple[str, str]:
    """Return exchange and routing key. An exchange of another type than fanout may look at the key."""
    return (topic_of(address), topic_of(address)) if is_topic(address) else ("", address)
