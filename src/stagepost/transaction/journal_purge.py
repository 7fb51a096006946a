"""Purge the journal: the lines of flows that have ended, up to a line that every reader has passed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

from stagepost.flow.errors import StoreContention
from stagepost.ports.journal import Position
from stagepost.ports.retention import ClosedRange, Mark
from stagepost.ports.session import Session
from stagepost.transaction.purge_batches import Batches, Purged, PurgeStep
from stagepost.transaction.queue_commit import committing
from stagepost.transaction.retention import DAY

LINES = "lines of the journal"
# A reader of the journal that was not there for so long holds no line back.
READER_HOURS = 30 * DAY
# A journal in ranges has about so many closed ones.
RANGES = 8
# So many messages of an inbox are not marked at most. With more, the journal waits for them.
UNSENT_MAX = 10_000
EVER = 2**62

logger = logging.getLogger(__name__)


class JournalPurge:
    """The purge of a queue's journal. ``work`` is a session of the stages' database, whose inbox names messages."""

    def __init__(self, session: Session, work: Session, batches: Batches) -> None:
        self._session = session
        self._retention = session.retention
        self._work = work
        self._batches = batches

    def run(self, hours: int, keep: int) -> Iterator[Purged]:
        """Yield each batch after its commit. ``keep`` are the hours to keep, of those that were counted.

        If the store has an archive, only archived lines go.
        """
        mark = self.reach(hours, keep)
        if mark is not None:
            yield from self.remove(self._archived(mark))

    def reach(self, hours: int, keep: int) -> Mark | None:
        """Return up to where lines are old, and every reader has read them. None if no hour is old."""
        self._cut(hours, keep)
        mark = self._retention.mark(hours - keep - 1)
        return None if mark is None else self._unread(mark, hours)

    def _archived(self, mark: Mark) -> Mark:
        """Return the mark, or an earlier one up to which the lines are archived."""
        archives = self._session.archives
        if archives.archive() is None:
            return mark
        last = archives.last()
        if last is None:
            return Mark(0, Position(0))
        end = Position.read(last.end) or Position(0)
        return mark._replace(line=min(mark.line, last.next - 1), position=min(mark.position, end))

    def _cut(self, hours: int, keep: int) -> None:
        """End the open range of the journal if it began long ago. A range is dropped as a whole."""
        since = self._retention.mark(hours - max(DAY, keep // RANGES))
        if self._batches.is_dry or since is None or self._retention.ends_at() is None:
            return
        try:
            with committing(self._session):
                self._retention.cut(since.line)
                self._batches.listener(PurgeStep.CUTTING)
            self._batches.listener(PurgeStep.CUT)
        except StoreContention as error:
            logger.info("the journal is in use, and its open range goes on: %s", error, extra={"event": "not-cut"})

    def _unread(self, mark: Mark, hours: int) -> Mark:
        """Return the mark, or an earlier one that no reader has passed."""
        for position in self._retention.held(hours - READER_HOURS):
            line = min(mark.line, self._retention.line_before(position))
            mark = mark._replace(line=line, position=min(mark.position, position))
        return mark

    def remove(self, mark: Mark) -> Iterator[Purged]:
        """Remove lines up to the mark, of flows that have ended."""
        unsent = self._work.inbox.unsent(EVER, UNSENT_MAX)
        if len(unsent) == UNSENT_MAX:
            return
        pinned = set(self._retention.flows_of([message_id for _, message_id in unsent]).values()) if unsent else set()
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
        if self._batches.is_dry:
            return self._batches.purged("journal", LINES, lines)

        def drop() -> int:
            self._raise_mark(mark)
            return self._retention.drop(closed, kept)

        try:
            moved = self._batches.remove(drop, lines or 1)
        except StoreContention as error:
            logger.info("the journal is in use, and a range of it stays: %s", error, extra={"event": "not-dropped"})
            return None
        return self._batches.purged("journal", LINES, max(lines - moved, 0), moved)

    def _purge_lines(self, mark: Mark, pinned: set[str]) -> Iterator[Purged]:
        after = 0
        while found := self._retention.old_lines(after, mark.line, self._batches.limit):
            after = found[-1].line
            flows = sorted({each.flow_id for each in found} - pinned)
            ended = set(flows) - self._retention.recent_flows(flows, mark.line) - self._retention.open_flows(flows)
            lines = sum(each.flow_id in ended for each in found)
            removed = self._batches.remove(partial(self._remove_lines, sorted(ended), mark), lines)
            yield self._batches.purged("journal", LINES, removed, len(found) - lines)

    def _remove_lines(self, flows: list[str], mark: Mark) -> int:
        self._raise_mark(mark)
        return self._retention.remove_lines(flows, mark.line)

    def _raise_mark(self, mark: Mark) -> None:
        """Refuse readers that begin before the mark, from the commit on that removes lines."""
        if mark.position > (self._retention.purged_until() or 0):
            self._retention.set_purged(mark.position)
