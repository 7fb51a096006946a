"""Watch whether a consumer has all messages of its addresses: only then may the ids of old messages be purged.

An address is caught up once each living consumer of it has been subscribed for long, and nothing comes to it. Long is
more than a broker takes to drop a consumer that died. So no consumer of this store holds a message of it.
"""

from __future__ import annotations

from collections.abc import Collection

from stagepost.flow.clock import Clock
from stagepost.ports.session import Session
from stagepost.transaction.queue_commit import committing

SUBSCRIBED_SECONDS = 180.0
# A receiver that cannot store a message at once holds it for five seconds, and tries again.
QUIET_SECONDS = 10.0
# How often a moment is noted, and that the consumer lives. The store counts hours.
NOTE_SECONDS = 600.0


class CaughtUpWatch:
    """The watch of one connection of a ``consumer``. It notes the addresses of ``broker`` that are caught up."""

    def __init__(self, session: Session, consumer: str, broker: str, addresses: Collection[str], clock: Clock) -> None:
        self._session = session
        self._consumer = consumer
        self._broker = broker
        self._addresses = sorted(addresses)
        self._clock = clock
        self._subscribed: dict[str, float] = {}
        self._came: dict[str, float] = {}
        self._noted: dict[str, float] = {}
        self._seen_at = clock.monotonic()
        with committing(session):
            session.retention.note_consumer(consumer, broker, self._addresses)

    def look(self, subscribed: Collection[str], came_from: Collection[str]) -> None:
        """Look after each turn of the consumer: at the subscribed addresses, and those that messages came from."""
        now = self._clock.monotonic()
        self._subscribed = {address: self._subscribed.get(address, now) for address in subscribed}
        self._came |= dict.fromkeys(came_from, now)
        caught_up = [
            address
            for address, since in self._subscribed.items()
            if now - since >= SUBSCRIBED_SECONDS
            and now - self._came.get(address, since) >= QUIET_SECONDS
            and now - self._noted.get(address, -NOTE_SECONDS) >= NOTE_SECONDS
        ]
        is_seen = now - self._seen_at < NOTE_SECONDS
        if is_seen and not caught_up:
            return
        retention = self._session.retention
        with committing(self._session, is_durable=False):
            if not is_seen:
                retention.see_consumer(self._consumer, self._broker, self._addresses)
            for address in sorted(caught_up):
                retention.note_caught_up(self._consumer, self._broker, address)
        self._noted |= dict.fromkeys(caught_up, now)
        self._seen_at = self._seen_at if is_seen else now
