"""The stages that get a copy of each message that is published to a topic."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.ports.subscriptions import Subscription
from stagepost.store.sql.database import SqlPart, text_of


class SqlSubscriptions(SqlPart):
    """Implements ``ports.subscriptions.Subscriptions``. Writes are part of the open transaction."""

    def put(self, subscription: Subscription) -> None:
        self._database.later("put_subscription", subscription)

    def remove(self, topic: str, subscriber: str) -> bool:
        return self._run("remove_subscription", (topic, subscriber)).rowcount == 1

    def listed(self, topics: Sequence[str]) -> list[Subscription]:
        found = self._run("list_subscriptions", (self._database.array(topics),)).fetchall()
        return [Subscription(*map(text_of, row)) for row in found]
