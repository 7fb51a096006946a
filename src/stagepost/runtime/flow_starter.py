"""Start flows from outside any stage, on connections of the app's own or on a caller's connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from stagepost.flow.clock import Clock
from stagepost.flow.errors import CommitUnknown, NothingSent, OutcomeUnknown, StoreError, StoreUnavailable
from stagepost.flow.ids import node_name
from stagepost.flow.initiation import Acceptance, Initiation, Verdict
from stagepost.flow.texts import as_sentence
from stagepost.ports.session import JoinedSession, Session
from stagepost.ports.store import Store
from stagepost.runtime.callers_sessions import CallersSession
from stagepost.runtime.databases import Databases
from stagepost.runtime.direct_starter import DirectStarter
from stagepost.runtime.pool import Pool
from stagepost.transaction.enqueueing import (
    WITHOUT_BROKER,
    Routing,
    hold_acceptances,
    judge_acceptances,
    judge_held,
    write_acceptances,
)

ROLE = "app"


class FlowStarter:
    """Writes acceptances to the store in which flows start.

    ``check`` raises ``DeclarationError`` where the app's databases cannot run its stages: its flows would never end.
    It is called before the first flow, and again until it passes.
    """

    def __init__(
        self,
        databases: Databases,
        check: Callable[[], object],
        clock: Clock,
        connections_max: int | None,
        routing: Callable[[], Routing],
    ) -> None:
        self._databases = databases
        self._find_routing = routing
        self._routing = WITHOUT_BROKER
        self._check = check
        self._is_checked = False
        self._store: Store | None = None
        self._has_two = False
        self._clock = clock
        self.pool: Pool[Session] = Pool(self._opened, clock, connections_max)
        self._apart: Pool[Session] = Pool(self._opened_apart, clock, purpose="starting flows independently")
        # Starts flows of an app in the mode best_effort.
        self.direct: DirectStarter | None = None

    def initiate(self, session: CallersSession | None) -> Initiation:
        """Return an initiation that writes in the caller's transaction, or with None in a transaction of its own."""
        return Initiation(
            node_name(ROLE), self._clock, self.write if session is None else partial(self.write_joined, session)
        )

    def write(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        """Start flows in a transaction of their own. Raises ``IdConflict`` and ``InitiationError``."""
        if self.direct is None:
            return self.write_rows(acceptances)
        with as_initiation_errors(acceptances):
            self._check_once()
            return self.direct.write(acceptances, self._check_not_replaced)

    def write_rows(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        """Start flows by rows of the queue, also in the mode ``best_effort``. Raises as ``write`` does."""
        with as_initiation_errors(acceptances), self.pool.taken() as mine:
            now, node = self._clock.now(), node_name(ROLE)
            mine.begin()
            self._check_not_replaced()
            verdicts = self._put(mine, acceptances, now, node)
            mine.commit()
            return verdicts

    def write_apart(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        """Start flows while a stage has the store's one writing transaction open. Raises as ``write`` does.

        ``Store.apart`` has them until ``IndependentRelay`` moves them.
        """
        with as_initiation_errors(acceptances), self._apart.taken() as mine:
            now, node = self._clock.now(), node_name(ROLE)
            mine.begin()
            self._check_not_replaced()
            verdicts = hold_acceptances(mine, acceptances, now, node)
            mine.commit()
            return verdicts

    def write_each(self, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        """Start flows in one commit, with a verdict for each: a conflict changes nothing, and the others start.

        Raises ``StoreError``: nothing was committed, except after ``CommitUnknown``. It waits two seconds at most for
        another transaction that has accepted one of the keys.
        """
        with self.pool.taken() as mine:
            now, node = self._clock.now(), node_name(ROLE)
            mine.begin()
            self._check_not_replaced()
            if self._has_two:
                verdicts = judge_held(mine, acceptances, now, node, is_patient=False)
            else:
                verdicts = judge_acceptances(mine, acceptances, now, node, self._routing, is_patient=False)
            mine.commit()
            return verdicts

    def look_up(self, acceptances: Sequence[Acceptance]) -> list[str | None]:
        """Return the digest that each key was accepted with, or None. Raises ``StoreError``.

        It inserts the keys and rolls back, so it waits for another transaction that has accepted one and has not ended.
        """
        with self.pool.taken() as mine:
            mine.begin()
            try:
                verdicts = mine.accepted.accept(acceptances, is_patient=False)
            finally:
                mine.rollback()
            return [None if each.outcome == "started" else each.digest for each in verdicts]

    def write_joined(self, caller: CallersSession, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        """Start flows in the transaction that the caller has open. Raises as ``write`` does."""
        self._check_once()
        now, node = self._clock.now(), node_name(ROLE)
        with as_initiation_errors(acceptances):
            self._check_not_replaced()
            with self._entrance().join(caller.driver_connection()) as session:
                return self._put(session, acceptances, now, node)

    def close(self) -> None:
        """Close the idle connections. They open again when needed."""
        self.pool.close()
        self._apart.close()
        if self.direct is not None:
            self.direct.close()

    def _check_not_replaced(self) -> None:
        """A file that was replaced by a backup still takes writes, but no process reads them."""
        store = self._entrance()
        if store.is_replaced():
            raise StoreUnavailable(
                f"{store.url} was removed or replaced while this process had it open, and writes to it are lost. "
                "Restart this process when the right file is in its place."
            )

    def _entrance(self) -> Store:
        """Return the store in which flows start. It is kept, because finding it reads the settings."""
        if self._store is None:
            self._store = self._databases.entrance
            self._has_two = self._databases.has_two
            self._routing = self._find_routing()
        return self._store

    def _check_once(self) -> None:
        if not self._is_checked:
            self._check()
            self._is_checked = True

    def _opened(self) -> Session:
        self._check_once()
        return (self._databases.business or self._databases.store).session(is_pinned=False)

    def _opened_apart(self) -> Session:
        return self._entrance().apart.session()

    def _put(self, session: JoinedSession, acceptances: Sequence[Acceptance], now: int, node: str) -> Sequence[Verdict]:
        if self._has_two:
            return hold_acceptances(session, acceptances, now, node)
        return write_acceptances(session, acceptances, now, node, self._routing)


@contextmanager
def as_initiation_errors(acceptances: Sequence[Acceptance] = ()) -> Iterator[None]:
    """Turn an error of the database into one that says whether the flows started."""
    ids = [each.key for each in acceptances]
    try:
        yield
    except CommitUnknown as error:
        raise OutcomeUnknown(
            f"{as_sentence(error)} It may have started. Try again with the same ids: no flow starts twice.", ids
        ) from error
    except StoreError as error:
        raise NothingSent(f"nothing was started: {error}", ids) from error
