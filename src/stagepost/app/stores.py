"""Opening the store that a database URL names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

from stagepost.app.settings import allowed, is_postgres, sqlite_path
from stagepost.flow.clock import Clock
from stagepost.flow.errors import DeclarationError, StoreUnavailable
from stagepost.flow.lives import Lives
from stagepost.flow.runs import Quarantined, RunCounts
from stagepost.flow.urls import shown_url
from stagepost.flow.vitals import Heart, Vitals
from stagepost.store.memory.store import MemoryStore
from stagepost.store.sqlite.examination import examine
from stagepost.store.sqlite.store import SqliteStore, file_of, migrate_file
from stagepost.transaction.seams import Outbox, Recording, Session, Transport
from stagepost.transport.database import DatabaseTransport, Queue, QueueSession


class Runs(Protocol):
    """The books of bulk runs; writes are part of the open transaction."""

    def begin(self, run_id: str, target: str, source: str, now: int) -> None: ...

    def end(self, run_id: str, rows_in: int, now: int) -> None: ...

    def has_chunk(self, run_id: str, task: int, chunk: int) -> bool: ...

    def add_chunk(self, run_id: str, task: int, chunk: int, counts: RunCounts) -> None: ...

    def quarantine(self, run_id: str, rows: Sequence[Quarantined]) -> None: ...

    def counts(self, run_id: str) -> RunCounts: ...

    def quarantined(self, run_id: str, limit: int) -> list[Quarantined]:
        """The first ones, by file and record."""


class StoreSession(Session, QueueSession, Protocol):
    """A session of a store that is its own transport."""

    @property
    def runs(self) -> Runs: ...

    @property
    def is_begun(self) -> bool:
        """Whether a transaction was begun and has not ended, whatever it does at this moment; for any thread to ask."""

    def close(self) -> None: ...


class JoinedSession(Recording, Protocol):
    @property
    def queue(self) -> Queue: ...

    @property
    def outbox(self) -> Outbox: ...


class Store(Protocol):
    """
    ``uuid``     made with the tables; a copy of the database has it too
    ``identity``  tells two databases apart whatever their URLs say, and a copy from what it was made of
    ``url``      names it for people: without a password
    ``address``  opens it again, from any folder
    """

    uuid: str
    identity: str
    url: str
    address: str

    def lives(self) -> Lives | Path:
        """Where worker incarnations prove that they live: a register, or a folder for lock files."""

    def is_replaced(self) -> bool:
        """Whether what was opened is no longer what its URL names."""

    def session(self, *, is_pinned: bool = True) -> StoreSession:
        """``is_pinned``: for the thread that makes it; else for one thread at a time."""

    def join(self, connection: object) -> AbstractContextManager[JoinedSession]:
        """The way to start flows on the caller's own connection and in its transaction, while the block lasts."""


class Access:
    """One thread's way into the stores: ``session`` and ``transport`` to where the messages are, ``work`` to where the
    stages' data is, which is the same session where it is the same database."""

    def __init__(
        self, session: StoreSession, transport: Transport, open_work: Callable[[], StoreSession] | None = None
    ) -> None:
        self.session = session
        self.transport = transport
        self._open_work = open_work
        self._work: StoreSession | None = None

    @property
    def work(self) -> StoreSession:
        """Opened when it is first asked for: most who look after messages need none. Raises ``StoreError``."""
        if self._open_work is None:
            return self.session
        if self._work is None:
            self._work = self._open_work()
        return self._work

    def rollback(self) -> None:
        self.session.rollback()
        if self._work is not None:
            self._work.rollback()

    def close(self) -> None:
        self.session.close()
        if self._work is not None:
            self._work.close()


def check_url(url: str) -> str:
    """Raises ``DeclarationError`` for one that names no store."""
    if url != MemoryStore.url and not is_postgres(url):
        sqlite_path(url)
    return url


def open_store(url: str, allow: Collection[str] = ()) -> Store:
    """Raises ``DeclarationError`` for a URL that names no store, ``StoreError`` for one that cannot be opened, or that
    cannot keep a promise that neither ``allow`` nor the environment gives up."""
    if url == MemoryStore.url:
        return MemoryStore()
    if is_postgres(url):
        store: Store = _postgres().PostgresStore(url, allow={*allow, *allowed()})
        return store
    return SqliteStore(sqlite_path(url))


def open_existing_store(url: str, source: str) -> Store:
    """Like ``open_store``, for those who only look: raises ``StoreUnavailable`` where there is nothing to look at.

    ``source`` says where the URL was found.
    """
    if url == MemoryStore.url:
        return open_store(url)
    if is_postgres(url):
        store: Store = _postgres().PostgresStore(url, may_make=False)
        return store
    path = file_of(sqlite_path(url))
    if not path.exists():
        raise StoreUnavailable(
            f"{path.absolute()} does not exist; {shown_url(url)} was taken from {source}. Name the store that there is "
            "with --database, or run the command where its stagepost.toml is."
        )
    return SqliteStore(path, may_make=False)


def migrate_store(url: str) -> list[int]:
    """Bring the store to this version; returns the numbers of the migrations applied."""
    if is_postgres(url):
        applied: list[int] = _postgres().migrate_database(url)
        return applied
    return migrate_file(sqlite_path(url))


def examine_store(url: str, clock: Clock, hearts: Callable[[Path], list[Heart]], *, thorough: bool = False) -> Vitals:
    """Look at a store that cannot be opened as well. Raises ``StoreError`` where there is nothing to look at.

    ``hearts`` reads a folder of lock files, where the store has one; ``thorough`` takes as long as the store is large.
    """
    if url == MemoryStore.url:
        raise DeclarationError(
            f"{url} is a store of one process and its tests: there is nothing to look at from outside."
        )
    if is_postgres(url):
        found: Vitals = _postgres("examination").examine(url, clock)
        return found
    return examine(sqlite_path(url), clock, hearts, thorough=thorough)


def _postgres(module: str = "store") -> ModuleType:
    """Imported by those who have it: the driver is an extra."""
    try:
        return import_module(f"stagepost.store.postgres.{module}")
    except ImportError as error:
        raise DeclarationError(
            f"the database URL names PostgreSQL, and its driver cannot be imported ({error}). "
            "Run: pip install 'stagepost[postgres]'"
        ) from error


def access(session: StoreSession, clock: Clock) -> Access:
    return Access(session, DatabaseTransport(session, clock))


def access_to_both(session: StoreSession, open_work: Callable[[], StoreSession], clock: Clock) -> Access:
    """Where the queue is in one database and the stages' data in another: what waits in the latter to be sent is as
    much to be done as what is in the queue."""

    def next_held_at() -> int | None:
        return both.work.outbox.next_at()

    both = Access(session, DatabaseTransport(session, clock, next_held_at), open_work)
    return both
