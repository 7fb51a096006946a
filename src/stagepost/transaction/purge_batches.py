"""The batches of a purge: each removes some rows in a commit of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from stagepost.ports.session import Session
from stagepost.transaction.queue_commit import committing

BATCH = 500


class PurgeStep(StrEnum):
    """The steps of one batch: its rows are found, they are removed and not committed yet, and they are gone.

    ``CUTTING`` and ``CUT`` are those of a journal's open range that ends, before and after the commit.
    """

    FOUND = "found"
    REMOVING = "removing"
    REMOVED = "removed"
    CUTTING = "cutting"
    CUT = "cut"


OF_A_BATCH = (PurgeStep.FOUND, PurgeStep.REMOVING, PurgeStep.REMOVED)


PurgeListener = Callable[[PurgeStep], None]


def unobserved_purge(step: PurgeStep) -> None:
    """Ignore a step: the default listener."""


class Purged(NamedTuple):
    """One batch: how many ``rows`` of one kind went, and how many ``pinned`` ones are old and stay.

    ``what``   the kind of row, such as ``ids of orders.place``
    ``saves``  about how many bytes a dry run says that the rows take; else 0
    """

    what: str
    rows: int
    pinned: int = 0
    saves: int = 0


class Batches:
    """Removes batches of up to ``limit`` rows. A dry run removes none.

    ``row_bytes``  asked once by a dry run: about how many bytes a row of each kind takes
    """

    def __init__(
        self,
        session: Session,
        *,
        is_dry: bool,
        listener: PurgeListener,
        row_bytes: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._session = session
        self.is_dry = is_dry
        self._row_bytes = row_bytes() if is_dry else {}
        self.listener = listener
        self.limit = BATCH

    def remove(self, remove: Callable[[], int], rows: int) -> int:
        """Call ``remove`` for a batch of ``rows``, and commit. Returns how many went.

        A power failure may undo the commit. The next purge then repeats it.
        """
        if self.is_dry or not rows:
            return rows
        self.listener(PurgeStep.FOUND)
        with committing(self._session, is_durable=False):
            removed = remove()
            self.listener(PurgeStep.REMOVING)
        self.listener(PurgeStep.REMOVED)
        return removed

    def purged(self, kind: str, what: str, rows: int, pinned: int = 0) -> Purged:
        """Describe a batch. ``kind`` is that of ``Retention.row_bytes``."""
        return Purged(what, rows, pinned, rows * self._row_bytes.get(kind, 0))

    def count(self, remove: Callable[[], int]) -> int:
        """Call ``remove``, and roll back. Returns how many rows would have gone."""
        self._session.begin()
        try:
            return remove()
        finally:
            self._session.rollback()
