"""How flows come in from outside of stages: written on connections of the app's own, or on their callers'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from stagepost.app.home import Home
from stagepost.app.pool import Pool
from stagepost.app.stores import JoinedSession, StoreSession
from stagepost.flow.clock import Clock
from stagepost.flow.errors import CommitUnknown, NothingSent, OutcomeUnknown, StoreError, StoreUnavailable
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.transaction.initiating import hold_acceptances, write_acceptances
from stagepost.transport.database import DatabaseSender


class Entry:
    """``check`` raises ``DeclarationError`` where the app's stages could not run where its databases are: then its
    flows would wait for ever, or in the wrong place. It is asked until it has nothing to say, once. ``node`` names who
    writes."""

    def __init__(
        self,
        home: Home,
        check: Callable[[], object],
        clock: Clock,
        node: Callable[[], str],
        connections_max: int | None,
    ) -> None:
        self._home = home
        self._check = check
        self._is_checked = False
        self._clock = clock
        self._node = node
        self.pool: Pool[StoreSession] = Pool(self._opened, clock, connections_max)

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
            with self._home.entrance.join(connection) as session:
                return self._put(session, acceptances, now, node)

    def _check_not_replaced(self) -> None:
        """A file in whose place a backup was put still takes what is written, where nobody ever reads it."""
        store = self._home.entrance
        if store.is_replaced():
            raise StoreUnavailable(
                f"{store.url} was removed or replaced while this process had it open: what is written there is lost. "
                "Restart this process when the right file is in its place."
            )

    def _check_once(self) -> None:
        if not self._is_checked:
            self._check()
            self._is_checked = True

    def _opened(self) -> StoreSession:
        self._check_once()
        return (self._home.business or self._home.store).session(is_pinned=False)

    def _put(self, session: JoinedSession, acceptances: Sequence[Acceptance], now: int, node: str) -> Sequence[Verdict]:
        if self._home.has_two:
            return hold_acceptances(session, acceptances, now, node)
        return write_acceptances(session, DatabaseSender(session.queue), acceptances, now, node)


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
