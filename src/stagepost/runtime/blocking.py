"""The wait of a thread that keeps a failed message, as a blocking redelivery wants it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND, microseconds
from stagepost.flow.errors import StoreError
from stagepost.runtime.access import Access
from stagepost.runtime.prefetch import Prefetcher
from stagepost.transaction.attempt import AttemptRunner
from stagepost.transaction.database_wait import StopSignal, retried
from stagepost.transaction.outcome import Outcome, Redelivered

logger = logging.getLogger(__name__)


class BlockedThread:
    """Holds the message that one thread keeps, if there is one."""

    def __init__(self, prefetcher: Prefetcher, access: Access, transaction: AttemptRunner, stop: StopSignal) -> None:
        self._prefetcher = prefetcher
        self._access = access
        self._transaction = transaction
        self._stop = stop
        self._kept: Claim | None = None
        self._after = 0

    def observe(self, outcome: Outcome, rest: Sequence[Claim]) -> None:
        """Note whether the last message is kept.

        If it failed for the first time, all other messages are given back: ``rest``, which shared its transaction, and
        those that its process claimed ahead.
        """
        if not isinstance(outcome, Redelivered) or outcome.kept is None:
            self._kept = None
            return
        is_first = self._kept is None or self._kept.row != outcome.kept.row
        self._kept, self._after = outcome.kept, outcome.after
        if is_first:
            retried(logger, lambda: self._prefetcher.give_back(self._access.claimer, beside=rest), self._stop)

    def wait(self) -> list[Claim]:
        """Return the kept message once it is due. Return an empty list if there is none, or if the thread must end."""
        if self._kept is None:
            return []
        left = self._prefetcher.wait_blocked(self._after / SECOND)
        if left is None:
            return [self._kept]
        # The housekeeper gives the message back if the database is away at this moment.
        with suppress(StoreError):
            self._transaction.put_off(self._kept, microseconds(left), "its worker stops")
        return []
