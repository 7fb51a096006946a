"""How flows come in from outside of stages: written on connections of the app's own, or on their callers'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from stagepost.app.databases import Databases
from stagepost.app.pool import Pool
from stagepost.flow.clock import Clock
from stagepost.flow.errors import CommitUnknown, NothingSent, OutcomeUnknown, StoreError, StoreUnavailable
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.ports.session import JoinedSession, Session
from stagepost.ports.store import Store
from stagepost.transaction.enqueueing import hold_acceptances, write_acceptances


class FlowStarter:
    """``check`` raises ``DeclarationError`` where the app's stages could not run where its databases are: then its
    flows would wait for ever, or in the wrong place. It is asked until it has nothing to say, once. ``node`` names who
    writes."""

    def __init__(
        self,
        databases: Databases,
        check: Callable[[], object],
        clock: Clock,
        node: Callable[[], str],
        connections_max: int | None,
    ) -> None:
        self._databases = databases
        self._check = check
        self._is_checked = False
        self._store: Store | None = None
        self._has_two = False
        self._clock = clock
        self._node = node
        self.pool: Pool[Session] = Pool(self._opened, clock, connections_max)

    def write(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        """In a transaction of its own. Raises ``IdConflict`` and ``InitiationError``."""
        with told_as_initiation_errors(acceptances), self.pool.taken() as mine:
            now, node = self._clock.now(), self._node()
            mine.begin()
            self._check_not_replaced()
            verdicts = self._put(mine, acceptances, now, node)
            mine.commit()
            return verdicts

    def write_joined(self, connection: object, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        """In whatever transaction the caller's connection has open. Raises as ``write`` does."""
        self._check_once()
        now, node = self._clock.now(), self._node()
        with told_as_initiation_errors(acceptances):
            self._check_not_replaced()
            with self._entrance().join(connection) as session:
                return self._put(session, acceptances, now, node)

    def _check_not_replaced(self) -> None:
        """A file in whose place a backup was put still takes what is written, where nobody ever reads it."""
        store = self._entrance()
        if store.is_replaced():
            raise StoreUnavailable(
                f"{store.url} was removed or replaced while this process had it open: what is written there is lost. "
                "Restart this process when the right file is in its place."
            )

    def _entrance(self) -> Store:
        """Return the store in which flows start. It is kept, because finding it reads the settings."""
        if self._store is None:
            self._store = self._databases.entrance
            self._has_two = self._databases.has_two
        return self._store

    def _check_once(self) -> None:
        if not self._is_checked:
            self._check()
            self._is_checked = True

    def _opened(self) -> Session:
        self._check_once()
        return (self._databases.business or self._databases.store).session(is_pinned=False)

    def _put(self, session: JoinedSession, acceptances: Sequence[Acceptance], now: int, node: str) -> Sequence[Verdict]:
        if self._has_two:
            return hold_acceptances(session, acceptances, now, node)
        return write_acceptances(session, acceptances, now, node)


@contextmanager
def told_as_initiation_errors(acceptances: Sequence[Acceptance] = ()) -> Iterator[None]:
    """What the database says, in words that say what became of the flows."""
    ids = [each.key for each in acceptances]
    try:
        yield
    except CommitUnknown as error:
        raise OutcomeUnknown(
            f"{error}. It may have started. Try again with the same ids: what did start is not started twice.", ids
        ) from error
    except StoreError as error:
        raise NothingSent(f"nothing was started: {error}", ids) from error
