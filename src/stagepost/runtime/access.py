"""One thread's sessions to the databases of an app."""

from __future__ import annotations

from collections.abc import Callable

from stagepost.flow.clock import Clock
from stagepost.ports.session import Session
from stagepost.transaction.claiming import Claimer


class Access:
    """The sessions of one thread: ``session`` to the queue's database, ``work`` to the database of the stages' data.

    Both are one session where both are one database. ``claimer`` claims messages on ``session``.
    """

    def __init__(self, session: Session, clock: Clock, open_work: Callable[[], Session] | None = None) -> None:
        self.session = session
        self.claimer = Claimer(session, clock, self._next_held_at)
        self._open_work = open_work
        self._work: Session | None = None

    @property
    def work(self) -> Session:
        """Opened at its first use, because few threads that look after messages need it. Raises ``StoreError``."""
        if self._open_work is None:
            return self.session
        if self._work is None:
            self._work = self._open_work()
        return self._work

    def _next_held_at(self) -> int | None:
        return None if self._open_work is None else self.work.outbox.next_at()

    def rollback(self) -> None:
        self.session.rollback()
        if self._work is not None:
            self._work.rollback()

    def close(self) -> None:
        self.session.close()
        if self._work is not None:
            self._work.close()
