"""The subscriptions in memory."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.ports.subscriptions import Subscription
from tests.toy_store.tables import Tables


class ToySubscriptions:
    """Implements ``ports.subscriptions.Subscriptions``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def put(self, subscription: Subscription) -> None:
        self._tables.subscriptions.put((subscription.topic, subscription.subscriber), subscription)

    def remove(self, topic: str, subscriber: str) -> bool:
        if self._tables.subscriptions.get((topic, subscriber)) is None:
            return False
        self._tables.subscriptions.remove((topic, subscriber))
        return True

    def listed(self, topics: Sequence[str]) -> list[Subscription]:
        return [each for each in self._tables.subscriptions.values() if each.topic in topics]
