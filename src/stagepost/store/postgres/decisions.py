"""Decisions of this database on transactions that are prepared in another. Writes are part of the open transaction."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.store.postgres.inbox import WAIT_AS_BEFORE, WAIT_SHORTLY
from stagepost.store.postgres.wire import WirePart


class PostgresDecisions(WirePart):
    """Implements ``ports.decisions.Decisions``."""

    def decide(self, gid: str, *, is_commit: bool) -> bool:
        self._wire.later(WAIT_SHORTLY)
        is_first = self._run("decide", (gid, is_commit)).rowcount == 1
        self._wire.later(WAIT_AS_BEFORE)
        return is_first

    def find(self, gid: str) -> bool | None:
        row = self._run("find_decision", (gid,)).fetchone()
        return None if row is None else bool(row[0])

    def kept(self, age: int, limit: int, *, is_commit: bool) -> list[str]:
        wanted = {"is_commit": is_commit, "age": age, "limit": limit}
        return [gid for (gid,) in self._run("list_decisions", wanted).fetchall()]

    def forget(self, gids: Sequence[str]) -> None:
        self._wire.later("forget_decisions", (list(gids),))
