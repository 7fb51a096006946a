"""The journal: what is appended to it, and what is looked up in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from stagepost.ports.journal import Position, Progress, Waypoint
from stagepost.ports.outbox import Backlog
from stagepost.store.sql.database import SqlPart, only
from stagepost.store.sql.texts import writable


class SqlJournal(SqlPart):
    """Implements ``ports.journal.Journal``."""

    def record(self, waypoints: Sequence[Waypoint]) -> None:
        self._database.insert("record_waypoint", [_row(each) for each in waypoints])

    def history(self, flow_or_message_id: str, latest: int | None = None) -> list[Waypoint]:
        if latest is not None:
            newest = self._run("list_latest", {"message_id": flow_or_message_id, "most": latest}).fetchall()
            return [Waypoint(*row) for row in reversed(newest)]
        rows = self._run("list_history", (flow_or_message_id,)).fetchall()
        if not rows:
            flow = self._run("find_flow", (flow_or_message_id,)).fetchone()
            rows = [] if flow is None else self._run("list_history", flow).fetchall()
        return [Waypoint(*row) for row in rows]

    def has_committed(self, stage: str, message_id: str) -> bool:
        return bool(only(self._run("has_committed", {"stage": stage, "message_id": message_id}))[0])

    def position(self) -> Position:
        # In this order: of a server that is promoted in between, the position is refused.
        epoch = str(only(self._run("find_epoch"))[0])
        return Position(only(self._run("journal_position"))[0], epoch)

    def since(self, position: int) -> Progress:
        rows = self._run("count_since", (int(position),)).fetchall()
        first_at = min((first_at for _, _, first_at, *_ in rows), default=None)
        lines = Backlog(sum(count for _, count, *_ in rows), first_at)
        committed = {node: count for node, _, _, count, _ in rows if count}
        return Progress(lines, committed, any(ended for *_, ended in rows))


def _row(waypoint: Waypoint) -> tuple[Any, ...]:
    row = structs.astuple(waypoint)
    return row if waypoint.detail is None else (*row[:-1], writable(waypoint.detail))
