"""What an app subscribes to, and telling its store, where those look who publish."""

from __future__ import annotations

import threading
from contextlib import closing

from stagepost.app.stores import Store
from stagepost.flow.topic import Subscription


class Subscriptions:
    def __init__(self) -> None:
        self._untold: list[Subscription] = []
        self._lock = threading.Lock()

    def declare(self, subscription: Subscription) -> None:
        self._untold.append(subscription)

    def register(self, store: Store) -> None:
        """Tell the store what it was not told yet. Raises ``StoreError``; it is told the next time then."""
        if not self._untold:
            return
        with self._lock:
            _tell(store, self._untold)
            self._untold = []


def _tell(store: Store, declared: list[Subscription]) -> None:
    """Mostly it knows: a process that starts waits for no writer."""
    with closing(store.session()) as session:
        known = session.subscriptions([each.topic for each in declared])
        unknown = [each for each in declared if each not in known]
        if not unknown:
            return
        session.begin()
        try:
            for each in unknown:
                session.subscribe(each)
            session.commit()
        except BaseException:
            session.rollback()
            raise
