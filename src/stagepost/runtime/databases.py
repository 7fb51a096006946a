"""The databases of an app: that of its stages' data, and that of the queue where it is another one.

It also knows the URL of the app's broker, because a child process finds all three alike.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from functools import partial

from stagepost.flow.clock import Clock
from stagepost.flow.errors import DeclarationError
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.ports.registry import driver_of
from stagepost.ports.store import Store, apart_of, outbox_apart
from stagepost.ports.subscriptions import Subscription
from stagepost.runtime.access import Access
from stagepost.runtime.settings import Place, allowed_risks, check_allowed, read_settings
from stagepost.runtime.subscriptions import NewSubscriptions


class Databases:
    """Opens each database at its first use. ``app`` is the app's name, for errors."""

    def __init__(
        self,
        app: str,
        database: str | None,
        queue: str | None,
        allow: Collection[str],
        subscriptions: NewSubscriptions,
        broker: str | None = None,
    ) -> None:
        for setting, url in (("database", database), ("queue", queue), ("broker", broker)):
            if url is not None and (not isinstance(url, str) or not url):
                raise DeclarationError(
                    f"{setting} of app {app!r} must be a URL as text, such as 'sqlite:///shop.db', not {url!r}. Leave "
                    "it out to take the URL of the environment or of stagepost.toml"
                )
            if url is not None:
                (broker_driver_of if setting == "broker" else driver_of)(url)
        self._app = app
        self._database = database
        self._queue = queue
        self._broker = broker
        self._allow = check_allowed(f"allow= of app {app!r}", allow)
        self._subscriptions = subscriptions
        self._is_placed = False
        self._store: Store | None = None
        self._business: Store | None = None
        # Two locks, so that opening one database does not wait for the other's server.
        self._opening = threading.Lock()
        self._opening_business = threading.Lock()

    @property
    def database(self) -> str:
        """The URL of the stages' database."""
        return read_settings(database=self._database).database

    @database.setter
    def database(self, url: str) -> None:
        opened = self._business or self._store
        if opened is None:
            self._database = url
        elif opened.address != url:
            raise DeclarationError(f"app {self._app!r} has opened {opened.url} already; set its database before that")

    @property
    def queue(self) -> str | None:
        """The URL of the queue's database; None where the queue is in the stages' database."""
        queue = self._queue if self._is_placed else read_settings(queue=self._queue).queue
        if queue is not None:
            driver_of(queue)
        return queue

    @property
    def declared_queue(self) -> str | None:
        """The URL of the queue's database that the app's declaration names, whatever the settings say."""
        return self._queue

    @property
    def declared_broker(self) -> str | None:
        """The URL of the broker that the app's declaration names, whatever the settings say."""
        return self._broker

    @property
    def broker(self) -> str | None:
        """The URL of the app's broker, which the caller checks; None for an app without a broker."""
        return self._broker if self._is_placed else read_settings(broker=self._broker).broker

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The subscriptions that the app declares."""
        return self._subscriptions.declared

    @property
    def place(self) -> Place:
        """URLs with which any process finds the databases, from any folder. Raises what opening them raises.

        Once it is set, the environment and ``stagepost.toml`` no longer count. A child sets it to its parent's place,
        and gets ``DeclarationError`` where another place is open already.
        """
        if self.business is None:
            return Place(self.store.address, None, self.broker)
        return Place(self.business.address, self.store.address, self.broker)

    @place.setter
    def place(self, place: Place) -> None:
        opened = self._business or self._store
        if opened is None:
            self._database, self._queue, self._broker = place.database, place.queue, place.broker
            self._is_placed = True
        elif place != self.place:
            raise DeclarationError(f"app {self._app!r} has opened {opened.url} already; place it before that")

    @property
    def store(self) -> Store:
        """The store of the messages and their history. Opening it registers the app's subscriptions.

        Raises ``DeclarationError`` and ``StoreError``.
        """
        store = self._opened()
        self._subscriptions.register(store)
        return store

    @property
    def business(self) -> Store | None:
        """The store of the stages' data, with inbox and outbox; None where the messages are in it too.

        It opens without the queue's database, whose server may be away: flows can still start. Raises
        ``DeclarationError`` and ``StoreError``.
        """
        if self.queue is None:
            return None
        with self._opening_business:
            if self._business is None:
                self._business = open_store(self.database, self._allow)
            return self._business

    @property
    def entrance(self) -> Store:
        """The store in which flows start. It registers no subscriptions: a caller's transaction may hold the writer
        lock, for which registering would wait."""
        return self.business or self._opened()

    @property
    def has_two(self) -> bool:
        return self._business is not None

    def access(self, clock: Clock) -> Access:
        business = self.business
        if business is None:
            return Access(self.store.session(), clock, open_apart=partial(outbox_apart, self.store))
        if business.identity == self.store.identity:
            raise DeclarationError(
                f"app {self._app!r}: queue= names the database of the app itself, {business.url}. Leave it out: one "
                "commit is enough for one database."
            )
        return Access(self.store.session(), clock, business.session, partial(outbox_apart, business))

    def renumber(self) -> None:
        """Give both files of a store that has two a new number: see ``ports.store.Apart``. Raises ``StoreError``."""
        for store in (self.business, self.store):
            apart = None if store is None else apart_of(store)
            if apart is not None:
                apart.renumber()

    def _opened(self) -> Store:
        with self._opening:
            if self._store is None:
                self._store = open_store(self.queue or self.database, self._allow)
            return self._store


def open_store(url: str, allow: Collection[str] = ()) -> Store:
    """Open the store of a URL, with the risks that ``allow`` and the environment accept.

    Raises ``DeclarationError`` and ``StoreError``.
    """
    return driver_of(url).open(url, allow={*allow, *allowed_risks()})
