"""The books of bulk runs."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.runs import Quarantined, RunCounts
from stagepost.store.sqlite.queue import Run
from stagepost.store.sqlite.statements import SQL


class SqliteRuns:
    """Implements ``app.stores.Runs``. Writes are part of whatever transaction is open."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def begin(self, run_id: str, target: str, source: str, now: int) -> None:
        self._run(SQL["begin_run"], (run_id, target, source, now))

    def end(self, run_id: str, rows_in: int, now: int) -> None:
        self._run(SQL["end_run"], (rows_in, now, run_id))

    def has_chunk(self, run_id: str, task: int, chunk: int) -> bool:
        return self._run(SQL["find_chunk"], (run_id, task, chunk)).fetchone() is not None

    def add_chunk(self, run_id: str, task: int, chunk: int, counts: RunCounts) -> None:
        row = (run_id, task, chunk, counts.started, counts.repeated, counts.quarantined)
        self._run(SQL["add_chunk"], row)

    def quarantine(self, run_id: str, rows: Sequence[Quarantined]) -> None:
        for row in rows:
            self._run(SQL["quarantine_row"], (run_id, *row))

    def counts(self, run_id: str) -> RunCounts:
        (rows_in,) = self._run(SQL["find_run"], (run_id,)).fetchone() or (None,)
        started, repeated, quarantined = self._run(SQL["count_run"], (run_id,)).fetchone()
        return RunCounts(rows_in, started, repeated, quarantined)

    def quarantined(self, run_id: str, limit: int) -> list[Quarantined]:
        return [Quarantined(*row) for row in self._run(SQL["list_quarantine"], (run_id, limit)).fetchall()]
