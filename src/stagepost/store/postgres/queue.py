"""The queue's three tables. Every write is part of the session's open transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stagepost.flow.claim import Claim
from stagepost.flow.queue import Look, Pending, QueueRow
from stagepost.recovery.pausing import GIVEN_UP_PROBES
from stagepost.store.postgres.bell import RING, Bell
from stagepost.store.postgres.low_water import LowWater
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.wire import Wire, insert, only


class PostgresQueue:
    """Implements ``transport.database.Queue``."""

    def __init__(self, wire: Wire, bell: Bell) -> None:
        self._wire = wire
        self._bell = bell
        self._ear = bell.ear()
        self._low_water = LowWater(bell.monotonic)
        # What is prepared may not have said anything.
        self.is_quiet = False

    def reconnected(self) -> None:
        """What was heard on another connection says nothing: the next question whether anything changed is answered
        with yes."""
        self._ear = self._bell.ear()

    def look(self, stages: Sequence[str], now: int) -> Look:
        self._low_water.decide()
        with self._low_water.timed():
            return Look(*only(self._wire.run(SQL["has_claimable"], {**self._low_water.begin_at(stages), "now": now})))

    def promote(self, stages: Sequence[str], now: int, limit: int) -> int:
        due = {"stages": list(stages), "now": now, "limit": limit}
        return self._wire.run(SQL["promote_due"], due).rowcount

    def claim(self, stages: Sequence[str], limit: int, owner: str) -> list[Claim]:
        wanted = {**self._low_water.begin_at(stages), "limit": limit, "owner": owner}
        with self._low_water.timed():
            claims = [Claim(*row) for row in self._wire.run(SQL["claim_ready"], wanted).fetchall()]
        self._low_water.saw(claims)
        return claims

    def claim_suspect(self, stages: Sequence[str], now: int, owner: str) -> Claim | None:
        wanted = {"stages": list(stages), "now": now, "owner": owner}
        row = self._wire.run(SQL["claim_suspect"], wanted).fetchone()
        return None if row is None else Claim(*row)

    def enqueue(self, rows: Sequence[QueueRow]) -> None:
        insert(self._wire, SQL["put_suspect"], [row for row in rows if row.deaths])
        insert(self._wire, SQL["put_delayed"], [row for row in rows if not row.deaths and row.due_at is not None])
        insert(self._wire, SQL["put_ready"], [row[:-1] for row in rows if not row.deaths and row.due_at is None])
        if rows:
            self._ring()

    def take(self, claim: Claim) -> None:
        self._wire.later(SQL["take_claimed"], _fence(claim))

    def take_all(self, claims: Sequence[Claim]) -> None:
        fences = {
            "ids": [each.row for each in claims],
            "owners": [each.owner for each in claims],
            "deliveries": [each.deliveries for each in claims],
            "message_ids": [each.message_id for each in claims],
        }
        self._wire.later(SQL["take_all_claimed"], fences)

    def remove(self, claim: Claim) -> bool:
        return self._touched("remove_claimed", claim)

    def release(self, claim: Claim) -> bool:
        is_released = self._touched("release_claimed", claim)
        if is_released:
            self._ring()
        return is_released

    def holds(self, claim: Claim) -> bool:
        return self._wire.run(SQL["holds_claimed"], _fence(claim)).fetchone() is not None

    def owned(self, owner: str) -> list[Claim]:
        return [Claim(*row) for row in self._wire.run(SQL["list_owned"], (owner,)).fetchall()]

    def unattended(self, owner: str, *, is_paused: bool = False) -> list[Claim]:
        if is_paused:
            self._wire.run(SQL["end_paused"], (owner,))
        return [Claim(*row) for row in self._wire.run(SQL["list_unattended"], (owner,)).fetchall()]

    def owners(self) -> list[str]:
        return [owner for (owner,) in self._wire.run(SQL["list_owners"]).fetchall()]

    def waiting_stages(self) -> list[str]:
        return [stage for (stage,) in self._wire.run(SQL["list_waiting_stages"]).fetchall()]

    def pending(self, stages: Sequence[str]) -> Pending:
        wanted = {"stages": list(stages), "given_up": GIVEN_UP_PROBES}
        ready, claimed, due_at, suspect_at, given_up, others = only(self._wire.run(SQL["pending"], wanted))
        is_stalled = given_up is not None and not (others or claimed)
        return Pending(bool(ready), bool(claimed), due_at, suspect_at, given_up if is_stalled else None)

    def changed(self) -> bool:
        return self._ear.has_changed()

    def _ring(self) -> None:
        if not self.is_quiet and self._bell.may_ring():
            self._wire.later(RING)

    def ring(self) -> None:
        """For what was put quietly, and is there now."""
        if self._bell.may_ring():
            self._wire.run(RING)

    def _touched(self, name: str, claim: Claim) -> bool:
        return self._wire.run(SQL[name], _fence(claim)).rowcount == 1


def _fence(claim: Claim) -> tuple[Any, ...]:
    return claim.row, claim.owner, claim.deliveries, claim.message_id
