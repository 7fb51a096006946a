"""Purge: remove the rows whose retention is over, in batches.

A purge that breaks off anywhere has removed some batches. The next one removes the others. Two purges at once remove
each row once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from stagepost.ports.retention import FIRST, FIRST_HANDLED, FIRST_KEY
from stagepost.ports.session import Session
from stagepost.transaction.journal_purge import JournalPurge
from stagepost.transaction.purge_batches import Batches, Purged, PurgeListener, unobserved_purge
from stagepost.transaction.retention import Rules, address_of, read_rules

# A dry run counts no further.
COUNT_MAX = 100_000


class Purge:
    """A purge of one database. ``dry_run`` counts what would go, and changes nothing.

    ``queue``  a session of the queue's database, which knows the open flows
    ``work``   a session of the stages' database
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
        self._batches = Batches(session, is_dry=dry_run, listener=listener, row_bytes=session.retention.row_bytes)

    def run(self) -> Iterator[Purged]:
        """Yield each batch after its commit. Raises ``StoreError``."""
        retention = self._retention
        hours = retention.hours()
        for scope in retention.scopes():
            keep = self._rules.of_scope(scope)
            address = address_of(scope)
            until = retention.caught_up(address) if address else hours
            if keep is not None and until is not None:
                yield from self._purge_ids(scope, _old(until, keep))
        for stage in retention.inbox_stages():
            if (keep := self._rules.of_stage("inbox", stage)) is not None:
                yield from self._purge_inbox(stage, _old(hours, keep))
        for stage in retention.key_stages():
            if (keep := self._rules.of_stage("business_keys", stage)) is not None:
                yield from self._purge_keys(stage, _old(hours, keep))
        if self._session is self._queue:
            yield from self._purge_small_tables(hours)
            if (keep := self._rules.of_kind("journal")) is not None:
                yield from JournalPurge(self._session, self._work, self._batches).run(hours, keep)
        yield from self._shrink()

    def _purge_ids(self, scope: str, hour: int) -> Iterator[Purged]:
        after = FIRST
        while found := self._retention.old_ids(scope, hour, after, self._batches.limit):
            after = found[-1]
            open_flows = self._queue.retention.open_flows(sorted({each.flow_id for each in found}))
            ended = [each.key for each in found if each.flow_id not in open_flows]
            removed = self._batches.remove(partial(self._retention.remove_ids, scope, hour, ended), len(ended))
            yield self._batches.purged("ids", f"ids of {scope}", removed, len(found) - len(ended))

    def _purge_inbox(self, stage: str, hour: int) -> Iterator[Purged]:
        """Remove marked rows."""
        after = FIRST_HANDLED
        while found := self._retention.old_handled(stage, hour, after, self._batches.limit):
            after = found[-1]
            pinned = self._of_open_flows([each.message_id for each in found])
            ended = [each.message_id for each in found if each.message_id not in pinned]
            removed = self._batches.remove(partial(self._retention.remove_handled, stage, hour, ended), len(ended))
            yield self._batches.purged("inbox", f"inbox of {stage}", removed, len(found) - len(ended))

    def _purge_keys(self, stage: str, hour: int) -> Iterator[Purged]:
        after = FIRST_KEY
        while found := self._retention.old_keys(stage, hour, after, self._batches.limit):
            after = found[-1]
            pinned = self._of_open_flows([each.message_id for each in found])
            ended = [each.key for each in found if each.message_id not in pinned]
            removed = self._batches.remove(partial(self._retention.remove_keys, stage, hour, ended), len(ended))
            yield self._batches.purged("business_keys", f"business keys of {stage}", removed, len(found) - len(ended))

    def _of_open_flows(self, message_ids: Sequence[str]) -> set[str]:
        """Return the messages whose flows are open. A message without lines is of a flow that ended long ago."""
        flows = self._queue.retention.flows_of(message_ids)
        open_flows = self._queue.retention.open_flows(sorted(set(flows.values())))
        return {message_id for message_id, flow in flows.items() if flow in open_flows}

    def _purge_small_tables(self, hours: int) -> Iterator[Purged]:
        retention = self._retention
        old = {
            kind: hour
            for kind, oldest in retention.oldest().items()
            if (keep := self._rules.of_kind(kind)) is not None
            and (hour := _old(hours, keep)) >= (hours if oldest is None else oldest)
        }
        # The archive takes the letters of a store that has one.
        is_archived = self._session.archives.archive() is not None
        if "dead_letters" in old and not is_archived and (mark := retention.mark(old["dead_letters"])) is not None:
            yield from self._purge_all("dead_letters", "dead letters", partial(retention.remove_letters, mark.letter))
        if "replays" in old and (mark := retention.mark(old["replays"])) is not None:
            yield from self._purge_all("replays", "replays", partial(retention.remove_replays, mark.replay))
        if "findings" in old:
            yield from self._purge_all(
                "findings", "findings of audits", partial(retention.remove_findings, old["findings"])
            )
        if "runs" in old:
            for run in retention.old_runs(old["runs"], self._batches.limit):
                remove = partial(retention.remove_run, run, old["runs"])
                yield from self._purge_all("runs", "bulk runs and quarantined rows", remove)

    def _shrink(self) -> Iterator[Purged]:
        """Give free pages back until few are left. Yields after each step."""

        def shrink() -> int:
            self._retention.shrink()
            return 0

        while not self._batches.is_dry and self._retention.has_spare():
            yield Purged("free pages", self._batches.remove(shrink, 1))

    def _purge_all(self, kind: str, what: str, remove: Callable[[int], int]) -> Iterator[Purged]:
        """Remove batches until one is not full."""
        if self._batches.is_dry:
            if rows := self._batches.count(partial(remove, COUNT_MAX)):
                yield self._batches.purged(kind, what, rows)
            return
        limit = self._batches.limit
        while removed := self._batches.remove(partial(remove, limit), limit):
            yield self._batches.purged(kind, what, removed)
            if removed < limit:
                break


def _old(hours: int, keep: int) -> int:
    """Return the latest hour whose rows are old. The hour in which a row was written was begun, and does not count."""
    return hours - keep - 1
