"""What was started in this database and has not reached its queue yet. Part of whatever transaction is open."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.envelope import encode_envelope
from stagepost.flow.inbox import DUE_AT_ONCE, Backlog, Held, held_of
from stagepost.flow.initiation import Acceptance
from stagepost.store.postgres.bell import RING, Bell
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.wire import Wire, insert, only


class PostgresOutbox:
    """Implements ``transaction.seams.Outbox``."""

    def __init__(self, wire: Wire, bell: Bell) -> None:
        self._wire = wire
        self._bell = bell

    def hold(self, acceptances: Sequence[Acceptance], now: int, node: str) -> None:
        rows = [
            (
                DUE_AT_ONCE,
                each.scope,
                each.key,
                each.digest,
                each.run_id,
                each.outgoing.due_at,
                each.outgoing.topic,
                node,
                now,
                encode_envelope(each.outgoing.envelope),
            )
            for each in acceptances
        ]
        insert(self._wire, SQL["hold_outgoing"], rows)
        if rows and self._bell.may_ring():
            self._wire.later(RING)

    def lease(self, now: int, until: int, limit: int) -> list[Held]:
        rows = self._wire.run(SQL["lease_held"], {"now": now, "until": until, "limit": limit}).fetchall()
        return sorted(held_of(*row) for row in rows)

    def postpone(self, held_id: int, until: int, attempts: int) -> None:
        self._wire.later(SQL["postpone_held"], (until, attempts, held_id))

    def remove(self, held_id: int) -> None:
        self._wire.later(SQL["remove_held"], (held_id,))

    def next_at(self) -> int | None:
        next_at: int | None = only(self._wire.run(SQL["next_held"]))[0]
        return next_at

    def backlog(self) -> Backlog:
        return Backlog(*only(self._wire.run(SQL["count_held"])))
