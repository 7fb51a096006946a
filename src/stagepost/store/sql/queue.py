"""The queue's three tables. Every write is part of the session's open transaction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from stagepost.flow.claim import Claim
from stagepost.flow.errors import LeaseLost
from stagepost.ports.circuits import GIVEN_UP_PROBES
from stagepost.ports.queue import Depth, Look, Pending, QueueRow
from stagepost.store.sql.database import SqlPart


class SqlQueue(SqlPart):
    """The part of ``ports.queue.Queue`` that both databases share; ``promote`` and ``changed`` are each one's own."""

    def look(self, stages: Sequence[str], now: int) -> Look:
        found = self._run("has_claimable", {**self._begins(stages), "now": now}).fetchone()
        return Look(*map(bool, found))

    @abstractmethod
    def promote(self, stages: Sequence[str], now: int) -> None:
        """Make delayed messages claimable whose time has come."""

    def claim(self, stages: Sequence[str], limit: int, owner: str, now: int) -> list[Claim]:
        self.promote(stages, now)
        return self._claim_ready(stages, limit, owner)

    def _claim_ready(self, stages: Sequence[str], limit: int, owner: str) -> list[Claim]:
        wanted = {**self._begins(stages), "limit": limit, "owner": owner}
        return [Claim(*row) for row in self._run("claim_ready", wanted).fetchall()]

    def _begins(self, stages: Sequence[str]) -> dict[str, Any]:
        """Name the stages to look at, and where to begin in each."""
        return {"stages": self._database.array(stages)}

    def claim_suspect(self, stages: Sequence[str], now: int, owner: str) -> Claim | None:
        # Read out each time: SQLite commits nothing while rows of a RETURNING are left.
        for row in self._run("take_suspect", (self._database.array(stages), now)).fetchall():
            return next(Claim(*claimed) for claimed in self._run("put_claimed", (*row, owner)).fetchall())
        return None

    def enqueue(self, rows: Sequence[QueueRow]) -> None:
        ready = [row[:-1] for row in rows if row.due_at is None and not row.deaths]
        if ready:
            self._database.insert("put_ready", ready)
        if len(ready) < len(rows):
            self._database.insert("put_suspect", [tuple(row) for row in rows if row.deaths])
            waiting = [tuple(row) for row in rows if not row.deaths and row.due_at is not None]
            self._database.insert("put_delayed", waiting)
        if rows:
            self._database.notify()

    def take(self, *claims: Claim) -> None:
        for claim in claims:
            if not self.remove(claim):
                raise LeaseLost.of(claim.message_id, claim.stage)

    def remove(self, claim: Claim) -> bool:
        return self._run("remove_claimed", fence_of(claim)).rowcount == 1

    def release(self, claim: Claim, *, kept_failures: int | None = None) -> bool:
        if kept_failures is not None:
            return self._run("keep_claimed", (kept_failures, *fence_of(claim))).rowcount == 1
        is_released = self._run("release_claimed", fence_of(claim)).rowcount == 1
        if is_released:
            self._database.notify()
        return is_released

    def holds(self, claim: Claim) -> bool:
        return self._run("holds_claimed", fence_of(claim)).fetchone() is not None

    def owned(self, owner: str, *, is_unattended: bool = False, is_paused: bool = False) -> list[Claim]:
        # An owner that works on one is the only writer of its database, and is waited for: all are unattended.
        return [Claim(*row) for row in self._run("list_owned", (owner,)).fetchall()]

    def owners(self) -> list[str]:
        return [owner for (owner,) in self._run("list_owners").fetchall()]

    def waiting_stages(self) -> list[str]:
        return [stage for (stage,) in self._run("list_waiting_stages").fetchall()]

    def pending(self, stages: Sequence[str]) -> Pending:
        wanted = {"stages": self._database.array(stages), "given_up": GIVEN_UP_PROBES}
        ready, claimed, due_at, suspect_at, given_up, others = self._run("pending", wanted).fetchone()
        is_stalled = given_up is not None and not (others or claimed)
        return Pending(bool(ready), bool(claimed), due_at, suspect_at, given_up if is_stalled else None)

    def depths(self) -> list[Depth]:
        return [Depth(*row) for row in self._run("list_depths").fetchall()]


def fence_of(claim: Claim) -> tuple[Any, ...]:
    return claim.row, claim.owner, claim.deliveries, claim.message_id
