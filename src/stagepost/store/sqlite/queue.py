"""The queue's three tables. Every write is part of the session's open transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from stagepost.flow.claim import Claim
from stagepost.flow.errors import LeaseLost
from stagepost.flow.queue import Look, Pending, QueueRow
from stagepost.recovery.pausing import GIVEN_UP_PROBES
from stagepost.store.sqlite.statements import SQL

Run = Callable[..., sqlite3.Cursor]


class SqliteQueue:
    """Implements ``transport.database.Queue``."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._data_version = -1

    def reconnected(self) -> None:
        """What another connection saw says nothing: the next question whether anything changed is answered with yes."""
        self._data_version = -1

    def look(self, stages: Sequence[str], now: int) -> Look:
        found = self._run(SQL["has_claimable"], {"stages": json.dumps(stages), "now": now}).fetchone()
        return Look(*map(bool, found))

    def promote(self, stages: Sequence[str], now: int, limit: int) -> int:
        due = {"stages": json.dumps(stages), "now": now, "limit": limit}
        found = [row for (row,) in self._run(SQL["find_due"], due).fetchall()]
        if found:
            ids = {"ids": json.dumps(found)}
            self._run(SQL["promote_due"], ids)
            self._run(SQL["remove_delayed"], ids)
        return len(found)

    def claim(self, stages: Sequence[str], limit: int, owner: str) -> list[Claim]:
        wanted = {"stages": json.dumps(stages), "limit": limit, "owner": owner}
        return [Claim(*row) for row in self._run(SQL["claim_ready"], wanted).fetchall()]

    def claim_suspect(self, stages: Sequence[str], now: int, owner: str) -> Claim | None:
        found = self._run(SQL["find_suspect"], {"stages": json.dumps(stages), "now": now}).fetchone()
        if found is None:
            return None
        (row,) = self._run(SQL["claim_suspect"], {"id": found[0], "owner": owner}).fetchall()
        self._run(SQL["remove_suspect"], {"id": found[0]})
        return Claim(*row)

    def enqueue(self, rows: Sequence[QueueRow]) -> None:
        for row in rows:
            *common, due_at = row
            if row.deaths:
                self._run(SQL["put_suspect"], row)
            elif due_at is not None:
                self._run(SQL["put_delayed"], row)
            else:
                self._run(SQL["put_ready"], common)

    def take(self, claim: Claim) -> None:
        if not self.remove(claim):
            raise LeaseLost.of(claim.message_id, claim.stage)

    def take_all(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self.take(claim)

    def remove(self, claim: Claim) -> bool:
        return self._touched(SQL["take_claimed"], claim)

    def release(self, claim: Claim) -> bool:
        return self._touched(SQL["release_claimed"], claim)

    def holds(self, claim: Claim) -> bool:
        return self._run(SQL["holds_claimed"], _fence(claim)).fetchone() is not None

    def owned(self, owner: str) -> list[Claim]:
        return [Claim(*row) for row in self._run(SQL["list_owned"], {"owner": owner}).fetchall()]

    def unattended(self, owner: str, *, is_paused: bool = False) -> list[Claim]:
        # Whoever is at work on one is the only writer, and is waited for.
        return self.owned(owner)

    def owners(self) -> list[str]:
        return [owner for (owner,) in self._run(SQL["list_owners"]).fetchall()]

    def waiting_stages(self) -> list[str]:
        return [stage for (stage,) in self._run(SQL["list_waiting_stages"]).fetchall()]

    def pending(self, stages: Sequence[str]) -> Pending:
        wanted = {"stages": json.dumps(stages), "given_up": GIVEN_UP_PROBES}
        ready, claimed, due_at, suspect_at, given_up, others = self._run(SQL["pending"], wanted).fetchone()
        is_stalled = given_up is not None and not (others or claimed)
        return Pending(bool(ready), bool(claimed), due_at, suspect_at, given_up if is_stalled else None)

    def changed(self) -> bool:
        """Whether any other connection, in this process or another, has committed since the last call."""
        (version,) = self._run("PRAGMA data_version").fetchone()
        seen, self._data_version = self._data_version, version
        return bool(seen != version)

    def _touched(self, statement: str, claim: Claim) -> bool:
        return self._run(statement, _fence(claim)).rowcount == 1


def _fence(claim: Claim) -> tuple[Any, ...]:
    return claim.row, claim.owner, claim.deliveries
