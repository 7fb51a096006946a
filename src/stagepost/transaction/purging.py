"""Purge: remove the rows whose retention is over, in batches, each in a commit of its own.

A purge that breaks off anywhere has removed some batches. The next one removes the others. Two purges at once remove
each row once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from stagepost.flow.errors import StoreContention
from stagepost.ports.retention import FIRST, ClosedRange, Mark
from stagepost.ports.session import Session
from stagepost.transaction.queue_commit import committing
from stagepost.transaction.retention import DAY, Rules, read_rules

BATCH = 500
# A reader of the journal that was not there for so long holds no line back.
READER_HOURS = 30 * DAY
# A journal in ranges has about so many closed ones.
RANGES = 8
# So many messages of an inbox are not marked at most. With more, the journal waits for them.
UNSENT_MAX = 10_000
EVER = 2**62

logger = logging.getLogger(__name__)


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
    pinned: int


class Purge:
    """A purge of one database. ``dry_run`` counts what would go, and changes nothing.

    ``queue``  a session of the queue's database, which knows the open flows
    ``work``   a session of the stages' database, whose inbox names messages of the queue's journal
    ``rules``  None for those of the store
    """

    def __init__(
        self,
        session: Session,
        queue: Session,
        work: Session,
        *,
        rules: Rules | None = None,
        dry_run: bool = False,
        listener: PurgeListener = unobserved_purge,
    ) -> None:
        self._session = session
        self._retention = session.retention
        self._queue = queue
        self._work = work
        self._rules = rules or read_rules(queue)
        self._is_dry = dry_run
        self._listener = listener

    def run(self) -> Iterator[Purged]:
        """Yield each batch after its commit. Raises ``StoreError``."""
        hours = self._retention.hours()
        for scope in self._retention.scopes():
            keep = self._rules.of_scope(scope)
            if keep is not None:
                yield from self._purge_ids(scope, _old(hours, keep))
        keep = self._rules.of_kind("journal")
        if self._session is self._queue and keep is not None:
            self._cut(hours, keep)
            mark = self._retention.mark(_old(hours, keep))
            if mark is not None:
                yield from self._purge_journal(self._unread(mark, hours))

    def _purge_ids(self, scope: str, hour: int) -> Iterator[Purged]:
        after = FIRST
        while found := self._retention.old_ids(scope, hour, after, BATCH):
            after = found[-1]
            open_flows = self._queue.retention.open_flows(sorted({each.flow_id for each in found}))
            ended = [each.key for each in found if each.flow_id not in open_flows]
            removed = self._remove(partial(self._retention.remove_ids, scope, hour, ended), len(ended))
            yield Purged(f"ids of {scope}", removed, len(found) - len(ended))

    # The journal

    def _cut(self, hours: int, keep: int) -> None:
        """End the open range of the journal if it began long ago. A range is dropped as a whole."""
        since = self._retention.mark(hours - max(DAY, keep // RANGES))
        if self._is_dry or since is None or self._retention.ends_at() is None:
            return
        try:
            with committing(self._session):
                self._retention.cut(since.line)
        except StoreContention as error:
            logger.info("the journal is in use, and its open range goes on: %s", error, extra={"event": "not-cut"})

    def _unread(self, mark: Mark, hours: int) -> Mark:
        """Return the mark, or an earlier one that no reader has passed."""
        for position in self._retention.held(hours - READER_HOURS):
            mark = Mark(min(mark.line, self._retention.line_before(position)), min(mark.position, position))
        return mark

    def _purge_journal(self, mark: Mark) -> Iterator[Purged]:
        """Remove lines up to the mark, of flows that have ended."""
        unsent = self._work.inbox.unsent(EVER, UNSENT_MAX)
        if len(unsent) == UNSENT_MAX:
            return
        pinned = self._retention.flows_of([message_id for _, message_id in unsent]) if unsent else set()
        for closed in self._retention.closed_ranges():
            if closed.next - 1 > mark.line:
                break
            dropped = self._drop(closed, pinned, mark)
            if dropped is None:
                break
            yield dropped
        ends_at = self._retention.ends_at()
        last = mark.line if ends_at is None else min(mark.line, ends_at - 1)
        yield from self._purge_lines(mark._replace(line=last), pinned)

    def _drop(self, closed: ClosedRange, pinned: set[str], mark: Mark) -> Purged | None:
        """Drop a range of the journal. Returns None where another session does not let the journal go at once."""
        lines = self._retention.lines_of(closed)
        kept = sorted(self._retention.kept_flows(closed) | pinned)
        if self._is_dry:
            return Purged("lines of the journal", lines, 0)

        def drop() -> int:
            self._raise_mark(mark)
            return self._retention.drop(closed, kept)

        try:
            moved = self._remove(drop, lines or 1)
        except StoreContention as error:
            logger.info("the journal is in use, and a range of it stays: %s", error, extra={"event": "not-dropped"})
            return None
        return Purged("lines of the journal", max(lines - moved, 0), moved)

    def _purge_lines(self, mark: Mark, pinned: set[str]) -> Iterator[Purged]:
        after = 0
        while found := self._retention.old_lines(after, mark.line, BATCH):
            after = found[-1].line
            flows = sorted({each.flow_id for each in found} - pinned)
            ended = set(flows) - self._retention.recent_flows(flows, mark.line) - self._retention.open_flows(flows)
            lines = sum(each.flow_id in ended for each in found)
            removed = self._remove(partial(self._remove_lines, sorted(ended), mark), lines)
            yield Purged("lines of the journal", removed, len(found) - lines)

    def _remove_lines(self, flows: list[str], mark: Mark) -> int:
        self._raise_mark(mark)
        return self._retention.remove_lines(flows, mark.line)

    def _raise_mark(self, mark: Mark) -> None:
        """Refuse readers that begin before the mark, from the commit on that removes lines."""
        if mark.position > (self._retention.purged_until() or 0):
            self._retention.set_purged(mark.position)

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


def _old(hours: int, keep: int) -> int:
    """Return the latest hour whose rows are old. The hour in which a row was written was begun, and does not count."""
    return hours - keep - 1
