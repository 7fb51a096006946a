"""Publish the messages that a store refuses, beside the thread that receives."""

from __future__ import annotations

import logging
import threading

from stagepost.flow.errors import BrokerError
from stagepost.ports.broker import Broker, BrokerConnection, Delivery, Publication, refused_address
from stagepost.runtime.edge import CONNECT_SECONDS, RECONNECT_SECONDS, log_away
from stagepost.runtime.service import Service

PUBLISH_SECONDS = 5.0
# More than a broker hands out at once. The confirmed messages of a lost connection may be published again.
CONFIRMED_MAX = 1_000

logger = logging.getLogger(__name__)

Key = tuple[str, str, bytes]


class DeadPublisher(Service):
    """Publishes over its own connection: in an alarm the broker stops reading a connection that publishes.

    Its thread starts with the first message. Receiving goes on meanwhile, also while the broker answers nothing.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__("dead-publisher", self._publish_until_stopped, logs_error=True)
        self._broker = broker
        self._connection: BrokerConnection | None = None
        # Guards what follows.
        self._condition = threading.Condition()
        self._has_begun = False
        self._wanted: dict[Key, Delivery] = {}
        self._confirmed: set[Key] = set()

    def publish(self, delivery: Delivery) -> bool:
        """Say whether the broker has confirmed the message. If not, ask for it, and return at once."""
        key = delivery.address, delivery.message_id, delivery.body
        with self._condition:
            if key in self._confirmed:
                self._confirmed.remove(key)
                return True
            self._wanted[key] = delivery
            self._condition.notify()
            if not self._has_begun:
                self._has_begun = True
                self.start()
            return False

    def stop(self) -> None:
        super().stop()
        with self._condition:
            self._condition.notify()

    def close(self) -> None:
        """End the thread. A broker that does not answer is left to it, and it ends with the process."""
        self.stop()
        if self._has_begun:
            self.join(PUBLISH_SECONDS)

    def _publish_until_stopped(self) -> None:
        try:
            while (wanted := self._next()) is not None:
                key, delivery = wanted
                is_confirmed = self._publish(delivery)
                with self._condition:
                    self._wanted.pop(key, None)
                    if is_confirmed:
                        if len(self._confirmed) >= CONFIRMED_MAX:
                            self._confirmed.clear()
                        self._confirmed.add(key)
        finally:
            self._disconnect()

    def _next(self) -> tuple[Key, Delivery] | None:
        with self._condition:
            self._condition.wait_for(lambda: self._wanted or self.is_stopped)
            return None if self.is_stopped else next(iter(self._wanted.items()))

    def _publish(self, delivery: Delivery) -> bool:
        address = refused_address(delivery.address)
        publication = Publication(address, delivery.message_id, delivery.body, {**delivery.headers})
        try:
            if self._connection is None:
                self._connection = self._broker.connect(CONNECT_SECONDS)
            (result,) = self._connection.publish([publication], PUBLISH_SECONDS)
        except BrokerError as error:
            log_away(logger, error, RECONNECT_SECONDS)
            self.wait(RECONNECT_SECONDS)
            result = "lost"
        if result in ("lost", "unconfirmed"):
            self._disconnect()
        if result != "confirmed":
            logger.warning(
                "message %s refused by the store, not published to %s yet: %s",
                delivery.message_id,
                address,
                result,
                extra={"event": "refused-waiting"},
            )
        return result == "confirmed"

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
