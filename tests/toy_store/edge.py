"""The edge of the store, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stagepost.flow.claim import Claim
from stagepost.flow.target import OUTBOUND_PREFIX
from stagepost.ports.edge import Departing, EdgeView, Fill
from stagepost.ports.queue import QueueRow
from tests.toy_store.tables import Tables


class ToyEdge:
    """Implements ``ports.edge.Edge``."""

    def __init__(self, tables: Tables, store: str) -> None:
        self._tables = tables
        self._store = store

    def store(self) -> str:
        return self._store

    def fill(self, stages: Sequence[str], most: int, failed_most: int) -> dict[str, Fill]:
        def count(rows: Iterator[QueueRow], stage: str, limit: int) -> int:
            return min(sum(row.stage == stage for row in rows), limit)

        tables = self._tables
        return {
            stage: Fill(
                count((held.row for held in tables.ready.values() if held.owner is None), stage, most)
                + count((held.row for held in tables.ready.values() if held.owner is not None), stage, most),
                count((row for row in tables.delayed.values() if row.failures), stage, failed_most)
                + count(tables.suspect.values(), stage, failed_most),
                min(
                    (
                        held.row.origin_at
                        for held in tables.ready.values()
                        if held.owner is None and held.row.stage == stage
                    ),
                    default=None,
                ),
            )
            for stage in stages
        }

    def destinations(self) -> list[str]:
        waiting = {held.row.stage for held in self._tables.ready.values() if held.owner is None}
        waiting |= {row.stage for row in self._tables.delayed.values()}
        return sorted(each for each in waiting if each.startswith(OUTBOUND_PREFIX))

    def outbound(self, most: int) -> int:
        stages = [held.row.stage for held in self._tables.ready.values()]
        stages += [row.stage for row in self._tables.delayed.values()]
        return min(sum(each.startswith(OUTBOUND_PREFIX) for each in stages), most)

    def stamp(self, claims: Sequence[Departing], now: int) -> None:
        for each in claims:
            key = each.stage, each.message_id
            if self._tables.departures.get(key) is None:
                self._tables.departures.put(key, now)

    def left_at(self, claims: Sequence[Claim]) -> dict[str, int]:
        found = {each.message_id: self._tables.departures.get((each.stage, each.message_id)) for each in claims}
        return {message_id: left_at for message_id, left_at in found.items() if left_at is not None}

    def clear(self, claims: Sequence[Departing]) -> None:
        for each in claims:
            if self._tables.departures.get((each.stage, each.message_id)) is not None:
                self._tables.departures.remove((each.stage, each.message_id))
                self.forget_deaths(each)

    def count_death(self, claim: Claim) -> int:
        key = claim.stage, claim.message_id
        if self._tables.departures.get(key) is None:
            return 0
        deaths = (self._tables.departure_deaths.get(key) or 0) + 1
        self._tables.departure_deaths.put(key, deaths)
        return deaths

    def forget_deaths(self, claim: Departing) -> None:
        if self._tables.departure_deaths.get((claim.stage, claim.message_id)) is not None:
            self._tables.departure_deaths.remove((claim.stage, claim.message_id))

    def clear_mark(self, scope: str, key: str) -> bool:
        digest, run_id, is_direct = self._tables.accepted.get((scope, key)) or ("", None, False)
        if is_direct:
            self._tables.accepted.put((scope, key), (digest, run_id, False))
        return is_direct

    def note_view(self, view: EdgeView) -> None:
        self._tables.views.put(view.node, view)

    def forget_view(self, node: str, stale: int) -> None:
        for each in self.views():
            if each.node == node or each.seen_at < stale:
                self._tables.views.remove(each.node)

    def views(self) -> list[EdgeView]:
        return sorted(self._tables.views.values())
