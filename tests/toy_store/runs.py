"""The books of bulk runs, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.ports.runs import Quarantined, RunCounts
from tests.toy_store.tables import Tables


class ToyRuns:
    """Implements ``app.stores.Runs``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def begin(self, run_id: str, target: str, source: str, now: int) -> None:
        self._tables.runs.put(run_id, (None,))

    def end(self, run_id: str, rows_in: int, now: int) -> None:
        self._tables.runs.put(run_id, (rows_in,))

    def has_chunk(self, run_id: str, task: int, chunk: int) -> bool:
        return self._tables.chunks.get((run_id, task, chunk)) is not None

    def add_chunk(self, run_id: str, task: int, chunk: int, counts: RunCounts) -> None:
        self._tables.chunks.put((run_id, task, chunk), counts)

    def quarantine(self, run_id: str, rows: Sequence[Quarantined]) -> None:
        for row in rows:
            self._tables.quarantine.put((run_id, row.file, row.record), row)

    def counts(self, run_id: str) -> RunCounts:
        chunks = [counts for key, counts in self._tables.chunks.items() if key[0] == run_id]
        return RunCounts(
            (self._tables.runs.get(run_id) or (None,))[0],
            sum(each.started for each in chunks),
            sum(each.repeated for each in chunks),
            sum(each.quarantined for each in chunks),
        )

    def quarantined(self, run_id: str, limit: int) -> list[Quarantined]:
        return [row for key, row in self._tables.quarantine.items() if key[0] == run_id][:limit]
