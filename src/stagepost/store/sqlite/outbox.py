"""What was started in this database and has not reached its queue yet. Part of whatever transaction is open."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.envelope import encode_envelope
from stagepost.flow.inbox import DUE_AT_ONCE, Backlog, Held, held_of
from stagepost.flow.initiation import Acceptance
from stagepost.store.sqlite.queue import Run
from stagepost.store.sqlite.statements import SQL


class SqliteOutbox:
    """Implements ``transaction.seams.Outbox``."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def hold(self, acceptances: Sequence[Acceptance], now: int, node: str) -> None:
        for each in acceptances:
            data = encode_envelope(each.outgoing.envelope)
            key = each.scope, each.key, each.digest, each.run_id
            self._run(
                SQL["hold_outgoing"], (DUE_AT_ONCE, *key, each.outgoing.due_at, each.outgoing.topic, node, now, data)
            )

    def lease(self, now: int, until: int, limit: int) -> list[Held]:
        rows = self._run(SQL["lease_held"], {"now": now, "until": until, "limit": limit}).fetchall()
        return sorted(held_of(*row) for row in rows)

    def postpone(self, held_id: int, until: int, attempts: int) -> None:
        self._run(SQL["postpone_held"], (until, attempts, held_id))

    def remove(self, held_id: int) -> None:
        self._run(SQL["remove_held"], (held_id,))

    def next_at(self) -> int | None:
        (next_at,) = self._run(SQL["next_held"]).fetchone()
        return None if next_at is None else int(next_at)

    def backlog(self) -> Backlog:
        return Backlog(*self._run(SQL["count_held"]).fetchone())
