"""The books of bulk runs."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.ports.runs import Quarantined, RunCounts
from stagepost.store.sql.database import SqlPart, only
from stagepost.store.sql.texts import writable


class SqlRuns(SqlPart):
    """Implements ``ports.runs.Runs``. Writes are part of the open transaction."""

    def begin(self, run_id: str, target: str, source: str, now: int) -> None:
        self._database.later("begin_run", (run_id, target, source, now))

    def end(self, run_id: str, rows_in: int, now: int) -> None:
        self._database.later("end_run", (rows_in, now, run_id))

    def has_chunk(self, run_id: str, task: int, chunk: int) -> bool:
        return self._run("find_chunk", (run_id, task, chunk)).fetchone() is not None

    def add_chunk(self, run_id: str, task: int, chunk: int, counts: RunCounts) -> None:
        row = (run_id, task, chunk, counts.started, counts.repeated, counts.quarantined)
        self._database.later("add_chunk", row)

    def quarantine(self, run_id: str, rows: Sequence[Quarantined]) -> None:
        written = [
            (run_id, file, record, writable(reason), flow_id, writable(row))
            for file, record, reason, flow_id, row in rows
        ]
        self._database.insert("quarantine_row", written)

    def counts(self, run_id: str) -> RunCounts:
        (rows_in,) = self._run("find_run", (run_id,)).fetchone() or (None,)
        return RunCounts(rows_in, *only(self._run("count_run", (run_id,))))

    def quarantined(self, run_id: str, limit: int) -> list[Quarantined]:
        return [Quarantined(*row) for row in self._run("list_quarantine", (run_id, limit)).fetchall()]
