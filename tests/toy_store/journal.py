"""The journal in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stagepost.ports.journal import Position, Progress, Waypoint
from stagepost.ports.outbox import Backlog
from tests.toy_store.tables import Tables


class ToyJournal:
    """Implements ``ports.journal.Journal``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def record(self, waypoints: Sequence[Waypoint]) -> None:
        for each in waypoints:
            self._tables.journal.insert(each)

    def history(self, flow_or_message_id: str, latest: int | None = None) -> list[Waypoint]:
        written = list(self._tables.journal.values())
        if latest is not None:
            return [each for each in written if each.message_id == flow_or_message_id][-latest:]
        of_message = (each.flow_id for each in written if each.message_id == flow_or_message_id)
        flows = {each.flow_id for each in written}
        flow_id = flow_or_message_id if flow_or_message_id in flows else next(of_message, None)
        return [each for each in written if each.flow_id == flow_id]

    def has_committed(self, stage: str, message_id: str) -> bool:
        wanted = ("committed", stage, message_id)
        return any((each.waypoint, each.stage, each.message_id) == wanted for each in self._tables.journal.values())

    def position(self) -> Position:
        return Position(max((key for key, _ in self._tables.journal.items()), default=0) + 1)

    def since(self, position: int) -> Progress:
        lines = [waypoint for key, waypoint in self._tables.journal.items() if key >= position]
        committed = Counter(each.node for each in lines if each.waypoint == "committed")
        has_ended = any(each.waypoint in ("committed", "failed", "died", "dead") for each in lines)
        return Progress(Backlog(len(lines), min((each.at for each in lines), default=None)), dict(committed), has_ended)
