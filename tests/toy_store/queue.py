"""The queue in memory: the same verbs, the same fence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stagepost.flow.claim import Claim
from stagepost.flow.errors import LeaseLost
from stagepost.ports.circuits import GIVEN_UP_PROBES, Pause
from stagepost.ports.queue import PROMOTION_MAX, Depth, Look, Pending, QueueRow
from tests.toy_store.tables import Ready, Tables

Counts = tuple[int, int, int, int, int]


class ToyQueue:
    """Implements ``ports.queue.Queue``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._seen = -1

    def look(self, stages: Sequence[str], now: int) -> Look:
        running = [each for each in stages if self._pause(each) is None]
        return Look(
            bool(self.claimable(running)) or bool(self._due(running, now)),
            any(self._has_probe(each, now) for each in stages),
        )

    def promote(self, stages: Sequence[str], now: int) -> None:
        for key in self._due(stages, now)[:PROMOTION_MAX]:
            row = self._tables.delayed.remove(key)
            self._tables.ready.insert(Ready(row._replace(due_at=None), None))

    def claim(self, stages: Sequence[str], limit: int, owner: str, now: int) -> list[Claim]:
        self.promote(stages, now)
        running = [each for each in stages if self._pause(each) is None]
        return [self.own(key, owner) for key in self.claimable(running)[:limit]]

    def claim_suspect(self, stages: Sequence[str], now: int, owner: str) -> Claim | None:
        due = [(row.deaths, row.due_at or 0, key) for key, row in self._tables.suspect.items() if row.stage in stages]
        due = sorted(each for each in due if each[1] <= now)
        if not due:
            return None
        row = self._tables.suspect.remove(due[0][2])
        return self.own(self._tables.ready.insert(Ready(row._replace(due_at=None), None)), owner)

    def enqueue(self, rows: Sequence[QueueRow]) -> None:
        for row in rows:
            if row.deaths:
                self._tables.suspect.insert(row)
            elif row.due_at is not None:
                self._tables.delayed.insert(row)
            else:
                self._tables.ready.insert(Ready(row, None))

    def take(self, *claims: Claim) -> None:
        for claim in claims:
            if not self.remove(claim):
                raise LeaseLost.of(claim.message_id, claim.stage)

    def remove(self, claim: Claim) -> bool:
        if not self.holds(claim):
            return False
        self._tables.ready.remove(claim.row)
        return True

    def release(self, claim: Claim, *, kept_failures: int | None = None) -> bool:
        if not self.holds(claim):
            return False
        held = self._tables.ready.get(claim.row)
        assert held is not None
        if kept_failures is None:
            self._tables.ready.put(claim.row, Ready(held.row, None))
        else:
            kept = held.row._replace(failures=kept_failures, deliveries=claim.deliveries + 1)
            self._tables.ready.put(claim.row, Ready(kept, claim.owner))
        return True

    def holds(self, claim: Claim) -> bool:
        held = self._tables.ready.get(claim.row)
        return held is not None and (held.owner, held.row.deliveries) == (claim.owner, claim.deliveries)

    def owned(self, owner: str, *, is_unattended: bool = False, is_paused: bool = False) -> list[Claim]:
        # An owner that works on one is the only writer, and is waited for: all are unattended.
        return [_claim(key, held) for key, held in self._tables.ready.items() if held.owner == owner]

    def owners(self) -> list[str]:
        return sorted({held.owner for held in self._tables.ready.values() if held.owner is not None})

    def waiting_stages(self) -> list[str]:
        return sorted({held.row.stage for held in self._tables.ready.values() if held.owner is None})

    def pending(self, stages: Sequence[str]) -> Pending:
        ours = [held for held in self._tables.ready.values() if held.row.stage in stages]
        running = [each for each in stages if self._pause(each) is None]
        moments = [moment for moment in map(self._next_at, stages) if moment is not None]
        waiting = {each for each in stages if self._waits(each)}
        vain = {
            each: pause.probes
            for each in waiting
            if (pause := self._pause(each)) is not None and pause.probes >= GIVEN_UP_PROBES
        }
        is_claimed = any(held.owner is not None for held in ours)
        return Pending(
            ready=bool(self.claimable(running)),
            claimed=is_claimed,
            next_due_at=min(moments, default=None),
            next_suspect_at=_first_due(self._tables.suspect.values(), stages),
            stalled_probes=sum(vain.values()) if waiting and waiting == vain.keys() and not is_claimed else None,
        )

    def depths(self) -> list[Depth]:
        counts: dict[str, Counts] = {}
        oldest: dict[str, int] = {}

        def count(stage: str, column: int, origin_at: int | None) -> None:
            before = counts.get(stage, (0, 0, 0, 0, 0))
            ready, claimed, delayed, suspect, dead = (n + (column == at) for at, n in enumerate(before))
            counts[stage] = (ready, claimed, delayed, suspect, dead)
            if origin_at is not None:
                oldest[stage] = min(oldest.get(stage, origin_at), origin_at)

        for held in self._tables.ready.values():
            count(held.row.stage, 0 if held.owner is None else 1, held.row.origin_at)
        for column, table in ((2, self._tables.delayed), (3, self._tables.suspect)):
            for row in table.values():
                count(row.stage, column, row.origin_at)
        for letter in self._tables.letters.values():
            count(letter.stage, 4, None)
        return [Depth(stage, *counts[stage], oldest.get(stage)) for stage in sorted(counts)]

    def changed(self) -> bool:
        seen, self._seen = self._seen, self._tables.world.commits
        return seen != self._tables.world.commits

    def _pause(self, stage: str) -> Pause | None:
        breaker = self._tables.circuits.get(stage)
        return None if breaker is None else breaker.pause

    def _is_probed(self, pause: Pause) -> bool:
        held = self._tables.ready.get(pause.probe.row) if pause.probe is not None else None
        return held is not None and held.owner is not None

    def _has_probe(self, stage: str, now: int) -> bool:
        pause = self._pause(stage)
        if pause is None or pause.next_probe_at > now or self._is_probed(pause):
            return False
        return pause.probe is not None or bool(self.claimable([stage])) or bool(self._due([stage], now))

    def _next_at(self, stage: str) -> int | None:
        """When something of it can be claimed that cannot be now."""
        pause = self._pause(stage)
        due_at = _first_due(self._tables.delayed.values(), [stage])
        if pause is None:
            return due_at
        if self._is_probed(pause):
            return None
        if self.claimable([stage]):
            return pause.next_probe_at
        return None if due_at is None else max(pause.next_probe_at, due_at)

    def _waits(self, stage: str) -> bool:
        others = [*self._tables.delayed.values(), *self._tables.suspect.values()]
        return bool(self.claimable([stage])) or any(row.stage == stage for row in others)

    def claimable(self, stages: Sequence[str]) -> list[int]:
        ready = self._tables.ready.items()
        free = [(held.row.origin_at, key) for key, held in ready if held.owner is None and held.row.stage in stages]
        return [key for _, key in sorted(free)]

    def _due(self, stages: Sequence[str], now: int) -> list[int]:
        waiting = self._tables.delayed.items()
        due = [(row.due_at or 0, key) for key, row in waiting if row.stage in stages and (row.due_at or 0) <= now]
        return [key for _, key in sorted(due)]

    def own(self, key: int, owner: str) -> Claim:
        held = self._tables.ready.get(key)
        assert held is not None
        owned = Ready(held.row._replace(deliveries=held.row.deliveries + 1), owner)
        self._tables.ready.put(key, owned)
        return _claim(key, owned)


def _first_due(rows: Iterator[QueueRow], stages: Sequence[str]) -> int | None:
    return min((row.due_at or 0 for row in rows if row.stage in stages), default=None)


def _claim(key: int, held: Ready) -> Claim:
    row = held.row
    assert held.owner is not None
    return Claim(
        key,
        held.owner,
        row.deliveries,
        row.stage,
        row.message_id,
        row.flow_id,
        row.failures,
        row.deaths,
        row.origin_at,
        row.envelope,
    )
