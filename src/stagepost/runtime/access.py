"""One thread's sessions to the databases of an app."""

from __future__ import annotations

from collections.abc import Callable

from stagepost.flow.clock import Clock
from stagepost.ports.outbox import Backlog
from stagepost.ports.session import Session
from stagepost.transaction.claiming import Claimer


class Access:
    """The sessions of one thread: ``session`` to the queue's database, ``work`` to the database of the stages' data.

    Both are one session where both are one database. ``claimer`` claims messages on ``session``.
    """

    def __init__(
        self,
        session: Session,
        clock: Clock,
        open_work: Callable[[], Session] | None = None,
        open_apart: Callable[[], Session | None] = lambda: None,
    ) -> None:
        self.session = session
        self.claimer = Claimer(session, clock, self._next_held_at)
        self._open_work = open_work
        self._work: Session | None = None
        self._open_apart = open_apart
        self._apart: Session | None = None

    @property
    def work(self) -> Session:
        """Opened at its first use, because few threads that look after messages need it. Raises ``StoreError``."""
        if self._open_work is None:
            return self.session
        if self._work is None:
            self._work = self._open_work()
        return self._work

    def apart(self) -> Session | None:
        """Return a session of ``Store.apart``; None while no flow can wait in it. Raises ``StoreError``."""
        self._apart = self._apart or self._open_apart()
        return self._apart

    def held(self) -> Backlog:
        """Count the started flows that have not reached the queue. Raises ``StoreError``."""
        found = [each.outbox.backlog() for each in self._outboxes()]
        moments = (each.oldest_at for each in found if each.oldest_at is not None)
        return Backlog(sum(each.size for each in found), min(moments, default=None))

    def is_held(self, scope: str, key: str) -> bool:
        """Say whether a started flow with this key has not reached the queue. Raises ``StoreError``."""
        return any(each.outbox.holds(scope, key) for each in self._outboxes())

    def _next_held_at(self) -> int | None:
        moments = (each.outbox.next_at() for each in self._outboxes())
        return min((each for each in moments if each is not None), default=None)

    def _outboxes(self) -> list[Session]:
        apart = self.apart()
        return [*([] if self._open_work is None else [self.work]), *([] if apart is None else [apart])]

    def rollback(self) -> None:
        for each in self._sessions():
            each.rollback()

    def close(self) -> None:
        for each in self._sessions():
            each.close()

    def _sessions(self) -> list[Session]:
        return [each for each in (self.session, self._work, self._apart) if each is not None]
