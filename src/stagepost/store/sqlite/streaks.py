"""The streaks of failing stages, and the probes of those that paused."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stagepost.flow.claim import Claim
from stagepost.recovery.pausing import CANDIDATES_MAX, End, Streak, streak_of, values_of
from stagepost.store.sqlite.queue import Run
from stagepost.store.sqlite.statements import SQL


class SqliteStreaks:
    """Implements ``transaction.seams.Streaks``. Writes are part of whatever transaction is open."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def lock(self, stage: str) -> Streak:
        (row,) = self._run(SQL["lock_streak"], {"stage": stage}).fetchall()
        return streak_of(row)

    def keep(self, streak: Streak) -> None:
        self._run(SQL["keep_streak"], values_of(streak))

    def forget(self, stage: str) -> bool:
        # Its row first, in the order in which who probes it locks them.
        is_forgotten = self._run(SQL["remove_streak"], {"stage": stage}).rowcount == 1
        self._start_round(stage)
        return is_forgotten

    def paused(self) -> list[Streak]:
        return [streak_of(row) for row in self._run(SQL["list_paused"]).fetchall()]

    def has_succeeded(self, stage: str, since: int) -> bool:
        wanted = {"stage": stage, "line": since}
        return bool(self._run(SQL["has_succeeded"], wanted).fetchone()[0])

    def due(self, stages: Sequence[str], now: int) -> list[Streak]:
        wanted = {"stages": json.dumps(stages), "now": now}
        return [streak_of(row) for row in self._run(SQL["list_probes_due"], wanted).fetchall()]

    def is_claimed(self, row: int) -> bool:
        return bool(self._run(SQL["is_claimed"], {"row": row}).fetchone()[0])

    def claim_probe(self, stage: str, owner: str, end: End) -> Claim | None:
        probe = self._next_probe(stage, owner, end)
        if probe is None and self._start_round(stage):
            probe = self._next_probe(stage, owner, end)
        if probe is not None:
            self._run(SQL["put_probed"], {"stage": stage, "message_id": probe.message_id})
        return probe

    def _next_probe(self, stage: str, owner: str, end: End) -> Claim | None:
        wanted = {"stage": stage, "owner": owner, "candidates": CANDIDATES_MAX}
        return next((Claim(*row) for row in self._run(SQL[f"claim_{end}_probe"], wanted).fetchall()), None)

    def _start_round(self, stage: str) -> bool:
        return self._run(SQL["remove_probed"], {"stage": stage}).rowcount > 0
