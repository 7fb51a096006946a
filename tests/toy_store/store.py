"""The store in memory, and its sessions."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

from stagepost.flow.clock import Clock
from stagepost.flow.errors import DeclarationError, StagepostError, StoreContention, StoreError, TransactionBoundary
from stagepost.flow.rows import Rows
from stagepost.ports.session import Absent, ended_under
from tests.toy_store.accepted import ToyAccepted
from tests.toy_store.audits import ToyAudits
from tests.toy_store.business_keys import ToyBusinessKeys
from tests.toy_store.circuits import ToyCircuits
from tests.toy_store.declarations import ToyDeclarations
from tests.toy_store.edge import ToyEdge
from tests.toy_store.inbox import ToyInbox, ToyOutbox
from tests.toy_store.journal import ToyJournal
from tests.toy_store.letters import ToyDeadLetters
from tests.toy_store.liveness import ToyIncarnation, ToyRegistry
from tests.toy_store.queue import ToyQueue
from tests.toy_store.replays import ToyReplays
from tests.toy_store.runs import ToyRuns
from tests.toy_store.subscriptions import ToySubscriptions
from tests.toy_store.tables import Table, Tables, World

WRITER_TIMEOUT_SECONDS = 5.0
KEPT = "take ctx.connection again in each run"


class ToyStore:
    """``writer_timeout_seconds``: how long ``begin`` waits for another writer before it is contention."""

    url = address = "toy:"
    apart: Any = Absent("effects")

    def __init__(self, writer_timeout_seconds: float = WRITER_TIMEOUT_SECONDS) -> None:
        self.uuid = self.identity = str(uuid.uuid4())
        self.world = World()
        self._incarnations: dict[str, ToyIncarnation] = {}
        # It knows its owner from the moment at which it is taken: Ctrl-C may come after any call.
        self.writer = threading.RLock()
        self.writing: ToySession | None = None
        self.writer_timeout_seconds = writer_timeout_seconds

    def is_replaced(self) -> bool:
        return False

    def session(self, *, is_pinned: bool = True) -> ToySession:
        return ToySession(self)

    @property
    def tables(self) -> Tables:
        """What is committed at this moment, for tests to look at."""
        return Tables(self.world)

    def join(self, connection: object) -> AbstractContextManager[NoReturn]:
        raise DeclarationError(f"the memory store has no connection to join; {connection!r} belongs to something else")

    def liveness(self, clock: Clock) -> ToyRegistry:
        return ToyRegistry(self._incarnations)


class ToyConnection:
    """What a handler may do here in place of SQL: append to a ledger, and read it."""

    def __init__(self, touch: Callable[[], None], ledger: Table[Any]) -> None:
        self._touch = touch
        self._ledger = ledger
        self.is_over = False

    def append(self, row: Any) -> None:
        self._begin()
        self._ledger.insert(row)

    def _begin(self) -> None:
        if self.is_over:
            raise TransactionBoundary(f"a connection was used after its handler had returned: {KEPT}")
        self._touch()

    def ledger(self) -> list[Any]:
        self._begin()
        return list(self._ledger.values())


class ToySession:
    """Implements ``ports.session.Session``."""

    archives: Any = Absent("archives", archive=None, manifests=[], effects_held=None)
    cursors: Any = Absent("cursors")
    retention: Any = Absent("retention")
    decisions: Any = Absent("decisions")
    effects: Any = Absent("effects")
    prepared: Any = Absent("prepare")
    staging: Any = Absent("staging")

    def __init__(self, store: ToyStore) -> None:
        self._store = store
        self._tables = Tables(store.world)
        self._connection: ToyConnection | None = None
        self.queue = ToyQueue(self._tables)
        self.journal = ToyJournal(self._tables)
        self.accepted = ToyAccepted(self._tables)
        self.dead_letters = ToyDeadLetters(self._tables)
        self.subscriptions = ToySubscriptions(self._tables)
        self.runs = ToyRuns(self._tables)
        self.audits = ToyAudits(self._tables)
        self.business_keys = ToyBusinessKeys(self._tables)
        self.inbox = ToyInbox(self._tables)
        self.outbox = ToyOutbox(self._tables)
        self.replays = ToyReplays(self._tables)
        self.circuits = ToyCircuits(self._tables, self.queue)
        self.declarations = ToyDeclarations(self._tables)
        self.edge = ToyEdge(self._tables, store.identity)

    def begin(self, *, is_durable: bool = True) -> None:
        store = self._store
        is_ours = store.writer._is_owned() and store.writing is not None  # type: ignore[attr-defined]
        if is_ours or not store.writer.acquire(timeout=store.writer_timeout_seconds):
            raise StoreContention("the memory store has another writer")
        store.writing = self

    def commit(self) -> None:
        if not self.is_open:
            raise StoreError("there is no transaction to commit; it ended before")
        self._tables.commit()
        self.rollback()

    def rollback(self) -> None:
        """Nothing where no transaction is open."""
        store = self._store
        if not store.writer._is_owned() or store.writing not in (self, None):  # type: ignore[attr-defined]
            return
        self._tables.rollback()
        store.writing = None
        store.writer.release()

    def reconnect(self) -> None:
        self.rollback()

    def close(self) -> None:
        self.rollback()

    @property
    def is_begun(self) -> bool:
        return self._store.writing is self

    @property
    def is_open(self) -> bool:
        return self.is_begun

    def ending(self, stage: str) -> StagepostError | None:
        how = "by something that ended it behind Stagepost's back. Nothing of it was written."
        return None if self.is_open else ended_under(stage, how, None)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        mark = self._tables.mark()
        try:
            yield
        except BaseException:
            self._tables.rollback_to(mark)
            raise

    def lend(self, place: str, touch: Callable[[], None], *, may_answer_late: bool = False) -> None:
        self._connection = ToyConnection(touch, self._tables.ledger)

    def catch_up(self) -> None:
        """Nothing is answered late."""

    def take_back(self) -> None:
        if self._connection is not None:
            self._connection.is_over = True
            self._connection = None

    @property
    def connection(self) -> ToyConnection:
        if self._connection is None:
            raise TransactionBoundary("the connection was used outside the handler it was lent to")
        return self._connection

    def execute(self, statement: str, parameters: dict[str, Any]) -> Rows:
        raise StoreError("the memory store speaks no SQL: use ctx.connection.append(row), or a SQLite file")

    def interrupt(self) -> None:
        """No statement here takes long enough to be broken off."""
