"""Opening the store that a database URL names."""

from __future__ import annotations

from collections.abc import Callable, Collection

from stagepost.app.settings import allowed
from stagepost.flow.clock import Clock
from stagepost.ports.registry import driver_of
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.transaction.claiming import Claimer


class Access:
    """One thread's sessions: ``session`` to the queue's database, ``work`` to the database of the stages' data.

    Both are one session where both are one database. ``claimer`` claims messages on ``session``.
    """

    def __init__(self, session: Session, clock: Clock, open_work: Callable[[], Session] | None = None) -> None:
        self.session = session
        self.claimer = Claimer(session, clock, self._next_held_at)
        self._open_work = open_work
        self._work: Session | None = None

    @property
    def work(self) -> Session:
        """Opened when it is first asked for: most who look after messages need none. Raises ``StoreError``."""
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


def open_store(url: str, allow: Collection[str] = ()) -> Store:
    """Open the store of a URL, with the risks that ``allow`` and the environment accept.

    Raises ``DeclarationError`` and ``StoreError``.
    """
    return driver_of(url).open(url, allow={*allow, *allowed()})
