"""Inbox and outbox in memory: the same verbs."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.codec import encode_envelope
from stagepost.flow.initiation import Acceptance
from stagepost.ports.inbox import Handled, InboxRow
from stagepost.ports.outbox import DUE_AT_ONCE, Backlog, HeldMessage
from tests.toy_store.tables import HandledRow, HeldRow, Tables


class ToyInbox:
    """Implements ``ports.inbox.Inbox``."""

    def __init__(self, tables: Tables) -> None:
        self._rows = tables.inbox

    def admit(self, row: InboxRow) -> bool:
        if self._rows.get((row.stage, row.message_id)) is not None:
            return False
        self._rows.put((row.stage, row.message_id), HandledRow(row, None, is_sent=False))
        return True

    def keep(self, stage: str, message_id: str, produced: bytes) -> None:
        found = self._rows.get((stage, message_id))
        if found is not None:
            self._rows.put((stage, message_id), HandledRow(found.row, produced, found.is_sent))

    def find(self, stage: str, message_id: str) -> Handled | None:
        found = self._rows.get((stage, message_id))
        return None if found is None else Handled(found.row.digest, found.produced)

    def mark(self, stage: str, message_id: str) -> None:
        found = self._rows.get((stage, message_id))
        if found is not None:
            self._rows.put((stage, message_id), HandledRow(found.row, None, is_sent=True))

    def take_unsent(self, stage: str, message_id: str) -> bool:
        found = self._rows.get((stage, message_id))
        if found is None or found.is_sent:
            return False
        self._rows.put((stage, message_id), HandledRow(found.row, found.produced, is_sent=True))
        return True

    def unsent(self, now: int, limit: int) -> list[tuple[str, str]]:
        due = sorted((each.row.leased_until, key) for key, each in self._rows.items() if not each.is_sent)
        return [key for leased_until, key in due if leased_until <= now][:limit]

    def postpone(self, stage: str, message_id: str, until: int) -> None:
        found = self._rows.get((stage, message_id))
        if found is not None:
            row = found.row._replace(leased_until=until)
            self._rows.put((stage, message_id), HandledRow(row, found.produced, found.is_sent))

    def backlog(self) -> Backlog:
        handled = [each.row.handled_at for each in self._rows.values() if not each.is_sent]
        return Backlog(len(handled), min(handled, default=None))


class ToyOutbox:
    """Implements ``ports.outbox.Outbox``."""

    def __init__(self, tables: Tables) -> None:
        self._rows = tables.outbox

    def hold(self, acceptances: Sequence[Acceptance], now: int, node: str) -> None:
        for each in acceptances:
            self._rows.insert(
                HeldRow(DUE_AT_ONCE, now, HeldMessage(0, each, encode_envelope(each.outgoing.envelope), node, 0))
            )

    def lease(self, now: int, until: int, limit: int) -> list[HeldMessage]:
        due = sorted((row.next_at, key) for key, row in self._rows.items() if row.next_at <= now)[:limit]
        leased: list[HeldMessage] = []
        for key in sorted(key for _, key in due):
            row = self._rows.get(key)
            assert row is not None
            held = row.held._replace(id=key)
            self._rows.put(key, HeldRow(until, row.held_at, held))
            leased.append(held)
        return leased

    def postpone(self, held_id: int, until: int, attempts: int) -> None:
        row = self._rows.get(held_id)
        if row is not None:
            self._rows.put(held_id, HeldRow(until, row.held_at, row.held._replace(attempts=attempts)))

    def remove(self, held_id: int) -> None:
        if self._rows.get(held_id) is not None:
            self._rows.remove(held_id)

    def holds(self, scope: str, key: str) -> bool:
        return any((row.held.acceptance.scope, row.held.acceptance.key) == (scope, key) for row in self._rows.values())

    def next_at(self) -> int | None:
        return min((row.next_at for row in self._rows.values()), default=None)

    def backlog(self) -> Backlog:
        held = [row.held_at for row in self._rows.values()]
        return Backlog(len(held), min(held, default=None))
