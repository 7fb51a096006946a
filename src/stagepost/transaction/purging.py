"""Purge: remove the rows whose retention is over, in batches, each in a commit of its own.

A purge that breaks off anywhere has removed some batches. The next one removes the others. Two purges at once remove
each row once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from stagepost.ports.retention import FIRST
from stagepost.ports.session import Session
from stagepost.transaction.arrivals import SCOPE_PREFIX
from stagepost.transaction.queue_commit import committing

BATCH = 500
DAY = 24
GATEWAY_PREFIX = "gateway:"


class PurgeStep(StrEnum):
    """The steps of one batch: its rows are found, they are removed and not committed yet, and they are gone."""

    FOUND = "found"
    REMOVING = "removing"
    REMOVED = "removed"


PurgeListener = Callable[[PurgeStep], None]


def unobserved_purge(step: PurgeStep) -> None:
    """Ignore a step: the default listener."""


# The default retention of each kind of row, in hours of housekeeping. None: no end.
#
# ``initiations``  ids of started flows, those of bulk runs included
# ``gateway``      ids of requests that the gateway accepted
KINDS: Mapping[str, int | None] = {
    "initiations": 400 * DAY,
    "gateway": 7 * DAY,
}


def scope_of_kind(kind: str) -> str:
    """Return the scope under which the store has the declared retention of a kind of row. It is no address."""
    return f"@{kind}"


class Rules:
    """The retention of each kind of row and of each scope. ``declared`` takes precedence over ``KINDS``."""

    def __init__(self, declared: Mapping[str, int] | None = None) -> None:
        self._declared = declared or {}

    def of_kind(self, kind: str) -> int | None:
        """Return the hours for a kind of row; None for rows that stay."""
        return self._declared.get(scope_of_kind(kind), KINDS[kind])

    def of_scope(self, scope: str) -> int | None:
        """Return the hours for the ids of a scope; None for ids that stay."""
        if scope.startswith(SCOPE_PREFIX):
            return None
        if scope.startswith(GATEWAY_PREFIX):
            return self.of_kind("gateway")
        return self._declared.get(scope, self.of_kind("initiations"))


def read_rules(queue: Session) -> Rules:
    """Read the rules of a store. Where several apps declare a retention, the longest one counts."""
    hours: dict[str, int] = {}
    for each in queue.retention.declared():
        hours[each.scope] = max(each.hours, hours.get(each.scope, 0))
    return Rules(hours)


class Purged(NamedTuple):
    """One batch: how many ``rows`` of one kind went, and how many ``pinned`` ones are old and stay.

    ``what``  the kind of row, such as ``ids of orders.place``
    """

    what: str
    rows: int
    pinned: int


class Purge:
    """A purge of one database. ``dry_run`` counts what would go, and changes nothing.

    ``queue``  a session of the queue's database, which knows the open flows
    ``rules``  None for those of the store
    """

    def __init__(
        self,
        session: Session,
        queue: Session,
        *,
        rules: Rules | None = None,
        dry_run: bool = False,
        listener: PurgeListener = unobserved_purge,
    ) -> None:
        self._session = session
        self._queue = queue
        self._rules = rules or read_rules(queue)
        self._is_dry = dry_run
        self._listener = listener

    def run(self) -> Iterator[Purged]:
        """Yield each batch after its commit. Raises ``StoreError``."""
        retention = self._session.retention
        hours = retention.hours()
        for scope in retention.scopes():
            keep = self._rules.of_scope(scope)
            if keep is not None:
                # One more: the hour in which the row was written was counted before, and had begun then.
                yield from self._purge_ids(scope, hours - keep - 1)

    def _purge_ids(self, scope: str, hour: int) -> Iterator[Purged]:
        after = FIRST
        while found := self._session.retention.old_ids(scope, hour, after, BATCH):
            after = found[-1]
            open_flows = self._queue.retention.open_flows(sorted({each.flow_id for each in found}))
            ended = [each.key for each in found if each.flow_id not in open_flows]
            removed = self._remove(partial(self._session.retention.remove_ids, scope, hour, ended), len(ended))
            yield Purged(f"ids of {scope}", removed, len(found) - len(ended))

    def _remove(self, remove: Callable[[], int], rows: int) -> int:
        """Remove a batch of ``rows`` in a commit of its own. Returns how many went; a power failure may undo it."""
        if self._is_dry or not rows:
            return rows
        self._listener(PurgeStep.FOUND)
        with committing(self._session, is_durable=False):
            removed = remove()
            self._listener(PurgeStep.REMOVING)
        self._listener(PurgeStep.REMOVED)
        return removed
