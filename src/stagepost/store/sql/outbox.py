"""The flows that were started in this database and have not reached their queue yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stagepost.flow.codec import decode_envelope, encode_envelope
from stagepost.flow.initiation import Acceptance, Outgoing
from stagepost.ports.outbox import DUE_AT_ONCE, Backlog, HeldMessage
from stagepost.store.sql.database import SqlPart, only


class SqlOutbox(SqlPart):
    """Implements ``ports.outbox.Outbox``. Writes are part of the open transaction."""

    def hold(self, acceptances: Sequence[Acceptance], now: int, node: str) -> None:
        if acceptances:
            self._database.insert("hold_outgoing", [_row(each, now, node) for each in acceptances])
            self._database.notify()

    def lease(self, now: int, until: int, limit: int) -> list[HeldMessage]:
        rows = self._run("lease_held", {"now": now, "until": until, "limit": limit}).fetchall()
        return sorted(map(_held, rows))

    def postpone(self, held_id: int, until: int, attempts: int) -> None:
        self._database.later("postpone_held", (until, attempts, held_id))

    def remove(self, held_id: int) -> None:
        self._database.later("remove_held", (held_id,))

    def holds(self, scope: str, key: str) -> bool:
        return self._run("find_held", (scope, key)).fetchone() is not None

    def next_at(self) -> int | None:
        next_at: int | None = only(self._run("next_held"))[0]
        return next_at

    def backlog(self) -> Backlog:
        return Backlog(*only(self._run("count_held")))


def _row(held: Acceptance, now: int, node: str) -> tuple[Any, ...]:
    outgoing = held.outgoing
    key = (held.scope, held.key, held.digest, held.run_id)
    return DUE_AT_ONCE, *key, outgoing.due_at, outgoing.topic, node, now, encode_envelope(outgoing.envelope)


def _held(row: Sequence[Any]) -> HeldMessage:
    held_id, scope, key, digest, run_id, due_at, topic, node, data, attempts = row
    outgoing = Outgoing(decode_envelope(data), due_at, topic)
    return HeldMessage(held_id, Acceptance(scope, key, digest, outgoing, run_id), data, node, attempts)
