"""A session whose database fails as databases do: busy, away, or silent about a commit."""

from __future__ import annotations

from random import Random
from typing import Any

from stagepost.flow.errors import CommitUnknown, StoreContention, StoreUnavailable
from stagepost.ports.session import Session


class FaultySession:
    """Passes everything on, and fails by chance at the begin and at the commit. ``rate`` 0 heals it."""

    def __init__(self, session: Session, random: Random, rate: float) -> None:
        self._session = session
        self._random = random
        self.rate = rate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def begin(self, *, is_durable: bool = True) -> None:
        if self._fails():
            raise self._random.choice([StoreContention, StoreUnavailable])("simulated")
        self._session.begin(is_durable=is_durable)

    def commit(self) -> None:
        if not self._fails():
            self._session.commit()
            return
        what = self._random.randrange(3)
        if what == 0:
            self._session.rollback()
            raise StoreUnavailable("simulated: nothing was committed")
        if what == 1:
            self._session.rollback()
        else:
            self._session.commit()
        raise CommitUnknown("simulated: the answer was lost")

    def _fails(self) -> bool:
        return self._random.random() < self.rate
