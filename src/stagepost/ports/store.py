"""A store: a database that keeps queue, journal, accepted ids and dead letters."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from stagepost.flow.clock import Clock
from stagepost.flow.errors import CapabilityMissing
from stagepost.ports.liveness import WorkerRegistry
from stagepost.ports.session import JoinedSession, Session


class Apart(Protocol):
    """Capability ``effects``: durable commits that need not wait for the open transaction of a stage."""

    @property
    def exists(self) -> bool:
        """Say whether such a commit was ever made. False spares readers a session."""

    @property
    def has_outbox(self) -> bool:
        """Say whether flows may wait in the outbox of such a session: those that stages started independently.

        They wait there until the store has accepted them. False for a store that accepts them at once.
        """

    def renumber(self) -> None:
        """Give both files of the store the same new number, at each start and once an hour.

        So a file that was restored without the other one is refused. Does nothing for a store in one place.
        Raises as ``session`` does.
        """

    def migrate(self) -> list[int]:
        """Bring the tables to the newest version. Returns the migrations applied; none for a store in one place."""

    def start_over(self) -> None:
        """Forget these commits, where their file is missing or of another backup. An existing file is set aside.

        Does nothing for a store in one place. Call it while no other process uses the store.
        """

    def session(self) -> Session:
        """Open a session for one thread at a time. Its parts are ``effects``, and ``accepted`` with ``outbox``.

        Raises ``StoreUnavailable``, also where its file is missing or belongs to another store.
        """


class Store(Protocol):
    """An open store.

    ``identity``  equal for one database under two URLs, and different for a copy of it
    ``url``       for people: without a password
    ``address``   opens the store again, from any folder
    """

    identity: str
    url: str
    address: str

    @property
    def apart(self) -> Apart:
        raise CapabilityMissing("effects", "Use SQLite or PostgreSQL.", self.url)

    def liveness(self, clock: Clock) -> WorkerRegistry:
        """Return the registry of worker incarnations.

        Raises ``StoreUnavailable``, and ``DeclarationError`` for a store that ends with its process.
        """

    def is_replaced(self) -> bool:
        """Say whether the URL now names another database than the open one."""

    def session(self, *, is_pinned: bool = True) -> Session:
        """Open a session: for the calling thread where it ``is_pinned``, else for one thread at a time."""

    def join(self, connection: object) -> AbstractContextManager[JoinedSession]:
        """Lend the caller's connection, with its open transaction, to Stagepost while the block lasts."""


def apart_of(store: Store) -> Apart | None:
    """Return the store's ``apart``; None if no commit was ever made there. Raises ``StoreError``."""
    try:
        return store.apart if store.apart.exists else None
    except CapabilityMissing:
        return None


def outbox_apart(store: Store) -> Session | None:
    """Open a session of ``Store.apart``; None if no flow can wait in its outbox. Raises ``StoreError``."""
    try:
        return store.apart.session() if store.apart.has_outbox else None
    except CapabilityMissing:
        return None
