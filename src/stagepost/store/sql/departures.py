"""The departures: the moment at which each outbound message may first have left for its broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stagepost.flow.claim import Claim
from stagepost.store.sql.database import SqlPart


class SqlDepartures(SqlPart):
    """Implements ``ports.departures.Departures``. Writes are part of the open transaction."""

    def stamp(self, claims: Sequence[Claim], now: int) -> None:
        for named in self._by_stage(claims):
            self._database.later("stamp_departures", {**named, "left_at": now})

    def left_at(self, claims: Sequence[Claim]) -> dict[str, int]:
        found: dict[str, int] = {}
        for named in self._by_stage(claims):
            found |= self._run("list_departures", named).fetchall()
        return found

    def clear(self, claims: Sequence[Claim]) -> None:
        for named in self._by_stage(claims):
            self._database.later("clear_departures", named)

    def _by_stage(self, claims: Sequence[Claim]) -> Iterator[dict[str, Any]]:
        """Name the messages of each stage, in the order in which every session locks their rows."""
        ids: dict[str, list[str]] = {}
        for each in sorted(claims, key=lambda claim: (claim.stage, claim.message_id)):
            ids.setdefault(each.stage, []).append(each.message_id)
        for stage, message_ids in ids.items():
            yield {"stage": stage, "ids": self._database.array(message_ids)}
