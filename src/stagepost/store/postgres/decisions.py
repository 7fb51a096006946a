"""What this database decided of transactions that are prepared in another. Part of whatever transaction is open."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.store.postgres.inbox import WAIT_AS_BEFORE, WAIT_SHORTLY
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.wire import Wire


class PostgresDecisions:
    """Implements ``transaction.seams.Decisions``."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def decide(self, gid: str, *, is_commit: bool) -> bool:
        self._wire.later(WAIT_SHORTLY)
        is_first = self._wire.run(SQL["decide"], (gid, is_commit)).rowcount == 1
        self._wire.later(WAIT_AS_BEFORE)
        return is_first

    def find(self, gid: str) -> bool | None:
        row = self._wire.run(SQL["find_decision"], (gid,)).fetchone()
        return None if row is None else bool(row[0])

    def kept(self, age: int, limit: int, *, is_commit: bool) -> list[str]:
        wanted = {"is_commit": is_commit, "age": age, "limit": limit}
        return [gid for (gid,) in self._wire.run(SQL["list_decisions"], wanted).fetchall()]

    def forget(self, gids: Sequence[str]) -> None:
        self._wire.later(SQL["forget_decisions"], (list(gids),))
