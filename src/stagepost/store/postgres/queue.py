"""PostgreSQL's queue: several sessions write at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stagepost.flow.claim import Claim
from stagepost.ports.queue import PROMOTION_MAX, Look
from stagepost.store.postgres.low_water import LowWater
from stagepost.store.postgres.notifier import NotificationListener, Notifier
from stagepost.store.sql.database import SqlDatabase
from stagepost.store.sql.queue import SqlQueue, fence_of


class PostgresQueue(SqlQueue):
    """Implements ``ports.queue.Queue``."""

    def __init__(self, database: SqlDatabase, notifier: Notifier) -> None:
        super().__init__(database)
        self._notifier = notifier
        self._listener = NotificationListener(notifier)
        self._low_water = LowWater(notifier.monotonic)

    def reconnected(self) -> None:
        """Forget the notifications of the lost connection, so that the next ``changed`` says yes."""
        self._listener = NotificationListener(self._notifier)

    def look(self, stages: Sequence[str], now: int) -> Look:
        self._low_water.decide()
        with self._low_water.timed():
            return super().look(stages, now)

    def _claim_ready(self, stages: Sequence[str], limit: int, owner: str) -> list[Claim]:
        with self._low_water.timed():
            claims = super()._claim_ready(stages, limit, owner)
        self._low_water.saw(claims)
        return claims

    def _begins(self, stages: Sequence[str]) -> dict[str, Any]:
        return self._low_water.begin_at(stages)

    def promote(self, stages: Sequence[str], now: int) -> None:
        self._run("promote_due", {"stages": list(stages), "now": now, "limit": PROMOTION_MAX})

    def take(self, *claims: Claim) -> None:
        if len(claims) == 1:
            self._database.later("take_claimed", fence_of(claims[0]))
            return
        fences = {
            "ids": [each.row for each in claims],
            "owners": [each.owner for each in claims],
            "deliveries": [each.deliveries for each in claims],
            "message_ids": [each.message_id for each in claims],
        }
        self._database.later("take_all_claimed", fences)

    def owned(self, owner: str, *, is_unattended: bool = False, is_paused: bool = False) -> list[Claim]:
        if is_paused:
            self._run("end_paused", (owner,))
        rows = self._run("list_unattended" if is_unattended else "list_owned", (owner,)).fetchall()
        return [Claim(*row) for row in rows]

    def changed(self) -> bool:
        return self._listener.has_changed()
