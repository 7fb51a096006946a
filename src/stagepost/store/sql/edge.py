"""The edge of a store: its outbound rows, their stamps, and the bounded counts of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stagepost.flow.claim import Claim
from stagepost.flow.target import OUTBOUND_PREFIX
from stagepost.ports.edge import Departing, EdgeView, Fill
from stagepost.store.sql.database import SqlPart, only, text_of

# The range of the stages of outbound rows.
OUTBOUND = {"first": OUTBOUND_PREFIX, "behind": OUTBOUND_PREFIX[:-1] + chr(ord(OUTBOUND_PREFIX[-1]) + 1)}


class SqlEdge(SqlPart):
    """Implements ``ports.edge.Edge``. Writes are part of the open transaction."""

    def store(self) -> str:
        return text_of(only(self._run("find_meta", {"key": "uuid"}))[0])

    def fill(self, stages: Sequence[str], most: int, failed_most: int) -> dict[str, Fill]:
        wanted = {"stages": self._database.array(stages), "most": most, "failed_most": failed_most}
        return {stage: Fill(*counts) for stage, *counts in self._run("list_fill", wanted).fetchall()}

    def destinations(self) -> list[str]:
        return [stage for (stage,) in self._run("list_destinations", OUTBOUND).fetchall()]

    def outbound(self, most: int) -> int:
        return int(only(self._run("count_outbound", {**OUTBOUND, "most": most}))[0])

    def stamp(self, claims: Sequence[Departing], now: int) -> None:
        for named in self._by_stage(claims):
            self._database.later("stamp_departures", {**named, "left_at": now})

    def left_at(self, claims: Sequence[Claim]) -> dict[str, int]:
        found: dict[str, int] = {}
        for named in self._by_stage(claims):
            found |= self._run("list_departures", named).fetchall()
        return found

    def clear(self, claims: Sequence[Departing]) -> None:
        for named in self._by_stage(claims):
            self._database.later("clear_departures", named)

    def clear_mark(self, scope: str, key: str) -> bool:
        return self._run("clear_mark", (scope, key)).rowcount == 1

    def count_death(self, claim: Claim) -> int:
        found = self._run("count_departure_death", {"stage": claim.stage, "message_id": claim.message_id}).fetchall()
        return int(found[0][0]) if found else 0

    def forget_deaths(self, claim: Claim) -> None:
        named = {"stage": claim.stage, "message_id": claim.message_id}
        self._database.later("forget_departure_deaths", named)

    def note_view(self, view: EdgeView) -> None:
        self._database.later("note_edge", view._asdict())

    def forget_view(self, node: str, stale: int) -> None:
        self._database.later("forget_edges", {"node": node, "stale": stale})

    def views(self) -> list[EdgeView]:
        return [EdgeView(*row) for row in self._run("list_edges").fetchall()]

    def _by_stage(self, claims: Sequence[Departing]) -> Iterator[dict[str, Any]]:
        """Name the messages of each stage, in the order in which every session locks their rows."""
        ids: dict[str, list[str]] = {}
        for each in sorted(claims, key=lambda claim: (claim.stage, claim.message_id)):
            ids.setdefault(each.stage, []).append(each.message_id)
        for stage, message_ids in ids.items():
            yield {"stage": stage, "ids": self._database.array(message_ids)}
