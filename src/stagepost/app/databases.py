"""Where an app is at home: the database of its stages, and the one that carries its messages, where that is another."""

from __future__ import annotations

import threading
from collections.abc import Collection

from stagepost.app.settings import Place, check_allowed, read_settings
from stagepost.app.stores import Access, open_store
from stagepost.app.subscriptions import Subscriptions
from stagepost.flow.clock import Clock
from stagepost.flow.errors import DeclarationError
from stagepost.ports.registry import driver_of
from stagepost.ports.store import Store


class Databases:
    """Each is opened when it is first asked for. ``app`` is the app's name, for its errors."""

    def __init__(
        self,
        app: str,
        database: str | None,
        queue: str | None,
        allow: Collection[str],
        subscriptions: Subscriptions,
    ) -> None:
        for setting, url in (("database", database), ("queue", queue)):
            if url is not None and (not isinstance(url, str) or not url):
                raise DeclarationError(
                    f"{setting} of app {app!r} must be a URL as text, such as 'sqlite:///shop.db', not {url!r}; leave "
                    "it out for what the environment or stagepost.toml says"
                )
            if url is not None:
                driver_of(url)
        self._app = app
        self._database = database
        self._transport = queue
        self._allow = check_allowed(f"allow= of app {app!r}", allow)
        self._subscriptions = subscriptions
        self._store: Store | None = None
        self._business: Store | None = None
        # Two, for whoever opens one need not wait for the other's server.
        self._opening = threading.Lock()
        self._opening_business = threading.Lock()

    @property
    def database(self) -> str:
        return read_settings(database=self._database).database

    @database.setter
    def database(self, url: str) -> None:
        opened = self._business or self._store
        if opened is not None and opened.address == url:
            return
        if opened is not None:
            raise DeclarationError(f"app {self._app!r} has opened {opened.url} already; set its database before that")
        self._database = url

    @property
    def queue(self) -> str | None:
        queue = read_settings(queue=self._transport).queue
        if queue is not None:
            driver_of(queue)
        return queue

    @property
    def place(self) -> Place:
        if self.business is None:
            return Place(self.store.address, None)
        return Place(self.business.address, self.store.address)

    @place.setter
    def place(self, place: Place) -> None:
        opened = self._business or self._store
        if opened is None:
            self._database, self._transport = place.database, place.queue
        elif place != self.place:
            raise DeclarationError(f"app {self._app!r} has opened {opened.url} already; place it before that")

    @property
    def store(self) -> Store:
        """Where the messages are; it is told of subscriptions."""
        store = self._opened()
        self._subscriptions.register(store)
        return store

    @property
    def business(self) -> Store | None:
        """Where the stages' data is; None where that is where the messages are. Opened without the other one."""
        if self.queue is None:
            return None
        with self._opening_business:
            if self._business is None:
                self._business = open_store(self.database, self._allow)
            return self._business

    @property
    def entrance(self) -> Store:
        """Where flows are started, which may be in a caller's transaction: it is not told of subscriptions, for where
        that transaction is the one writer, telling would wait for itself."""
        return self.business or self._opened()

    @property
    def has_two(self) -> bool:
        return self._business is not None

    def access(self, clock: Clock, *, is_pinned: bool = True) -> Access:
        business = self.business
        if business is None:
            return Access(self.store.session(is_pinned=is_pinned), clock)
        if business.identity == self.store.identity:
            raise DeclarationError(
                f"app {self._app!r}: queue= names the database of the app itself, {business.url}. Leave it out: "
                "what is in one database needs one commit."
            )
        queue = self.store.session(is_pinned=is_pinned)
        return Access(queue, clock, lambda: business.session(is_pinned=is_pinned))

    def _opened(self) -> Store:
        with self._opening:
            if self._store is None:
                self._store = open_store(self.queue or self.database, self._allow)
            return self._store
