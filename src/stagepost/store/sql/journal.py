"""The journal: what is appended to it, and what is looked up in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from stagepost.ports.journal import Position, Waypoint
from stagepost.ports.outbox import Backlog
from stagepost.store.sql.database import SqlPart, only
from stagepost.store.sql.texts import writable


class SqlJournal(SqlPart):
    """Implements ``ports.journal.Journal``."""

    def record(self, waypoints: Sequence[Waypoint]) -> None:
        self._database.insert("record_waypoint", [_row(each) for each in waypoints])

    def history(self, flow_id: str) -> list[Waypoint]:
        return [Waypoint(*row) for row in self._run("list_history", (flow_id,)).fetchall()]

    def flow_of(self, message_id: str) -> str | None:
        found = self._run("find_flow", (message_id,)).fetchone()
        return None if found is None else str(found[0])

    def has_committed(self, stage: str, message_id: str) -> bool:
        return bool(only(self._run("has_committed", {"stage": stage, "message_id": message_id}))[0])

    def last_waypoint(self) -> int:
        return int(only(self._run("last_waypoint"))[0])

    def position(self) -> Position:
        # In this order: of a server that is promoted in between, the position is refused.
        epoch = str(only(self._run("find_epoch"))[0])
        return Position(only(self._run("journal_position"))[0], epoch)

    def unseen(self, position: int) -> Backlog:
        return Backlog(*only(self._run("count_unseen", (int(position),))))

    def committed_since(self, position: int) -> dict[str, int]:
        return dict(self._run("count_committed_since", (int(position),)).fetchall())

    def has_ended_since(self, position: int) -> bool:
        return bool(only(self._run("has_ended_since", (int(position),)))[0])


def _row(waypoint: Waypoint) -> tuple[Any, ...]:
    row = structs.astuple(waypoint)
    return row if waypoint.detail is None else (*row[:-1], writable(waypoint.detail))
