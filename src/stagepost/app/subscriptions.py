"""The subscriptions of an app. The app writes them to its store, where publishers read them."""

from __future__ import annotations

import threading
from contextlib import closing

from stagepost.ports.store import Store
from stagepost.ports.subscriptions import Subscription


class Subscriptions:
    def __init__(self) -> None:
        self._untold: list[Subscription] = []
        self._lock = threading.Lock()

    def declare(self, subscription: Subscription) -> None:
        self._untold.append(subscription)

    def register(self, store: Store) -> None:
        """Write the new subscriptions to the store. Raises ``StoreError``; the next call then tries again."""
        if not self._untold:
            return
        with self._lock:
            _tell(store, self._untold)
            self._untold = []


def _tell(store: Store, declared: list[Subscription]) -> None:
    """Write subscriptions that the store lacks. It mostly has all, so a starting process waits for no writer."""
    with closing(store.session()) as session:
        known = session.subscriptions.listed([each.topic for each in declared])
        unknown = [each for each in declared if each not in known]
        if not unknown:
            return
        session.begin()
        try:
            for each in unknown:
                session.subscriptions.put(each)
            session.commit()
        except BaseException:
            session.rollback()
            raise
