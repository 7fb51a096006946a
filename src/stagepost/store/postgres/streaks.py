"""The streaks of failing stages, and the probes of those that paused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stagepost.flow.claim import Claim
from stagepost.recovery.pausing import CANDIDATES_MAX, End, Streak, streak_of, values_of
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.texts import writable
from stagepost.store.postgres.wire import Wire, only


class PostgresStreaks:
    """Implements ``transaction.seams.Streaks``. Writes are part of whatever transaction is open."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def lock(self, stage: str) -> Streak:
        return streak_of(only(self._wire.run(SQL["lock_streak"], {"stage": stage})))

    def keep(self, streak: Streak) -> None:
        self._wire.later(SQL["keep_streak"], values_of(replace(streak, error=writable(streak.error))))

    def forget(self, stage: str) -> bool:
        # Its row first, in the order in which who probes it locks them.
        is_forgotten = self._wire.run(SQL["remove_streak"], {"stage": stage}).rowcount == 1
        self._start_round(stage)
        return is_forgotten

    def paused(self) -> list[Streak]:
        return [streak_of(row) for row in self._wire.run(SQL["list_paused"]).fetchall()]

    def has_succeeded(self, stage: str, since: int) -> bool:
        wanted = {"stage": stage, "line": since}
        return bool(only(self._wire.run(SQL["has_succeeded"], wanted))[0])

    def due(self, stages: Sequence[str], now: int) -> list[Streak]:
        wanted = {"stages": list(stages), "now": now}
        return [streak_of(row) for row in self._wire.run(SQL["list_probes_due"], wanted).fetchall()]

    def is_claimed(self, row: int) -> bool:
        return bool(only(self._wire.run(SQL["is_claimed"], {"row": row}))[0])

    def claim_probe(self, stage: str, owner: str, end: End) -> Claim | None:
        probe = self._next_probe(stage, owner, end)
        if probe is None and self._start_round(stage):
            probe = self._next_probe(stage, owner, end)
        if probe is not None:
            self._wire.later(SQL["put_probed"], {"stage": stage, "message_id": probe.message_id})
        return probe

    def _next_probe(self, stage: str, owner: str, end: End) -> Claim | None:
        wanted = {"stage": stage, "owner": owner, "candidates": CANDIDATES_MAX}
        return next((Claim(*row) for row in self._wire.run(SQL[f"claim_{end}_probe"], wanted).fetchall()), None)

    def _start_round(self, stage: str) -> bool:
        return self._wire.run(SQL["remove_probed"], {"stage": stage}).rowcount > 0
