"""The circuits of failing stages, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.claim import Claim
from stagepost.ports.circuits import CANDIDATES_MAX, CircuitBreaker, End
from tests.toy_store.queue import ToyQueue
from tests.toy_store.tables import Tables


class ToyCircuits:
    """Implements ``ports.circuits.Circuits``."""

    def __init__(self, tables: Tables, queue: ToyQueue) -> None:
        self._tables = tables
        self._queue = queue

    def lock(self, stage: str) -> CircuitBreaker:
        return self._tables.circuits.get(stage) or CircuitBreaker(stage)

    def keep(self, breaker: CircuitBreaker) -> None:
        self._tables.circuits.put(breaker.stage, breaker)

    def forget(self, stage: str) -> bool:
        self._start_round(stage)
        if self._tables.circuits.get(stage) is None:
            return False
        self._tables.circuits.remove(stage)
        return True

    def paused(self) -> list[CircuitBreaker]:
        return [breaker for breaker in self._tables.circuits.values() if breaker.pause is not None]

    def has_succeeded(self, stage: str, since: int) -> bool:
        lines = self._tables.journal.items()
        return any((each.stage, each.waypoint) == (stage, "committed") for line, each in lines if line > since)

    def due(self, stages: Sequence[str], now: int) -> list[CircuitBreaker]:
        return [
            each
            for each in self.paused()
            if each.stage in stages and each.pause is not None and each.pause.next_probe_at <= now
        ]

    def last_line(self) -> int:
        return max((key for key, _ in self._tables.journal.items()), default=0)

    def is_claimed(self, row: int) -> bool:
        held = self._tables.ready.get(row)
        return held is not None and held.owner is not None

    def claim_probe(self, stage: str, owner: str, end: End, now: int) -> Claim | None:
        self._queue.promote([stage], now)
        probe = self._next_probe(stage, owner, end)
        if probe is None and self._start_round(stage):
            probe = self._next_probe(stage, owner, end)
        if probe is not None:
            self._tables.probed.put((stage, probe.message_id), True)
        return probe

    def _next_probe(self, stage: str, owner: str, end: End) -> Claim | None:
        waiting = self._queue.claimable([stage])
        candidates: list[tuple[int, int]] = []
        for key in waiting if end == "oldest" else reversed(waiting):
            held = self._tables.ready.get(key)
            assert held is not None
            if self._tables.probed.get((stage, held.row.message_id)) is None:
                candidates.append((held.row.failures, key))
        if not candidates:
            return None
        # Of those with as few failures, the one that is nearest to the end.
        _, key = min(candidates[:CANDIDATES_MAX], key=lambda candidate: candidate[0])
        return self._queue.own(key, owner)

    def _start_round(self, stage: str) -> bool:
        probed = [key for key, _ in self._tables.probed.items() if key[0] == stage]
        for key in probed:
            self._tables.probed.remove(key)
        return bool(probed)
