"""The journal in memory."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.ports.journal import Position, Waypoint
from stagepost.ports.outbox import Backlog
from tests.toy_store.tables import Tables


class ToyJournal:
    """Implements ``ports.journal.Journal``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def record(self, waypoints: Sequence[Waypoint]) -> None:
        for each in waypoints:
            self._tables.journal.insert(each)

    def history(self, flow_id: str) -> list[Waypoint]:
        return [waypoint for waypoint in self._tables.journal.values() if waypoint.flow_id == flow_id]

    def flow_of(self, message_id: str) -> str | None:
        written = self._tables.journal.values()
        return next((each.flow_id for each in written if each.message_id == message_id), None)

    def has_committed(self, stage: str, message_id: str) -> bool:
        wanted = ("committed", stage, message_id)
        return any((each.waypoint, each.stage, each.message_id) == wanted for each in self._tables.journal.values())

    def last_waypoint(self) -> int:
        return max((key for key, _ in self._tables.journal.items()), default=0)

    def position(self) -> Position:
        return Position(self.last_waypoint() + 1)

    def unseen(self, position: int) -> Backlog:
        moments = [waypoint.at for key, waypoint in self._tables.journal.items() if key >= position]
        return Backlog(len(moments), min(moments, default=None))

    def committed_since(self, position: int) -> dict[str, int]:
        nodes: dict[str, int] = {}
        for key, waypoint in self._tables.journal.items():
            if key >= position and waypoint.waypoint == "committed":
                nodes[waypoint.node] = nodes.get(waypoint.node, 0) + 1
        return nodes

    def has_ended_since(self, position: int) -> bool:
        ends = ("committed", "failed", "died", "dead")
        return any(key >= position and waypoint.waypoint in ends for key, waypoint in self._tables.journal.items())
