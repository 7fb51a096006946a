"""The registry of stores: the scheme of a URL names the driver that opens the store.

A package adds a driver by an entry point of the group ``stagepost.stores``. Its name is the scheme, its value the
driver.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol

from stagepost.flow.clock import Clock
from stagepost.flow.errors import CapabilityMissing, DeclarationError
from stagepost.flow.urls import shown_url
from stagepost.ports.drivers import DriverFinder
from stagepost.ports.export import Export
from stagepost.ports.health import StoreHealth
from stagepost.ports.store import Store

# The first rows name optional parts of a session or a driver. ``concurrent_writers``: a second transaction can commit
# while the first one has written. ``shared``: processes of several machines can use the store.
Capability = Literal[
    "business_keys", "circuits", "declarations", "decisions", "edge", "effects", "inbox", "outbox", "prepare",
    "replays", "runs", "staging", "subscriptions", "archives", "audits", "cursors", "export", "health", "retention",
    "concurrent_writers", "shared",
]  # fmt: skip

DRIVERS = DriverFinder(
    "stagepost.stores",
    "stores",
    {
        "memory": "stagepost.store.sqlite.temporary",
        "postgres": "stagepost.store.postgres.driver",
        "postgresql": "stagepost.store.postgres.driver",
        "sqlite": "stagepost.store.sqlite.driver",
    },
)


class Driver(Protocol):
    """The driver of a URL scheme: a module, or an object of a subclass of this one.

    ``capabilities``  those of its stores, known before one is opened

    ``open``, ``open_existing``, ``migrate`` and ``examine`` raise ``StoreError``.
    """

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    def check(self, url: str) -> None:
        """Raise ``DeclarationError`` for a malformed URL."""

    def open(self, url: str, *, allow: Collection[str] = ()) -> Store:
        """Open the store, and make it where there is none.

        Raises ``StoreUnavailable`` where a power failure may take what was committed. ``allow`` names such risks that
        the app accepts.
        """

    def open_existing(self, url: str, source: str) -> Store:
        """Open the store for a reader. Raises ``StoreUnavailable`` where there is none.

        ``source`` says where the URL was found.
        """

    def migrate(self, url: str) -> list[int]:
        """Bring the store to this version. Returns the numbers of the applied migrations."""

    def examine(self, url: str, source: str, clock: Clock, *, thorough: bool = False) -> StoreHealth:
        """Capability ``health``: look at a store, even at one that cannot be opened, and change nothing.

        ``thorough`` may read the whole store. Returns a health of no place where there is nothing to look at.
        """
        raise CapabilityMissing("health", store=shown_url(url))

    def export(self, url: str) -> Export:
        """Capability ``export``: return the store's export. Raises ``DeclarationError`` where there is no store."""
        raise CapabilityMissing("export", store=shown_url(url))


def driver_of(url: str) -> Driver:
    """Return the driver for a URL, which it has checked. Raises ``DeclarationError``."""
    driver: Driver | None = DRIVERS.find(url)
    if driver is None:
        raise unknown(url)
    driver.check(url)
    return driver


def require(url: str, capability: Capability, why: str) -> Driver:
    """Return the driver for a URL whose stores have the capability.

    Raises ``CapabilityMissing``. ``why`` says what needs the capability, and the remedy.
    """
    driver = driver_of(url)
    if capability not in driver.capabilities:
        raise CapabilityMissing(capability, why, shown_url(url))
    return driver


def unknown(url: str) -> DeclarationError:
    return DeclarationError(
        f"{shown_url(url)!r} is not a database URL Stagepost knows. Write sqlite:///payments.db for a "
        "file in the working folder, sqlite:////var/lib/payments.db for an absolute path, or "
        "postgresql://user@host/database."
    )
