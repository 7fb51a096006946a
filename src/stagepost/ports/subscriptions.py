"""Capability: the subscriptions, which stage gets a copy of the messages that are published to a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Subscription(NamedTuple):
    """``subscriber`` is the address of the stage that gets a copy; ``app`` is the app that declares it."""

    topic: str
    subscriber: str
    app: str


class Subscriptions(Protocol):
    """The subscriptions' part of a session. Writes happen in its open transaction."""

    def put(self, subscription: Subscription) -> None:
        """Add a subscription; where there is one, set its app."""

    def remove(self, topic: str, subscriber: str) -> bool:
        """Remove a subscription. Returns False where there is none."""

    def listed(self, topics: Sequence[str]) -> list[Subscription]:
        """Return the subscriptions of these topics, in any order."""
