"""The cursors of the journal's named readers."""

from __future__ import annotations

from stagepost.ports.cursors import Cursor
from stagepost.ports.journal import Position
from stagepost.store.sql.database import SqlPart


class SqlCursors(SqlPart):
    """Implements ``ports.cursors.Cursors``. Writes are part of the open transaction."""

    def find(self, reader: str) -> Cursor | None:
        row = self._run("find_cursor", (reader,)).fetchone()
        if row is None:
            return None
        epoch, first, position, used_at = row
        return Cursor(Position(first, epoch), Position(position, epoch), used_at)

    def add(self, reader: str, first: Position, now: int) -> None:
        self._run("add_cursor", (reader, first.epoch, int(first), now))

    def advance(self, reader: str, position: Position, now: int) -> None:
        self._run("advance_cursor", (int(position), now, reader, position.epoch))

    def use(self, reader: str, now: int) -> None:
        self._run("use_cursor", (now, reader))
