"""A journal in ranges: the open one is cut, and the oldest closed one is dropped (decision 030)."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.errors import StoreContention
from stagepost.ports.retention import ClosedRange
from stagepost.store.sql.database import only
from stagepost.store.sql.retention import SqlRetention

KEPT = "stagepost_journal_kept"
OPEN = "stagepost_journal_open"


class PostgresRetention(SqlRetention):
    """Implements ``ports.retention.Retention``."""

    def table_rows(self, limit: int) -> dict[str, int]:
        (decisions,) = only(self._run("count_decisions", {"limit": limit}))
        return {**super().table_rows(limit), "decisions": int(decisions)}

    def ends_at(self) -> int | None:
        return next(end for name, _, end in self._ranges() if name == KEPT)

    def cut(self, since: int) -> None:
        begin = next(begin for name, begin, _ in self._ranges() if name == OPEN)
        if begin <= since:
            self._run("wait_a_moment")
            self._run("cut_open_range")

    def closed_ranges(self) -> list[ClosedRange]:
        return [ClosedRange(begin, end) for name, begin, end in self._ranges() if name not in (KEPT, OPEN)]

    def lines_of(self, closed: ClosedRange) -> int:
        return int(only(self._run("count_range", {"first": closed.first}))[0])

    def kept_flows(self, closed: ClosedRange) -> set[str]:
        wanted = closed._asdict()
        return self._set("list_recent_flows_of_range", wanted) | self._set("list_open_flows_of_range", wanted)

    def drop(self, closed: ClosedRange, kept: Sequence[str]) -> int:
        self._run("wait_a_moment")
        moved = only(self._run("drop_range", {**closed._asdict(), "kept": list(kept)}))[0]
        if moved is None:
            raise StoreContention(f"another purge has dropped the range of the journal that begins at {closed.first}")
        return int(moved)

    def _ranges(self) -> list[tuple[str, int, int]]:
        return self._run("list_ranges").fetchall()
