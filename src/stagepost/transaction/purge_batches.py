"""The batches of a purge: each removes some rows in a commit of its own."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from stagepost.ports.session import Session
from stagepost.transaction.queue_commit import committing

BATCH = 500


class PurgeStep(StrEnum):
    """The steps of one batch: its rows are found, they are removed and not committed yet, and they are gone."""

    FOUND = "found"
    REMOVING = "removing"
    REMOVED = "removed"


PurgeListener = Callable[[PurgeStep], None]


def unobserved_purge(step: PurgeStep) -> None:
    """Ignore a step: the default listener."""


class Purged(NamedTuple):
    """One batch: how many ``rows`` of one kind went, and how many ``pinned`` ones are old and stay.

    ``what``  the kind of row, such as ``ids of orders.place``
    """

    what: str
    rows: int
    pinned: int = 0


class Batches:
    """Removes batches of up to ``limit`` rows. A dry run removes none."""

    def __init__(self, session: Session, *, is_dry: bool, listener: PurgeListener) -> None:
        self._session = session
        self.is_dry = is_dry
        self._listener = listener
        self.limit = BATCH

    def remove(self, remove: Callable[[], int], rows: int) -> int:
        """Call ``remove`` for a batch of ``rows``, and commit. Returns how many went.

        A power failure may undo the commit. The next purge then repeats it.
        """
        if self.is_dry or not rows:
            return rows
        self._listener(PurgeStep.FOUND)
        with committing(self._session, is_durable=False):
            removed = remove()
            self._listener(PurgeStep.REMOVING)
        self._listener(PurgeStep.REMOVED)
        return removed

    def count(self, remove: Callable[[], int]) -> int:
        """Call ``remove``, and roll back. Returns how many rows would have gone."""
        self._session.begin()
        try:
            return remove()
        finally:
            self._session.rollback()
