"""When each outbound message may first have left for its broker, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.claim import Claim
from tests.toy_store.tables import Tables


class ToyDepartures:
    """Implements ``ports.departures.Departures``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def stamp(self, claims: Sequence[Claim], now: int) -> None:
        for each in claims:
            key = each.stage, each.message_id
            if self._tables.departures.get(key) is None:
                self._tables.departures.put(key, now)

    def left_at(self, claims: Sequence[Claim]) -> dict[str, int]:
        found = {each.message_id: self._tables.departures.get((each.stage, each.message_id)) for each in claims}
        return {message_id: left_at for message_id, left_at in found.items() if left_at is not None}

    def clear(self, claims: Sequence[Claim]) -> None:
        for each in claims:
            if self._tables.departures.get((each.stage, each.message_id)) is not None:
                self._tables.departures.remove((each.stage, each.message_id))
