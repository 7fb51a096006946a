"""The subscriptions that an app declares. It writes them to its store, where publishers read them."""

from __future__ import annotations

import threading
from contextlib import closing

from stagepost.ports.store import Store
from stagepost.ports.subscriptions import Subscription
from stagepost.transaction.queue_commit import committing


class NewSubscriptions:
    """Declared subscriptions that are not yet known to be in the store. ``declared`` are all of the app's."""

    def __init__(self) -> None:
        self.declared: list[Subscription] = []
        self._new: list[Subscription] = []
        self._lock = threading.Lock()

    def declare(self, subscription: Subscription) -> None:
        self.declared.append(subscription)
        self._new.append(subscription)

    def forget_store(self) -> None:
        """Take all subscriptions as new, because the app gets another store."""
        self._new = [*self.declared]

    def register(self, store: Store) -> None:
        """Write the new subscriptions to the store. Raises ``StoreError``; the next call then tries again."""
        if not self._new:
            return
        with self._lock:
            _write_missing(store, self._new)
            self._new = []


def _write_missing(store: Store, declared: list[Subscription]) -> None:
    """Write the subscriptions that the store lacks. It mostly lacks none, and then no writer is waited for."""
    with closing(store.session()) as session:
        known = session.subscriptions.listed([each.topic for each in declared])
        missing = [each for each in declared if each not in known]
        if not missing:
            return
        with committing(session):
            for each in missing:
                session.subscriptions.put(each)
