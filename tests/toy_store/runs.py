"""The books of bulk runs, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stagepost.ports.runs import Quarantined, Run, RunCounts, TaskAttempt
from tests.toy_store.tables import Tables, ToyRun


class ToyRuns:
    """Implements ``ports.runs.Runs``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def begin(self, run_id: str, target: str, source: str, now: int) -> int:
        run = self._tables.runs.get(run_id) or ToyRun(target, source, now)
        self._tables.runs.put(run_id, replace(run, starts=run.starts + 1))
        return run.starts + 1

    def end(self, run_id: str, start: int, rows_in: int, now: int) -> None:
        run = self._tables.runs.get(run_id)
        assert run is not None
        if run.ended_start is None or run.ended_start <= start:
            self._tables.runs.put(run_id, replace(run, ended_start=start, rows_in=rows_in))

    def count(self, attempt: TaskAttempt, counts: RunCounts) -> None:
        key = attempt.run_id, attempt.start, attempt.task
        before = self._tables.tasks.get(key)
        if before is None or before[0] <= attempt.number:
            self._tables.tasks.put(key, (attempt.number, counts))

    def quarantine(self, run_id: str, rows: Sequence[Quarantined]) -> None:
        for row in rows:
            key = (run_id, row.file, row.record)
            if self._tables.quarantine.get(key) is None:
                self._tables.quarantine.put(key, row)

    def counts(self, run_id: str) -> RunCounts:
        run = self._tables.runs.get(run_id)
        if run is None:
            return RunCounts(None, 0, 0, 0)
        start = run.starts if run.ended_start is None else run.ended_start
        tasks = [counts for key, (_, counts) in self._tables.tasks.items() if key[:2] == (run_id, start)]
        return RunCounts(
            run.rows_in,
            sum(each.started for each in tasks),
            sum(each.repeated for each in tasks),
            sum(each.quarantined for each in tasks),
        )

    def quarantined(self, run_id: str, limit: int, after: tuple[str, int] = ("", 0)) -> list[Quarantined]:
        return [row for key, row in self._tables.quarantine.items() if key[0] == run_id and key[1:] > after][:limit]

    def with_quarantine(self, limit: int) -> list[Run]:
        found = [
            Run(key, run.target, run.source, run.started_at, self.counts(key))
            for key, run in self._tables.runs.items()
            if self.quarantined(key, 1)
        ]
        return sorted(found, key=lambda run: -run.started_at)[:limit]
